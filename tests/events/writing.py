"""Small frames for tests: who writes is said, what is written does not matter much."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from tidegate_events.events import CancelRequested
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Journal, Recorded

FOLLOW_SECONDS_MAX = 60


def frame(instance: str = "g1", seq: int = 1, *, epoch: int = 1, padding: str = "") -> Frame:
    """Return frame number `seq` of a gateway; `padding` makes it large."""
    writer = Writer("gateway", instance, epoch, seq)
    event = CancelRequested(id=writer.event_id(0), at_ns=seq, tenant="lab", job=f"j-{instance}-{seq}", actor=padding)
    return Frame(writer, (event,))


async def take(journal: Journal, after: int, count: int) -> list[Recorded]:
    """Return the next `count` frames after `after`, waiting for them."""
    taken: list[Recorded] = []
    async with asyncio.timeout(FOLLOW_SECONDS_MAX), aclosing(journal.follow(after)) as frames:
        async for recorded in frames:
            taken.append(recorded)
            if len(taken) == count:
                break
    return taken


async def read(journal: Journal, after: int, until: int) -> list[Recorded]:
    """Return what `read` yields."""
    async with aclosing(journal.read(after, until)) as frames:
        return [recorded async for recorded in frames]
