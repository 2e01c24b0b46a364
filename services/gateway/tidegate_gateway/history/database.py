"""Reads events from the projection: by index, however long history is. It may be a little behind the journal.

The order is the journal's, and writers' clocks differ, so a time is no place in it: `event_blocks` says which runs of
frames hold events of a time, and those are looked through in order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate_gateway.database.connection import Connection
from tidegate_gateway.database.documents import entry_of
from tidegate_gateway.database.loader import EVENT_COLUMNS
from tidegate_gateway.history.query import PAST_FRAME, Cursor, Page, Query
from tidegate_gateway.view.model import Entry

BLOCK_FRAMES = 1024
"""As in the migration: how many frames share one row of `event_blocks`."""
RUNS_MAX = 100
"""Runs of frames that one answer looks through."""

Run = tuple[int, int]
"""Frames from, and up to but without."""


async def read(connection: Connection, schema: str, query: Query) -> Page:
    """Return what matches up to a generation's position; to be called in a transaction of one snapshot."""
    end = int(await connection.fetchval(f"SELECT seq FROM {schema}.position"))
    newest_first = query.last is not None
    wanted = query.limit + 1 if query.last is None else query.last
    runs = await _runs(connection, schema, query, end)
    if newest_first:
        runs.reverse()
    looked_at = runs[:RUNS_MAX]
    found: list[Entry] = []
    for run in looked_at:
        if len(found) >= wanted:
            break
        found += await _read_run(connection, schema, _Part(query, run, wanted - len(found)))
    if newest_first:
        complete = len(found) >= wanted or len(looked_at) == len(runs)
        entries = tuple(reversed(found))
        return Page(entries=entries, cursor=(end, PAST_FRAME), more=False, end=end, complete=complete)
    return _page(found, query, _looked_up_to(query, runs, looked_at, end), end)


def _page(found: list[Entry], query: Query, looked_up_to: Cursor, end: int) -> Page:
    shown = tuple(found[: query.limit])
    cursor = (shown[-1].seq, shown[-1].index) if len(found) > query.limit else max(query.after, looked_up_to)
    return Page(entries=shown, cursor=cursor, more=cursor < (end, PAST_FRAME), end=end, dropped=0)


def _looked_up_to(query: Query, runs: list[Run], looked_at: list[Run], end: int) -> Cursor:
    """Return the place up to which nothing more can match: the end, unless there were too many runs."""
    if len(looked_at) == len(runs):
        return (end, PAST_FRAME)
    return (min(end, looked_at[-1][1] - 1), PAST_FRAME)


async def _runs(connection: Connection, schema: str, query: Query, end: int) -> list[Run]:
    """Return the runs of frames that can hold what is asked for, in order."""
    first = query.after[0] if query.last is None else 0
    if query.job is not None:
        # What was said about a job before it was there is history, but not the job's.
        submitted = await connection.fetchval(f"SELECT submitted_seq FROM {schema}.jobs WHERE job_id = $1", query.job)
        return [(max(first, submitted or 0), end + 1)]
    if query.since_ns is None and query.until_ns is None:
        return [(first, end + 1)]
    rows = await connection.fetch(
        f"SELECT block FROM {schema}.event_blocks WHERE block >= $1 AND ($2::bigint IS NULL OR at_ns_max >= $2)"
        " AND ($3::bigint IS NULL OR at_ns_min < $3) ORDER BY block",
        *(first // BLOCK_FRAMES, query.since_ns, query.until_ns),
    )
    runs: list[Run] = []
    for row in rows:
        low = max(first, row["block"] * BLOCK_FRAMES)
        high = min(end, (row["block"] + 1) * BLOCK_FRAMES - 1) + 1
        if runs and runs[-1][1] == low:
            runs[-1] = (runs[-1][0], high)
        else:
            runs.append((low, high))
    return runs


class _Part(msgspec.Struct, frozen=True):
    """What is looked for in one run of frames."""

    query: Query
    run: Run
    limit: int


async def _read_run(connection: Connection, schema: str, part: _Part) -> list[Entry]:
    query = part.query
    direction = "ASC" if query.last is None else "DESC"
    where = _Where(query, part.run)
    by_kind = bool(query.kinds) and query.job is None
    if query.kinds and not by_kind:
        where.add("kind = ANY({}::text[])", sorted(query.kinds))
    select = f"SELECT {EVENT_COLUMNS} FROM {schema}.events WHERE {where.text}"
    order = f"ORDER BY seq {direction}, index {direction} LIMIT {part.limit}"
    if by_kind:
        # One ordered look into the index for each kind, instead of sorting all events of several kinds.
        each = f"SELECT e.* FROM unnest({where.value(sorted(query.kinds))}::text[]) AS wanted (kind)"
        select = f"{each} CROSS JOIN LATERAL ({select} AND events.kind = wanted.kind {order}) AS e"
    rows = await connection.fetch(f"{select} {order}", *where.values)
    return [entry_of(row) for row in rows]


class _Where:
    """Conditions and their values."""

    def __init__(self, query: Query, run: Run) -> None:
        self.values: list[Any] = []
        self._conditions: list[str] = []
        # One lower bound for the index to start at: beside a second one it might begin at the weaker.
        after = (run[0], -1) if query.last is not None else max(query.after, (run[0], -1))
        self._conditions.append(f"(seq, index) > ({self.value(after[0])}::bigint, {self.value(after[1])}::integer)")
        self.add("seq < {}", run[1])
        if query.job is not None:
            self.add("job_id = {}", query.job)
        if query.tenant is not None:
            self.add("tenant = {}", query.tenant)
        if query.except_kinds:
            self.add("kind <> ALL({}::text[])", sorted(query.except_kinds))
        if query.since_ns is not None:
            self.add("at_ns >= {}", query.since_ns)
        if query.until_ns is not None:
            self.add("at_ns < {}", query.until_ns)

    @property
    def text(self) -> str:
        return " AND ".join(self._conditions)

    def value(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"

    def add(self, condition: str, value: Any) -> None:
        self._conditions.append(condition.format(self.value(value)))


def is_deep(query: Query) -> bool:
    """Say whether the journal alone would have to be looked through for this."""
    filtered = (query.kinds, query.except_kinds, query.tenant, query.since_ns, query.until_ns, query.last)
    return any(value not in (None, frozenset()) for value in filtered)
