"""What this service keeps in PostgreSQL: a batch is stored whole, with its position, or not at all.

One connection, made anew when it is lost; every wait on it has a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from tidegate_metrics import partitions
from tidegate_metrics.aggregates import Row, RowKey
from tidegate_metrics.ledger import Batch, Position, Stored
from tidegate_metrics.totals import FORGET_SECONDS, Total

CONNECT_SECONDS_MAX = 3.0
COMMAND_SECONDS_MAX = 15.0
CLOSE_SECONDS_MAX = 2.0
COLUMNS = (
    "window_start",
    "name",
    "tenant",
    "job",
    "component",
    "node",
    "samples",
    "total",
    "smallest",
    "largest",
    "newest",
)
_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.UndefinedTableError,  # the migrations were not applied yet
    asyncpg.InvalidSchemaNameError,
    asyncpg.InvalidCatalogNameError,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DatabaseAwayError(Exception):
    """PostgreSQL did not do it within the bound, or has no tables yet. Retriable."""


class PositionTakenError(Exception):
    """Somebody else stored batches meanwhile: two services count the same samples. Not retriable."""


class Database:
    """The rows, counters and marks of this service."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None
        self._one_at_a_time = asyncio.Lock()

    async def load(self) -> Stored:
        """Return what was stored last. Raises DatabaseAwayError."""
        async with self._transaction() as connection:
            position = await _position(connection)
            series = await connection.fetch("SELECT name, labels, value, at_ns FROM tidegate.metric_totals")
            sources = await connection.fetch("SELECT name, source, value, at_ns FROM tidegate.metric_sources")
            marks = await connection.fetch("SELECT node, incarnation, seq FROM tidegate.telemetry_marks")
        return Stored(
            position=position,
            series=tuple(((r["name"], _labels(r["labels"])), Total(r["value"], r["at_ns"])) for r in series),
            sources=tuple(((r["name"], r["source"]), Total(r["value"], r["at_ns"])) for r in sources),
            marks=tuple((r["node"], r["incarnation"], r["seq"]) for r in marks),
        )

    async def store(self, batch: Batch) -> bool:
        """Store a batch; return False if it was stored before (its answer had been lost).

        Raises DatabaseAwayError and PositionTakenError.
        """
        async with self._transaction() as connection:
            position = await _position(connection, lock=True)
            if position == batch.after:
                return False
            if position != batch.before:
                raise PositionTakenError(
                    f"the stored position is {position}, not {batch.before}: another tidegate-metrics writes to this "
                    "database; run one"
                )
            for day in sorted({partitions.day_of(key[0]) for key in batch.rows}):
                await connection.execute(partitions.create(day))
            await connection.copy_records_to_table(
                partitions.TABLE,
                schema_name=partitions.SCHEMA,
                columns=COLUMNS,
                records=[_record(key, row) for key, row in batch.rows.items()],
            )
            await _store_counters(connection, batch)
            after = batch.after
            await connection.execute(
                "UPDATE tidegate.telemetry_position SET stream = $1, seq = $2, at_ns = $3, written_at = now()",
                after.stream,
                after.seq,
                after.at_ns,
            )
        return True

    async def tidy(self, now_ns: int, retention_days: int) -> list[str]:
        """Drop what is past its time; return the names of the partitions. Raises DatabaseAwayError."""
        async with self._transaction() as connection:
            children = await connection.fetch(
                "SELECT child.relname FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid "
                "WHERE inhparent = to_regclass('tidegate.metric_windows')"
            )
            gone = partitions.expired((row["relname"] for row in children), now_ns, retention_days)
            for name in gone:
                await connection.execute(partitions.drop(name))
            oldest = now_ns - FORGET_SECONDS * 1_000_000_000
            await connection.execute("DELETE FROM tidegate.metric_totals WHERE at_ns < $1", oldest)
            await connection.execute("DELETE FROM tidegate.metric_sources WHERE at_ns < $1", oldest)
        return gone

    async def projection_lag(self) -> tuple[float, int] | None:
        """Return how far the active read models are behind, in seconds and events; None where there are none."""
        async with self._transaction() as connection:
            row = await connection.fetchrow(
                "SELECT lag_seconds, lag_events FROM tidegate.projection_status WHERE state = 'active'"
            )
        return None if row is None else (float(row["lag_seconds"]), int(row["lag_events"]))

    async def close(self) -> None:
        """Close the connection, in good order where that is quick."""
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed():
            return
        try:
            await connection.close(timeout=CLOSE_SECONDS_MAX)
        except _AWAY:
            connection.terminate()

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Any, None]:
        async with self._one_at_a_time:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await asyncpg.connect(
                        self._url,
                        timeout=CONNECT_SECONDS_MAX,
                        command_timeout=COMMAND_SECONDS_MAX,
                        server_settings={
                            "application_name": "tidegate-metrics",
                            # The server gives up as well: a client that was killed cannot cancel what it began.
                            "statement_timeout": str(int(COMMAND_SECONDS_MAX * 1000)),
                            "lock_timeout": str(int(COMMAND_SECONDS_MAX * 1000)),
                            "idle_in_transaction_session_timeout": str(int(COMMAND_SECONDS_MAX * 2000)),
                        },
                    )
                async with self._connection.transaction():
                    yield self._connection
            except _AWAY as error:
                connection, self._connection = self._connection, None
                if connection is not None:
                    connection.terminate()  # what became of a commit is read from the position later
                why = f"{type(error).__name__}: {error}".split("\n", maxsplit=1)[0][:200]
                raise DatabaseAwayError(f"PostgreSQL is away: {why}") from error


async def _position(connection: Any, *, lock: bool = False) -> Position:
    statement = "SELECT stream, seq, at_ns FROM tidegate.telemetry_position"
    row = await connection.fetchrow(statement + (" FOR UPDATE" if lock else ""))
    return Position(row["stream"], row["seq"], row["at_ns"]) if row is not None else Position()


async def _store_counters(connection: Any, batch: Batch) -> None:
    await connection.execute(
        "INSERT INTO tidegate.metric_totals (name, labels, value, at_ns) "
        "SELECT * FROM unnest($1::text[], $2::text[], $3::double precision[], $4::bigint[]) "
        "ON CONFLICT (name, labels) DO UPDATE SET value = excluded.value, at_ns = excluded.at_ns",
        [series[0] for series, _ in batch.series],
        [msgspec.json.encode(series[1]).decode() for series, _ in batch.series],
        [total.value for _, total in batch.series],
        [total.at_ns for _, total in batch.series],
    )
    await connection.execute(
        "INSERT INTO tidegate.metric_sources (name, source, value, at_ns) "
        "SELECT * FROM unnest($1::text[], $2::text[], $3::double precision[], $4::bigint[]) "
        "ON CONFLICT (name, source) DO UPDATE SET value = excluded.value, at_ns = excluded.at_ns",
        [source[0] for source, _ in batch.sources],
        [source[1] for source, _ in batch.sources],
        [total.value for _, total in batch.sources],
        [total.at_ns for _, total in batch.sources],
    )
    await connection.execute(
        "INSERT INTO tidegate.telemetry_marks (node, incarnation, seq) "
        "SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) "
        "ON CONFLICT (node) DO UPDATE SET incarnation = excluded.incarnation, seq = excluded.seq, written_at = now()",
        [mark[0] for mark in batch.marks],
        [mark[1] for mark in batch.marks],
        [mark[2] for mark in batch.marks],
    )


def _record(key: RowKey, row: Row) -> tuple[Any, ...]:
    window_ns, name, place = key
    start = _EPOCH + timedelta(microseconds=window_ns // 1000)
    return (start, name, *place, row.samples, row.total, row.smallest, row.largest, row.newest)


def _labels(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])
