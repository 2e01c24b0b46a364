"""What a reader of events asks for, and one answer to it. Pure: no I/O, no clock."""

from __future__ import annotations

import msgspec
from tidegate_events import events as e

from tidegate_gateway.view.model import Entry, Timeline

Cursor = tuple[int, int]
"""A place in history: sequence and index in the frame; everything up to it was looked at."""
PAST_FRAME = 10**6
"""An index behind the last event of any frame."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which events, and from where on; `last` asks for the newest so many instead of those after a place."""

    job: str | None = None
    tenant: str | None = None
    kinds: frozenset[str] = frozenset()
    except_kinds: frozenset[str] = frozenset()
    since_ns: int | None = None
    until_ns: int | None = None
    after: Cursor = (0, 0)
    limit: int = 200
    last: int | None = None

    def wants(self, event: e.Event) -> bool:
        """Say whether the event is one of those asked for, wherever it lies."""
        kind = type(event).__name__
        if kind in self.except_kinds or (self.kinds and kind not in self.kinds):
            return False
        if self.since_ns is not None and event.at_ns < self.since_ns:
            return False
        if self.until_ns is not None and event.at_ns >= self.until_ns:
            return False
        if self.job is not None and getattr(event, "job", None) != self.job:
            return False
        return self.tenant is None or getattr(event, "tenant", None) == self.tenant


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. Everything up to `cursor` was looked at; `more` says that something lies behind it.

    `complete` is False where looking back stopped before it found as many as were asked for.
    """

    entries: tuple[Entry, ...]
    cursor: Cursor
    more: bool
    end: int
    dropped: int | None = None
    complete: bool = True


def page_of(found: list[Entry], query: Query, end: int, dropped: int | None = None) -> Page:
    """Return the answer from all events that there are, in order, for a source that has them at hand."""
    if query.last is not None:
        matching = [entry for entry in found if query.wants(entry.event)][-query.last :]
        return Page(entries=tuple(matching), cursor=(end, PAST_FRAME), more=False, end=end, dropped=dropped)
    after = query.after
    matching = [entry for entry in found if (entry.seq, entry.index) > after and query.wants(entry.event)]
    shown = tuple(matching[: query.limit])
    more = len(matching) > query.limit
    cursor = (shown[-1].seq, shown[-1].index) if more else max(after, (end, PAST_FRAME))
    return Page(entries=shown, cursor=cursor, more=more, end=end, dropped=dropped)


def join(page: Page, timeline: Timeline, query: Query, end: int) -> Page:
    """Return what the database holds of a job (`page`) with what only memory has yet, up to `end`."""
    place = max(query.after, (page.end, PAST_FRAME))
    dropped = 0 if timeline.reaches(place) else timeline.dropped
    if page.more:
        return page
    left = msgspec.structs.replace(query, after=place, last=None, limit=max(1, query.limit - len(page.entries)))
    tail = page_of(timeline.entries(), left, end, dropped)
    if query.last is not None:
        return newest(page, tail, query.last)
    return msgspec.structs.replace(tail, entries=(*page.entries, *tail.entries))


def newest(page: Page, tail: Page, count: int) -> Page:
    """Return the newest events of a page and of what follows it."""
    entries = (*page.entries, *tail.entries)[-count:]
    return msgspec.structs.replace(tail, entries=entries, more=False, complete=page.complete or len(entries) >= count)


def parse_cursor(text: str) -> Cursor:
    """Return the place that `"<seq>.<index>"` or `"<seq>"` (past the whole frame) names."""
    seq, _, index = text.partition(".")
    return (int(seq), int(index) if index else PAST_FRAME)


def show_cursor(cursor: Cursor) -> str:
    """Return the place as text."""
    seq, index = cursor
    return str(seq) if index >= PAST_FRAME else f"{seq}.{index}"
