"""Reads events from the journal itself: exact, in its order, a bounded number of frames for each answer."""

from __future__ import annotations

import time
from contextlib import aclosing

from tidegate_events.journal.base import Journal, Recorded

from tidegate_gateway.history.query import PAST_FRAME, Cursor, Page, Query
from tidegate_gateway.view.model import Entry

FRAMES_PER_ANSWER = 2000
FRAMES_PER_LOOK_BACK = 500
LOOK_BACK_FRAMES_MAX = 20_000
LOOK_BACK_SECONDS_MAX = 1.5


async def read(journal: Journal, query: Query, end: int) -> Page:
    """Return what matches among the frames up to `end`, the journal's last one."""
    if query.last is not None:
        return await _newest(journal, query, query.last, end)
    return await _after(journal, query, end)


async def _after(journal: Journal, query: Query, end: int) -> Page:
    first_seq = query.after[0] - 1 if query.after[1] < PAST_FRAME else query.after[0]
    until = min(end, max(0, first_seq) + FRAMES_PER_ANSWER)
    found: list[Entry] = []
    if first_seq >= until:
        return Page(entries=(), cursor=query.after, more=False, end=end)
    async with aclosing(journal.read(max(0, first_seq), until)) as frames:
        async for recorded in frames:
            entries = _entries(recorded)
            found.extend(
                entry for entry in entries if (entry.seq, entry.index) > query.after and query.wants(entry.event)
            )
            if len(found) > query.limit:
                break
    shown = tuple(found[: query.limit])
    cursor: Cursor = (until, PAST_FRAME)
    if len(found) > query.limit:
        cursor = (shown[-1].seq, shown[-1].index)
    return Page(entries=shown, cursor=cursor, more=cursor < (end, PAST_FRAME), end=end)


async def _newest(journal: Journal, query: Query, count: int, end: int) -> Page:
    """Look back portion by portion until there are enough, or the bound on frames or time is reached."""
    found: list[Entry] = []
    high = end
    began = time.monotonic()
    while high > 0 and len(found) < count:
        if end - high >= LOOK_BACK_FRAMES_MAX or time.monotonic() - began > LOOK_BACK_SECONDS_MAX:
            break
        low = max(0, high - FRAMES_PER_LOOK_BACK)
        portion: list[Entry] = []
        async with aclosing(journal.read(low, high)) as frames:
            async for recorded in frames:
                portion.extend(entry for entry in _entries(recorded) if query.wants(entry.event))
        found = [*portion, *found]
        high = low
    complete = high == 0 or len(found) >= count
    return Page(entries=tuple(found[-count:]), cursor=(end, PAST_FRAME), more=False, end=end, complete=complete)


def _entries(recorded: Recorded) -> list[Entry]:
    frame = recorded.frame
    return [Entry(recorded.seq, index, event, frame.writer, False) for index, event in enumerate(frame.events)]
