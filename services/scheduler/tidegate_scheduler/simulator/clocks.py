"""Whose clock counts in a recording: nothing that the scheduler has read happened after it decided on that.

Facts carry the time of whoever wrote them. One that is written by a clock far ahead would move all that follows it:
jobs would seem to take no time, in the recording and so in every simulation of it, and the two would agree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION

from tidegate_scheduler.history.point import time_of
from tidegate_scheduler.history.source import Source

FRAMES_HELD_MAX = 100_000
"""So many facts wait at most to learn when the scheduler decided next; then their writers' clocks have to do."""


class Timed(msgspec.Struct, frozen=True, gc=False):
    """A frame, and the time after which it did not happen; None where the scheduler says nothing any more."""

    recorded: Recorded
    until_ns: int | None

    @property
    def at_ns(self) -> int:
        """Return the newest time in the frame, as far as it can be believed."""
        at_ns = time_of(self.recorded)
        return at_ns if self.until_ns is None else min(at_ns, self.until_ns)


async def timed(frames: AsyncIterator[Recorded]) -> AsyncGenerator[Timed, None]:
    """Yield the frames in their order, each once it is known when the scheduler wrote next."""
    held: deque[Recorded] = deque()
    async for recorded in frames:
        held.append(recorded)
        decided_ns = time_of(recorded) if recorded.subject == DECISION else None
        if decided_ns is None and len(held) <= FRAMES_HELD_MAX:
            continue
        while held:
            yield Timed(held.popleft(), decided_ns)
    while held:
        yield Timed(held.popleft(), None)


async def time_at(source: Source, seq: int) -> int:
    """Return the time of the frame at `seq`, as far as it can be believed; 0 where there is none."""
    until = min(source.end, seq + FRAMES_HELD_MAX)
    async with aclosing(source.read(seq - 1, until)) as frames, aclosing(timed(frames)) as found:
        async for each in found:
            return each.at_ns
    return 0


class Clocks:
    """How far each writer's clock was ahead of the scheduler's at least: by what it wrote before the scheduler did."""

    def __init__(self) -> None:
        self.ahead_ns = 0
        self._by_writer: dict[str, int] = {}

    def believed_ns(self, at_ns: int, writer: str, until_ns: int | None) -> int:
        """Return when something happened that a writer tells for `at_ns`."""
        if until_ns is None:
            return at_ns - self._by_writer.get(writer, 0)
        if at_ns > until_ns:
            self._by_writer[writer] = max(at_ns - until_ns, self._by_writer.get(writer, 0))
            self.ahead_ns = max(self.ahead_ns, at_ns - until_ns)
        return min(at_ns, until_ns)
