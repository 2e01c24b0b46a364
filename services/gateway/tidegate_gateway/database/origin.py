"""Tells whether tables and journal tell one history: a journal made anew must not be mixed with old rows."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from tidegate_events.journal.base import Journal, Recorded

JOURNAL_SECONDS_MAX = 2.5


def mark(first: Recorded) -> str:
    """Return what names a history: the id of its first event."""
    return first.frame.events[0].id


async def difference(journal: Journal, seq: int, known: str) -> str | None:
    """Return how the journal differs from the history that tables at `seq` tell, whose mark is `known`.

    Raises JournalError and TimeoutError while the journal is away.
    """
    if not seq:
        return None
    async with asyncio.timeout(JOURNAL_SECONDS_MAX):
        end = await journal.end()
        if seq > end:
            return f"the tables tell of frame {seq}, the journal ends at {end}"
        async with aclosing(journal.read(0, 1)) as frames:
            first = [mark(recorded) async for recorded in frames]
    if first != [known]:
        return f"the tables tell of a journal that began with {known}, this one began with {first[0]}"
    return None
