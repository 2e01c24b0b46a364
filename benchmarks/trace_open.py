"""What opening a long job's trace costs: 100,000 phase changes, derived, kept in PostgreSQL, answered over HTTP, drawn.

Prints one JSON line. `derive_us_per_event` is the deriver's own cost, `spans` what is left of the job by its caps,
`open_ms` the median of whole requests to `GET /api/v3/traces/{trace_id}` in the process (no network) beside the spans
of 200 other jobs, `draw_ms` of the command line's tree, all spans shown.

Run: python benchmarks/trace_open.py
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
import msgspec
from tidegate.cli import spans as reading
from tidegate.cli import trace as tree
from tidegate_events import events as e
from tidegate_events import trace
from tidegate_events.clock import ManualClock
from tidegate_events.journal.base import Recorded
from tidegate_events.journal.memory import MemoryJournal
from tidegate_gateway import shell
from tidegate_gateway.asks.memory import MemoryAsker
from tidegate_gateway.database import generations
from tidegate_gateway.database.connection import Database
from tidegate_gateway.database.migrations import migrate
from tidegate_gateway.http.app import application
from tidegate_gateway.settings import Settings
from tidegate_gateway.traces import store
from tidegate_gateway.traces.derive import SpanDeriver
from tidegate_gateway.traces.span import Span

from tests.support.cluster import SECOND, Cluster, spec
from tests.support.postgres import PostgresServer

PHASE_CHANGES = 100_000
EVENTS_PER_FRAME = 50
OTHER_JOBS = 200
OPENS = 20
JOB = "j-long"


def history() -> Iterator[tuple[Recorded, tuple[bool, ...]]]:
    """Yield the frames of a job that changes its phase all the time, and that all their events count."""
    cluster = Cluster()
    cluster.node("n1", 4000)
    cluster.submit(spec(1000), JOB)
    cluster.settle()
    cluster.start(JOB)
    begun = len(cluster.frames)
    for frame in cluster.frames:
        yield frame, (True,) * len(frame.frame.events)
    about = {"tenant": "t", "job": JOB, "attempt": 1, "rank": 0}
    writer = cluster.frames[-1].frame.writer
    for first in range(0, PHASE_CHANGES, EVENTS_PER_FRAME):
        events = tuple(
            e.PhaseChanged(
                id=f"p-{number}",
                at_ns=cluster.now + number * SECOND,
                phase=("sampling", "learning")[number % 2],
                step=number,
                **about,  # type: ignore[arg-type]
            )
            for number in range(first, first + EVENTS_PER_FRAME)
        )
        begun += 1
        yield (
            Recorded(begun, "tg.fact.node.n1", msgspec.structs.replace(cluster.frames[-1].frame, events=events)),
            (True,) * len(events),
        )
    ended_ns = cluster.now + PHASE_CHANGES * SECOND
    exited = e.SandboxExited(id="x", at_ns=ended_ns, node="n1", outcome="completed", **about)  # type: ignore[arg-type]
    completed = e.JobCompleted(id="c", at_ns=ended_ns, tenant="t", job=JOB, revision=9, attempt=1)
    for number, event in enumerate((exited, completed), start=1):
        frame = msgspec.structs.replace(cluster.frames[-1].frame, writer=writer, events=(event,))
        yield Recorded(begun + number, "tg.decision", frame), (True,)


def derived() -> tuple[list[Span], float, int]:
    """Return the job's spans, the microseconds per event, and the largest memory of the job in bytes."""
    frames = list(history())
    deriver, spans, memory_bytes = SpanDeriver(), list[Span](), 0
    took = 0.0
    for frame, counts in frames:
        began = time.perf_counter()
        spans += deriver.apply(frame, counts)
        changes = deriver.take_changes()
        took += time.perf_counter() - began
        memory_bytes = max(memory_bytes, *(len(data or b"") for data in changes.values()), 0)
    return spans, took * 1e6 / PHASE_CHANGES, memory_bytes


async def measure() -> dict[str, float]:
    """Return the numbers."""
    spans, derive_us, memory_bytes = derived()
    server = PostgresServer()
    await server.start()
    database = Database(server.url, name="benchmark")
    try:
        await database.open()
        async with database.transaction() as connection:
            await migrate(connection)
            generation = await generations.ensure_active(connection)
            await store.write(connection, generation.schema, spans, {})
            for number in range(OTHER_JOBS):  # others in the table, so that the index is what finds the trace
                await store.write(connection, generation.schema, [_of_other(span, number) for span in spans], {})
        return {
            "phase_changes": PHASE_CHANGES,
            "spans": len([span for span in spans if span.job == JOB]),
            "memory_bytes": memory_bytes,
            "derive_us_per_event": round(derive_us, 2),
            **await _opened(database),
        }
    finally:
        await database.close()
        server.remove()


async def _opened(database: Database) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        gateway = shell.build(Settings(data_dir=Path(directory)), MemoryJournal(), MemoryAsker(), ManualClock())
        app = application(msgspec.structs.replace(gateway, database=database))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            opens: list[float] = []
            for _ in range(OPENS):
                began = time.perf_counter()
                answer = await client.get(f"/api/v3/traces/{trace.trace_id(JOB)}")
                opens.append((time.perf_counter() - began) * 1000)
    began = time.perf_counter()
    tree.render(reading.read(answer.json()), everything=True)
    drawn = (time.perf_counter() - began) * 1000
    return {
        "answer_kib": round(len(answer.content) / 1024, 1),
        "open_ms": round(statistics.median(opens), 2),
        "open_ms_max": round(max(opens), 2),
        "draw_ms": round(drawn, 2),
    }


def _of_other(span: Span, number: int) -> Span:
    job = f"{span.job or 'pass'}-{number}"
    return msgspec.structs.replace(span, trace_id=trace.trace_id(job), job=job, ordinal=span.ordinal + 1000 * number)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
