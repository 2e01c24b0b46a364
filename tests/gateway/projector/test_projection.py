"""The tables tell what a fold of the journal tells, for random histories cut into any batches, with crashes between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tidegate_events.journal.base import Recorded
from tidegate_gateway.database import generations, migrations
from tidegate_gateway.database.connection import Connection, Database
from tidegate_gateway.database.generations import Generation
from tidegate_gateway.database.loader import load_job, load_view
from tidegate_gateway.projector.projection import Projection
from tidegate_gateway.projector.store import Head, MovedError
from tidegate_gateway.view.model import TIMELINE_FIRST_MAX
from tidegate_gateway.view.projection import View

from tests.gateway.projector.histories import STORIES, Story, snapshot
from tests.support.postgres import PostgresServer

ENDED_JOBS_MAX = 2
HEAD = Head(0, 0, "test")
OF_THE_PROJECTOR = {"caught_up_at", "seen_at", "head_seq", "events_ahead", "projector"}


async def fresh(database: Database) -> Generation:
    """Return an empty active generation."""
    async with database.connection() as connection:
        await migrations.migrate(connection)
        await connection.execute("DELETE FROM tidegate.generations WHERE state <> 'active'")
        row = await connection.fetchrow("SELECT generation FROM tidegate.generations")
        if row is not None:
            await connection.execute(f"DROP SCHEMA tg_{row['generation']} CASCADE")
        return await generations.ensure_active(connection)


async def dump(connection: Connection, schema: str) -> dict[str, list[dict[str, Any]]]:
    """Return every row of every table of a generation, but for what a projector says of itself."""
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY 1", schema)
    found = {}
    for table in tables:
        rows = await connection.fetch(f"SELECT * FROM {schema}.{table['tablename']}")
        plain = [{key: value for key, value in row.items() if key not in OF_THE_PROJECTOR} for row in rows]
        found[table["tablename"]] = sorted(plain, key=repr)
    return found


async def project(database: Database, generation: Generation, frames: list[Recorded], cuts: list[int]) -> None:
    """Write frames batch by batch; a negative cut is a crash, after which all that is known is in the tables."""
    projection = await Projection.load(database, generation, ended_jobs_max=ENDED_JOBS_MAX)
    at = projection.seq
    for cut in [*cuts, len(frames)]:
        batch = frames[at : at + max(1, abs(cut))]
        if not batch:
            return
        await projection.write(batch, HEAD)
        at = projection.seq
        if cut < 0:
            projection = await Projection.load(database, generation, ended_jobs_max=ENDED_JOBS_MAX)
            assert projection.seq == at


async def check(url: str, story: Story, cuts: list[int]) -> None:
    folded = View(ended_jobs_max=ENDED_JOBS_MAX)
    for recorded in story.frames:
        folded.apply(recorded)
    database = Database(url, name="test")
    await database.open()
    try:
        generation = await fresh(database)
        await project(database, generation, story.frames, cuts)
        async with database.transaction(read_only=True) as connection:
            loaded = await load_view(connection, generation.schema, ended_jobs_max=ENDED_JOBS_MAX)
            assert snapshot(loaded) == snapshot(folded)
            for job in folded.jobs.values():
                read = await load_job(connection, generation.schema, job.id)
                assert read is not None
                assert read.timeline.entries() == job.timeline.entries()
            rows = await dump(connection, generation.schema)
        assert len(rows["events"]) == folded.events
        assert sum(row["void"] for row in rows["events"]) == folded.void_events
        # The whole at once gives the same rows: what a rebuild after a drop does.
        again = await fresh(database)
        await project(database, again, story.frames, [])
        async with database.transaction(read_only=True) as connection:
            assert await dump(connection, again.schema) == rows
    finally:
        await database.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([("lost", 0, ""), ("phase", 0, ""), ("submit", 0, ""), ("submit", 0, ""), ("forget", 0, "")], [2])
@example([("lost", 0, ""), ("forget", 0, ""), ("join", 0, ""), ("pass", 0, "")], [-9, 1])
@given(STORIES, st.lists(st.integers(-6, 6), max_size=20))
def test_the_tables_are_a_fold_of_the_journal(
    postgres: PostgresServer, actions: list[tuple[str, int, str]], cuts: list[int]
) -> None:
    story = Story()
    for action in (("submit", 1, ""), ("pass", 0, ""), ("start", 0, ""), *actions):
        story.act(*action)
    asyncio.run(check(postgres.url, story, cuts))


async def test_lag_is_told_by_a_view(database: Database) -> None:
    generation = await fresh(database)
    story = Story()
    projection = await Projection.load(database, generation)
    await projection.write(story.frames[:2], Head(10, 20, "test"))
    async with database.connection() as connection:
        assert (await _lag(connection))[:3] == (2, 8, 20)
        await connection.execute(f"UPDATE {generation.schema}.position SET caught_up_at = now() - interval '1 hour'")
        assert (await _lag(connection))[3] >= 3600
    await projection.beat(Head(2, 0, "test"))
    async with database.connection() as connection:
        assert await _lag(connection) == (2, 0, 0, 0)
        # Nobody has looked for a minute: it may have caught up once, but nobody knows what came since.
        await connection.execute(
            f"UPDATE {generation.schema}.position SET (seen_at, caught_up_at)"
            " = (now() - interval '60 s', now() - interval '60 s')"
        )
        assert (await _lag(connection))[3] >= 60


async def _lag(connection: Connection) -> tuple[Any, ...]:
    row = await connection.fetchrow(
        "SELECT seq, lag_frames, lag_events, lag_seconds FROM tidegate.projection_status WHERE state = 'active'"
    )
    return tuple(row)


async def test_only_one_of_two_projectors_writes_a_frame(database: Database) -> None:
    generation = await fresh(database)
    story = Story()
    first = await Projection.load(database, generation)
    second = await Projection.load(database, generation)
    await first.write(story.frames[:2], HEAD)
    with pytest.raises(MovedError):
        await second.write(story.frames[:1], HEAD)
    async with database.connection() as connection:
        assert await connection.fetchval("SELECT count(*) FROM tidegate.events") == 2


def test_long_timelines_come_back_as_they_were_kept(postgres: PostgresServer) -> None:
    story = Story()
    for action in (("submit", 1, ""), ("pass", 0, ""), ("start", 0, ""), ("start", 1, ""), ("pass", 0, "")):
        story.act(*action)
    for step in range(1100):
        story.act("phase", step % 2, "")
    job = story.view.jobs["j1"]
    assert job.timeline.dropped > 0
    assert len(job.timeline.entries()) > TIMELINE_FIRST_MAX
    asyncio.run(check(postgres.url, story, [400, -300]))
