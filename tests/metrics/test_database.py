"""What is kept in PostgreSQL: whole batches, each once, by one writer; and no longer than asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest
from tidegate_metrics.aggregates import Row
from tidegate_metrics.database import Database, DatabaseAwayError, PositionTakenError
from tidegate_metrics.ledger import Batch, Position
from tidegate_metrics.totals import Total

from tests.metrics.conftest import migrated
from tests.metrics.samples import SECOND, START
from tests.support.postgres import PostgresServer

DAY = 86_400 * SECOND
PLACE = ("lab-a", "j1", "main", "n1")


@pytest.fixture
async def url(postgres: PostgresServer) -> str:
    return await migrated(postgres)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    made = Database(url)
    yield made
    await made.close()


def batch(before: Position, seq: int, at_ns: int = START) -> Batch:
    return Batch(
        before=before,
        after=Position("s", seq, at_ns),
        rows={(at_ns, "process.step", PLACE): Row(2, 7.0, 3.0, 4.0, 4.0)},
        series=[(("tidegate_env_steps_total", PLACE), Total(7.5, at_ns))],
        sources=[(("tidegate_env_steps_total", "j1.1.0.main.0"), Total(4.0, at_ns))],
        marks=[("n1", 2, seq)],
    )


async def fetch(url: str, sql: str) -> list[tuple[Any, ...]]:
    connection: Any = await asyncpg.connect(url, timeout=10)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


async def test_what_is_stored_is_loaded_and_stored_once(url: str, database: Database) -> None:
    assert (await database.load()).position == Position()
    first = batch(Position(), 1)
    assert await database.store(first)
    assert not await database.store(first), "its answer may have been lost"
    stored = await database.load()
    assert stored.position == first.after
    assert (list(stored.series), list(stored.sources)) == (first.series, first.sources)
    assert stored.marks == (("n1", 2, 1),)
    rows = await fetch(url, "SELECT name, tenant, job, component, node, samples, total FROM tidegate.metric_windows")
    assert rows == [("process.step", *PLACE, 2, 7.0)]


async def test_two_writers_are_found_out(database: Database) -> None:
    await database.store(batch(Position(), 1))
    with pytest.raises(PositionTakenError, match="another tidegate-metrics"):
        await database.store(batch(Position(), 2))
    assert (await database.load()).position.seq == 1


async def test_a_batch_that_fails_leaves_nothing(url: str, database: Database) -> None:
    bad = msgspec.structs.replace(batch(Position(), 1), marks=[("n1", 2, 2**70)])
    with pytest.raises(asyncpg.DataError):
        await database.store(bad)
    assert await fetch(url, "SELECT count(*) FROM tidegate.metric_windows") == [(0,)]
    assert (await database.load()).position == Position()


async def test_old_partitions_and_counters_go(url: str, database: Database) -> None:
    position = Position()
    for seq, age in enumerate((9, 8, 7, 0), start=1):
        await database.store(batch(position, seq, START - age * DAY))
        position = Position("s", seq, START - age * DAY)
    assert len(await database.tidy(START, retention_days=7)) == 2
    assert await database.tidy(START, retention_days=7) == []
    days = await fetch(url, "SELECT count(*), max(window_start) - min(window_start) FROM tidegate.metric_windows")
    assert (days[0][0], days[0][1].days) == (2, 7)
    assert len((await database.load()).series) == 1
    await database.tidy(START + DAY, retention_days=7)
    assert (await database.load()).series == ()


async def test_the_lag_of_the_read_models_is_asked_of_their_view(database: Database) -> None:
    assert await database.projection_lag() is None, "no generation is active yet"


async def test_without_tables_or_server_it_is_away_and_comes_back(postgres: PostgresServer) -> None:
    empty = Database(await postgres.fresh_database())
    with pytest.raises(DatabaseAwayError, match="does not exist"):
        await empty.load()
    await empty.close()
    database = Database(await migrated(postgres))
    await database.load()
    postgres.kill9()
    with pytest.raises(DatabaseAwayError):
        await database.load()
    with pytest.raises(DatabaseAwayError):
        await database.load()
    await postgres.start()
    assert (await database.load()).position == Position()
    await database.close()
