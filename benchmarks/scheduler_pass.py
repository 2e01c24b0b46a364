"""What a scheduling pass costs: deciding alone, and its frame through a real journal beside a bare request to the bus.

Prints one JSON line. `append_over_raw` is the median of an appended frame of one decision over the median of a plain
publish-and-ack of as many bytes on the same stream, in the same run: 1 means that the journal adds nothing.

Run: python benchmarks/scheduler_pass.py
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tidegate_events import bus
from tidegate_events.events import LeaderElected
from tidegate_events.frame import Frame, Writer, encode
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.subjects import DECISION, fact
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.state import State

from tests.support.cluster import Cluster, spec
from tests.support.nats import NatsServer

APPENDS = 300
PASSES = 200


def cluster_of(nodes: int, jobs: int) -> Cluster:
    """Return a settled cluster whose nodes are full and whose queue is as long as what runs."""
    cluster = Cluster()
    for number in range(nodes):
        cluster.node(f"n{number:03d}", 4000)
    for _ in range(jobs):
        cluster.submit(spec(1000))
    cluster.settle()
    return cluster


def decide_ms(nodes: int, jobs: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of passes in which one job ends and one is placed, in ms."""
    cluster = cluster_of(nodes, jobs)
    took: list[float] = []
    for _ in range(PASSES):
        running = next(job for job in cluster.state.jobs.values() if job.stage == "placed")
        for member in running.members:
            member.status = "completed"
        started = time.perf_counter()
        decide(cluster.state, cluster.now)
        took.append((time.perf_counter() - started) * 1000)
        for member in running.members:
            member.status = "ordered"
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


def fold_events_per_second() -> float:
    """Return how many events of an ordinary history one core folds in a second."""
    frames = cluster_of(50, 2000).frames * 1
    events = sum(len(recorded.frame.events) for recorded in frames)
    state = State()
    started = time.perf_counter()
    for recorded in frames:
        evolve(state, recorded)
    return events / (time.perf_counter() - started)


async def append_ms(directory: Path) -> tuple[float, float]:
    """Return the medians of a guarded append and of a raw request, in ms, taken in turns."""
    server = NatsServer(directory)
    await server.start()
    client = await bus.connect(bus.BusSettings(url=server.url))
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=256 * 1024 * 1024)
    guarded: list[float] = []
    raw: list[float] = []
    last = 0
    try:
        for number in range(APPENDS):
            frame = Frame(
                Writer("scheduler", "s1", 1, number), (LeaderElected(id=f"{number}", at_ns=1, epoch=1, instance="s1"),)
            )
            started = time.perf_counter()
            answer = await journal.append(DECISION, frame, expected_last=last)
            guarded.append((time.perf_counter() - started) * 1000)
            last = answer.seq  # type: ignore[union-attr]
            started = time.perf_counter()
            await client.request(fact("gateway", "g1"), encode(frame), timeout=5)
            raw.append((time.perf_counter() - started) * 1000)
    finally:
        await client.close()
        server.stop()
    return statistics.median(guarded), statistics.median(raw)


def main() -> None:
    """Measure and print."""
    small = decide_ms(1, 8)
    large = decide_ms(100, 800)
    with tempfile.TemporaryDirectory() as directory:
        append, raw = asyncio.run(append_ms(Path(directory)))
    result = {
        "pass_p50_ms": round(small[0], 3),
        "pass_p99_ms": round(small[1], 3),
        "pass_100_nodes_800_jobs_p50_ms": round(large[0], 3),
        "pass_100_nodes_800_jobs_p99_ms": round(large[1], 3),
        "append_p50_ms": round(append, 3),
        "raw_request_p50_ms": round(raw, 3),
        "append_over_raw": round(append / raw, 2),
        "fold_events_per_s": round(fold_events_per_second()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
