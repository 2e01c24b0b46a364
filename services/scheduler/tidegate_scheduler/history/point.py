"""Fold history to a point: what the scheduler knew then.

A time is the scheduler's: its frames carry it, and it never goes back. Facts between two of its frames belong before
the moment up to the first that says that it came later; a node whose clock is wrong cannot move anybody else's.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from typing import Protocol

from tidegate_events.events import DecisionPass
from tidegate_events.journal.base import Recorded
from tidegate_events.subjects import DECISION

from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.history.errors import NotInHistoryError
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import Source
from tidegate_scheduler.state import State

FRAMES_PER_WORD = 200


class Told(Protocol):
    """Hears what is being done, and where that is known how much of it is done, of how much."""

    def __call__(self, text: str, done: int = 0, total: int = 0, /) -> None:
        """Hear it."""
        ...


class Point:
    """The state at a point, and when that was: of a sequence, the time of the newest thing known there."""

    def __init__(self, state: State, at_ns: int) -> None:
        self.state = state
        self.at_ns = at_ns

    def take(self, recorded: Recorded) -> None:
        """Move on by a frame."""
        evolve(self.state, recorded)
        if recorded.subject == DECISION:
            self.at_ns = max(self.at_ns, time_of(recorded))


def time_of(recorded: Recorded) -> int:
    """Return the newest time in a frame, by its writer's clock."""
    return max(event.at_ns for event in recorded.frame.events)


def check_within(source: Source, seq: int) -> None:
    """Raise NotInHistoryError for a sequence whose state cannot be told."""
    if not source.first - 1 <= seq <= source.end:
        raise NotInHistoryError(
            f"Sequence {seq} is not in this history: it begins with {source.first} and ends with {source.end}."
        )


async def fold_on(point: Point, source: Source, until: int, told: Told) -> None:
    """Fold to the sequence `until`."""
    async with aclosing(source.read(point.state.seq, until)) as frames:
        async for recorded in frames:
            point.take(recorded)
            if recorded.seq % FRAMES_PER_WORD == 0:
                told(f"Folding history: frame {recorded.seq} of {until}")


async def reach(source: Source, moment: Moment, told: Told) -> Point:
    """Return the point at `moment`."""
    if moment.at_ns is not None:
        return await _reach_time(source, moment.at_ns, told)
    seq = source.end if moment.seq is None else moment.seq
    check_within(source, seq)
    point = await starting_point(source, seq)
    await fold_on(point, source, seq, told)
    if point.at_ns == 0 and seq:
        point.at_ns = await last_time(source, seq)
    return point


async def reach_known(source: Source, moment: Moment, told: Told) -> Point:
    """Return the point at `moment`; the end of a history that goes on is now: who waits there waits until now.

    Raises NotInHistoryError for a time of which this history says nothing. `reach` takes such a time for the beginning,
    as who asks for all since then means it.
    """
    point = await reach(source, moment, told)
    if moment == Moment():
        point.at_ns = max(point.at_ns, source.now_ns())
    if moment.at_ns is not None and point.state.seq < source.first and not point.state.header.now_ns:
        raise before_history(source)
    return point


def before_history(source: Source) -> NotInHistoryError:
    """Return what is said of a time before history begins."""
    return NotInHistoryError(f"The moment lies before this history, which begins with sequence {source.first}.")


async def starting_point(source: Source, at_most: int) -> Point:
    """Return where folding begins to reach the sequence `at_most`."""
    state = await source.state(at_most)
    return Point(state, state.header.now_ns)


async def provable_start(source: Source, first: int, last: int) -> int:
    """Return where to begin so that every pass from `first` on can be decided again: not after its state's sequence."""
    async with aclosing(source.read(first - 1, last)) as frames:
        async for recorded in frames:
            head = recorded.frame.events[0]
            if isinstance(head, DecisionPass):
                return max(source.first, min(first, head.at_seq + 1))
    return first


async def last_time(source: Source, seq: int) -> int:
    """Return the time of the frame at `seq`."""
    async with aclosing(source.read(seq - 1, seq)) as frames:
        async for recorded in frames:
            return time_of(recorded)
    return 0


async def _reach_time(source: Source, at_ns: int, told: Told) -> Point:
    point = await starting_point(source, source.end)
    while point.at_ns > at_ns and point.state.seq >= source.first:
        point = await starting_point(source, point.state.seq - 1)
    if point.at_ns > at_ns:
        raise before_history(source)
    later: deque[Recorded] = deque()
    async with aclosing(source.read(point.state.seq, source.end)) as frames:
        async for recorded in frames:
            is_later = time_of(recorded) > at_ns
            if recorded.subject == DECISION:
                if is_later:
                    break
                while later:
                    point.take(later.popleft())
                point.take(recorded)
            elif later or is_later:
                later.append(recorded)
            else:
                point.take(recorded)
            if recorded.seq % FRAMES_PER_WORD == 0:
                told(f"Folding history: frame {recorded.seq}")
    return Point(point.state, max(at_ns, point.at_ns))
