"""How long the gateway takes to answer for the events of one job, with ten million events in PostgreSQL.

Prints one JSON line: for each kind of question the median, the 99th percentile and the longest of many answers in ms,
each about another job, through the gateway's own HTTP application. Jobs have ended long ago, so that nothing is in the
gateway's memory. The server has small buffers and was restarted after the rows were made. `select_1` is a control: on a
machine that does other things as well, its tail says how much of the others' is theirs.

Run: python benchmarks/events_query.py [--rows 10000000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import asyncpg
import httpx
import structlog
from tidegate_events.clock import SystemClock
from tidegate_events.journal.memory import MemoryJournal
from tidegate_gateway import shell
from tidegate_gateway.asks.memory import MemoryAsker
from tidegate_gateway.database import generations, migrations
from tidegate_gateway.database.connection import Database
from tidegate_gateway.http.app import application
from tidegate_gateway.settings import Settings
from tidegate_gateway.view.projection import View

from tests.support.postgres import PostgresServer

GOAL_MS = 100
JOBS = 9973  # prime, so that the rows of a job lie everywhere
EVENTS_PER_FRAME = 5
LONG_JOB_ROWS = 100_000
ASKED = 200
SEED = 1
BASE_NS = 1_700_000_000_000_000_000

# One row in a hundred is of the long job j-0; the others are spread over all jobs, so each lies all over the table.
_ROWS = """
INSERT INTO {schema}.events (seq, index, id, kind, void, at_ns, tenant, job_id, attempt, rank, node, service, instance,
    epoch, writer_seq, doc)
SELECT n / {per_frame} + 1, n % {per_frame}, 'e-' || n, kind, false, {base} + n * 1000000, 'lab-' || job % 20,
    'j-' || job, 1, 0, 'n-' || job % 50, 'node', 'n-' || job % 50, 1, n,
    format('{{"kind":"%s","id":"e-%s","at_ns":%s,"tenant":"lab-%s","job":"j-%s","traceparent":"00-%s-%s-01","attempt":1,'
        '"rank":0,"phase":"%s","step":%s}}', kind, n, {base} + n * 1000000, job % 20, job, md5(job::text),
        left(md5(job::text), 16), CASE n % 2 WHEN 0 THEN 'sampling' ELSE 'learning' END, n)::json
FROM (
    SELECT n, CASE WHEN n % 100 = 0 THEN 0 ELSE 1 + (n * 7919) % {jobs} END AS job, 'PhaseChanged' AS kind
    FROM generate_series({first}::bigint, {last}::bigint) AS n
) AS drawn
"""
_BLOCKS = """
INSERT INTO {schema}.event_blocks SELECT seq / 1024, min(at_ns), max(at_ns) FROM {schema}.events GROUP BY 1
"""
ROWS_PER_STATEMENT = 1_000_000


async def fill(url: str, rows: int) -> float:
    """Make the generation and its rows; return the seconds that took."""
    began = time.perf_counter()
    connection = await asyncpg.connect(url)
    try:
        await migrations.migrate(connection)
        generation = await generations.ensure_active(connection)
        schema = generation.schema
        # Indexes are made as the migration makes them, but after the rows, which is quicker.
        indexes = await connection.fetch(
            "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = $1 AND tablename = 'events'"
            " AND indexname <> 'events_pkey'",
            schema,
        )
        for index in indexes:
            await connection.execute(f"DROP INDEX {schema}.{index['indexname']}")
        values = {"schema": schema, "per_frame": EVENTS_PER_FRAME, "base": BASE_NS, "jobs": JOBS}
        for first in range(0, rows, ROWS_PER_STATEMENT):
            last = min(rows, first + ROWS_PER_STATEMENT) - 1
            await connection.execute(_ROWS.format(first=first, last=last, **values))
        for index in indexes:
            await connection.execute(index["indexdef"])
        await connection.execute(_BLOCKS.format(schema=schema))
        await connection.execute(f"UPDATE {schema}.position SET seq = $1, events = $2", rows // EVENTS_PER_FRAME, rows)
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()
    return time.perf_counter() - began


async def ask_ms(client: httpx.AsyncClient, questions: list[dict[str, Any]]) -> dict[str, float]:
    """Return how long the answers took."""
    took = []
    for question in questions:
        began = time.perf_counter()
        answer = await client.get("/v1/events", params=question)
        took.append((time.perf_counter() - began) * 1000)
        if answer.status_code != 200 or not answer.json()["events"]:
            raise RuntimeError(f"{question}: {answer.status_code} {answer.text[:300]}")
    return _quantiles(took)


async def control_ms(database: Database) -> dict[str, float]:
    """Return how long `SELECT 1` takes over the same pool: what the machine adds to everything just now."""
    took = []
    for _ in range(ASKED):
        began = time.perf_counter()
        async with database.connection() as connection:
            await connection.fetchval("SELECT 1")
        took.append((time.perf_counter() - began) * 1000)
    return _quantiles(took)


def _quantiles(took: list[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {
        "p50_ms": round(statistics.median(ordered), 2),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
        "max_ms": round(ordered[-1], 2),
    }


def questions(rows: int) -> dict[str, list[dict[str, Any]]]:
    """Return what is asked, by name."""
    draw = random.Random(SEED)
    frames = rows // EVENTS_PER_FRAME
    jobs = [f"j-{draw.randrange(1, JOBS + 1)}" for _ in range(ASKED)]
    moments = [BASE_NS + draw.randrange(rows // 2) * 1_000_000 for _ in range(ASKED)]
    places = [f"{draw.randrange(frames // 2)}.0" for _ in range(ASKED)]
    return {
        "job": [{"job": job} for job in jobs],
        "job_newest": [{"job": job, "last": 200} for job in jobs],
        "job_of_100000": [{"job": "j-0", "after": place} for place in places],
        "job_since": [{"job": job, "since": at} for job, at in zip(jobs, moments, strict=True)],
        "job_kind": [{"job": job, "kind": "PhaseChanged"} for job in jobs],
        "kind_since": [{"kind": "PhaseChanged", "since": at} for at in moments],
        "tenant_between": [{"tenant": "lab-3", "since": at, "until": at + 60_000_000_000} for at in moments],
    }


async def measure(rows: int) -> dict[str, Any]:
    """Fill a server, ask, and return the result."""
    server = PostgresServer(max_wal_size="4GB", checkpoint_timeout="30min", maintenance_work_mem="512MB")
    await server.start()
    try:
        fill_seconds = await fill(server.url, rows)
        await server.restart()
        database = Database(server.url, name="benchmark", command_seconds_max=shell.DATABASE_COMMAND_SECONDS_MAX)
        await database.open()
        with tempfile.TemporaryDirectory() as directory:
            settings = Settings(data_dir=Path(directory))
            journal = _LongJournal(rows // EVENTS_PER_FRAME)
            gateway = shell.build(settings, journal, MemoryAsker(), SystemClock(), (database, _view(rows)))
            gateway.fold._target = 0
            transport = httpx.ASGITransport(application(gateway))
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=60) as client:
                answers = {name: await ask_ms(client, asked) for name, asked in questions(rows).items()}
            answers["select_1"] = await control_ms(database)
        size = await _size(database)
        await database.close()
    finally:
        server.remove()
    longest = max(answer["p99_ms"] for name, answer in answers.items() if name.startswith("job"))
    return {
        "rows": rows,
        "table_and_indexes_bytes": size,
        "fill_seconds": round(fill_seconds),
        **answers,
        "goal_job_p99_ms": GOAL_MS,
        "reached": longest <= GOAL_MS,
    }


class _LongJournal(MemoryJournal):
    """A journal that ends where the projection stands; nothing is read from it."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self._end = end

    async def end(self) -> int:
        return self._end


def _view(rows: int) -> View:
    view = View()
    view.seq = rows // EVENTS_PER_FRAME
    return view


async def _size(database: Database) -> int:
    async with database.connection() as connection:
        return int(await connection.fetchval("SELECT pg_total_relation_size('tg_1.events')"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    print(json.dumps(asyncio.run(measure(parser.parse_args().rows))))


if __name__ == "__main__":
    main()
