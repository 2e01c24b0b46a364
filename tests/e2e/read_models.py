"""Looks at the read models of a running stack past every service: rows by SQL, the journal from the bus."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
from tidegate_events import bus
from tidegate_events.bus import BusSettings
from tidegate_events.events import AnyEvent
from tidegate_events.journal.nats import NatsJournal
from tidegate_local.home import StackRecord

from tests.e2e.running import RunningStack

SQL_SECONDS_MAX = 10.0
ENDS = {"JobCompleted": "completed", "JobFailed": "failed", "JobCancelled": "cancelled", "JobRejected": "rejected"}

Place = tuple[int, int, str]


def rows(record: StackRecord, sql: str, *arguments: Any) -> list[asyncpg.Record]:
    """Return the rows of a query, asked as the operator."""

    async def ask() -> list[asyncpg.Record]:
        connection = await asyncpg.connect(record.database_url, timeout=SQL_SECONDS_MAX)
        try:
            found: list[asyncpg.Record] = await connection.fetch(sql, *arguments, timeout=SQL_SECONDS_MAX)
            return found
        finally:
            await connection.close(timeout=SQL_SECONDS_MAX)

    return asyncio.run(ask())


def journal(record: StackRecord) -> dict[Place, AnyEvent]:
    """Return every event of the journal by its place and id."""

    async def read() -> dict[Place, AnyEvent]:
        login = BusSettings(url=record.bus_url, user=record.bus_user, password=record.bus_password, name="e2e")
        client = await bus.connect(login)
        try:
            log = NatsJournal(client)
            return {
                (recorded.seq, index, event.id): event
                async for recorded in log.read(0, await log.end())
                for index, event in enumerate(recorded.frame.events)
            }
        finally:
            await client.close()

    return asyncio.run(read())


def assert_whole(stack: RunningStack, *jobs: str) -> None:
    """The rows tell of the journal's every event, once, and of the jobs what its last word on them says."""
    stack.until(lambda: position(stack.record) >= _end(stack.record), "the read models at the journal's end", 30)
    events = journal(stack.record)
    last = max(seq for seq, _, _ in events)
    found = [
        (row["seq"], row["index"], row["id"])
        for row in rows(stack.record, "SELECT seq, index, id FROM tidegate.events WHERE seq <= $1", last)
    ]
    assert len(found) == len(set(found))
    assert set(found) == set(events)
    states = {row["job_id"]: row["state"] for row in rows(stack.record, "SELECT job_id, state FROM tidegate.jobs")}
    for job in jobs:
        ended = [ENDS[type(event).__name__] for event in events.values() if _ends(event, job)]
        assert [states[job]] == ended


def _ends(event: AnyEvent, job: str) -> bool:
    return type(event).__name__ in ENDS and getattr(event, "job", None) == job


def position(record: StackRecord) -> int:
    """Return up to which frame the rows tell; 0 while the database is away."""
    try:
        found = rows(record, "SELECT seq FROM tidegate.position")
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return 0
    return int(found[0]["seq"]) if found else 0


def _end(record: StackRecord) -> int:
    return max((seq for seq, _, _ in journal(record)), default=0)
