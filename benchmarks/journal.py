"""How fast the journal is, and what stands on it: one JSON line, each rate beside its bare counterpart of the same run.

- `publish_ratio`: appends per second through the port (a frame encoded, its id, the rules against writing it twice)
  over the bare client's JetStream publish of the same bytes on the same stream, as many under way, in turns.
  `publish_over_request` is the same over a bare request, whose answer is not even read. Near fsync: the server syncs
  each message before it answers. `publish_p50_ms` and `_p99_ms` are an append's answer, one at a time.
- `journal_to_decision_*_ms`: from the answer to an appended submission to the answer to the frame that places the job,
  with the whole scheduler in this process and nothing else to do. Two deliveries, a pass and one fsync; near fsync:
  `decision_append_*_ms` is the part of it that is the frame's own append, `decision_before_append_*_ms` all the rest.
  `paced_ping_*_ms` and `paced_bare_append_*_ms` are the machine's own limits in between, at the same pace, and
  `decision_over_bare_append_*` the ratio to the latter.
- `placements_per_s_through_journal`: that scheduler on a queue of jobs and a hundred nodes, from its first frame to its
  last: decided, appended with fsync, folded back, orders sent, pass after pass. Near one core of Python: fsync is paid
  once a pass, so it weighs little.
- `fold_events_per_s`: bytes to state, on one core: decoding and evolving. `verify_events_per_s`: as `history verify`,
  every pass decided again. Near one core of Python as well; both are in CPU time, so others beside them count less.
- `startup_from_snapshot_s`: of a history of a million events, the newest snapshot is read from the bus, decoded and
  proved, and the last ten thousand events are folded from the journal. Near decoding and hashing of the snapshot.

`load_average` says how busy the machine was meanwhile, and `fsync_ms` and `fsync_p99_ms` what one small write with
fsync cost, while nothing else was written.

Run: python benchmarks/journal.py [--events 1000000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec
import structlog
import uvloop
from nats.aio.client import Client
from tidegate_events import bus
from tidegate_events.clock import SystemClock
from tidegate_events.events import JobPlaced, JobSubmitted, PhaseChanged, SandboxExited, SandboxStarted
from tidegate_events.frame import Frame, Writer, decode, encode
from tidegate_events.journal.base import Appended, Conflict, Raw, Recorded
from tidegate_events.journal.generations import stream_config
from tidegate_events.journal.jetstream import JetStream
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.subjects import DECISION, fact
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.fold import Fold
from tidegate_scheduler.history.verification import verify
from tidegate_scheduler.settings import Settings
from tidegate_scheduler.shell import Scheduler
from tidegate_scheduler.snapshot_store import SnapshotStore
from tidegate_scheduler.start import load_state
from tidegate_scheduler.state import State

from benchmarks.ordinary_history import SPEC, OrdinaryHistory
from tests.support.nats import NatsServer
from tests.support.schedulers import create_lease_bucket

STREAM_BYTES_MAX = 1 << 30
ROUNDS = 90
APPENDS_PER_ROUND = 64
UNDER_WAY = 32
LATENCIES = 300
DECISIONS = 1500
"""So many that a disk's own pauses, of which there is one in some seconds, are as many as they are and not the p99."""

PACE_SECONDS = 0.02
BARE = "bare"
BARE_BYTES = 600

PLACEMENT_NODES = 100
PLACEMENT_JOBS = 2500
FOLD_EVENTS = 100_000
FOLD_ROUNDS = 5
TAIL_EVENTS = 10_000
STARTS = 3
FSYNCS = 1000
WAIT_SECONDS = 120


class TimedJournal(NatsJournal):
    """Notes when each frame of decisions was begun and answered, and how many jobs it places."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.passes: list[tuple[float, float, tuple[str, ...]]] = []
        self.placed = asyncio.Event()

    async def append(self, subject: str, frame: Frame, *, expected_last: int | None = None) -> Appended | Conflict:
        """Append."""
        began = time.perf_counter()
        answer = await super().append(subject, frame, expected_last=expected_last)
        jobs = tuple(event.job for event in frame.events if isinstance(event, JobPlaced))
        if jobs:
            self.passes.append((began, time.perf_counter(), jobs))
            self.placed.set()
        return answer


@asynccontextmanager
async def bus_of(directory: Path, first_seq: int = 1) -> AsyncIterator[tuple[Client, str]]:
    """Yield a client of a server of its own, which syncs always, with an empty journal."""
    server = NatsServer(directory)
    await server.start()
    try:
        client = await bus.connect(bus.BusSettings(url=server.url))
        config = stream_config(max_bytes=STREAM_BYTES_MAX, first_seq=first_seq)
        await JetStream(client).call(f"STREAM.CREATE.{config['name']}", config)
        await create_lease_bucket(client)
        yield client, server.url
        await client.close()
    finally:
        server.stop()


@asynccontextmanager
async def scheduler_of(url: str) -> AsyncIterator[TimedJournal]:
    """Run the whole scheduler on a connection of its own; its nodes send no heartbeats, and are not missed."""
    client = await bus.connect(bus.BusSettings(url=url))
    journal = TimedJournal(client)
    settings = Settings(bus=bus.BusSettings(url=url), node_silence_seconds=24 * 3600)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(Scheduler(settings, client, journal, SystemClock()).run())
        try:
            yield journal
        finally:
            running.cancel()
    await client.close()


async def write(client: Client, raws: list[Raw]) -> None:
    """Append frames as they are, in their order, many under way."""
    for start in range(0, len(raws), UNDER_WAY):
        batch = raws[start : start + UNDER_WAY]
        answers = await asyncio.gather(*(client.request(raw.subject, raw.data, timeout=30) for raw in batch))
        if [msgspec.json.decode(answer.data).get("seq") for answer in answers] != [raw.seq for raw in batch]:
            raise RuntimeError(f"frames from {batch[0].seq} on were not stored in their order: {answers[0].data!r}")


# ---- publishing ----


async def publishing(directory: Path) -> dict[str, float]:
    """Measure appends beside the bare client."""
    async with bus_of(directory) as (client, _):
        journal = NatsJournal(client)
        jetstream = client.jetstream()
        numbers = iter(range(1 << 30))

        def frame() -> Frame:
            number = next(numbers)
            event = PhaseChanged(
                id=f"n1-{number}",
                at_ns=number,
                tenant="lab-a",
                job=f"j-{number:07d}",
                traceparent=f"00-{number:032x}-{number:016x}-01",
                attempt=1,
                rank=0,
                phase="sampling",
                step=number,
            )
            return Frame(Writer("node", "n1", 1, number), (event,))

        async def ours() -> None:
            await journal.append(fact("node", "n1"), frame())

        async def bare_request(data: bytes) -> None:
            await client.request(fact("node", "n2"), data, timeout=30)

        async def bare_jetstream(data: bytes) -> None:
            await jetstream.publish(fact("node", "n3"), data, timeout=30)

        spent: dict[str, list[float]] = {"ours": [], "request": [], "jetstream": []}
        for number in range(ROUNDS):
            data = [encode(frame()) for _ in range(APPENDS_PER_ROUND)]
            writers: dict[str, Iterator[Awaitable[None]]] = {
                "ours": (ours() for _ in range(APPENDS_PER_ROUND)),
                "request": (bare_request(each) for each in data),
                "jetstream": (bare_jetstream(each) for each in data),
            }
            turns = list(writers)
            for name in turns[number % 3 :] + turns[: number % 3]:
                spent[name].append(await _side_by_side(writers[name]))
        alone = [await _timed(ours()) for _ in range(LATENCIES)]
    return {
        "publish_ratio": _ratio(spent["jetstream"], spent["ours"]),
        "publish_over_request": _ratio(spent["request"], spent["ours"]),
        "publish_per_s": round(ROUNDS * APPENDS_PER_ROUND / sum(spent["ours"])),
        **_quantiles("publish", alone),
    }


def _ratio(theirs: list[float], ours: list[float]) -> float:
    """Return the median of the rounds' ratios: what disturbs one round disturbs no other."""
    return round(statistics.median(bare / own for bare, own in zip(theirs, ours, strict=True)), 3)


async def _side_by_side(each: Iterator[Awaitable[None]]) -> float:
    """Return the seconds that all took, UNDER_WAY of them at a time."""

    async def work() -> None:
        for one in each:
            await one

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(UNDER_WAY):
            tasks.create_task(work())
    return time.perf_counter() - started


async def _timed(one: Awaitable[object]) -> float:
    started = time.perf_counter()
    await one
    return time.perf_counter() - started


# ---- deciding ----


async def deciding(directory: Path) -> dict[str, float]:
    """Measure from an appended submission to the appended frame that places its job, one at a time.

    The limits of the machine are measured in between, at the same pace: a ping to the server and back, and an append by
    the bare client to a stream of its own. How late they come says how idle the machine is.
    """
    history = OrdinaryHistory(nodes=4)
    async with bus_of(directory) as (client, url):
        await write(client, history.take())
        await JetStream(client).call(f"STREAM.CREATE.{BARE}", {"name": BARE, "subjects": [BARE], "storage": "file"})
        journal = NatsJournal(client)
        took: list[float] = []
        appending: list[float] = []
        pings: list[float] = []
        bare: list[float] = []
        async with scheduler_of(url) as scheduler:
            for number in range(DECISIONS):
                pings.append(await _timed(client.flush()))
                await asyncio.sleep(PACE_SECONDS)
                bare.append(await _timed(client.request(BARE, bytes(BARE_BYTES), timeout=WAIT_SECONDS)))
                await asyncio.sleep(PACE_SECONDS)
                event = JobSubmitted(id=f"g2-{number}", at_ns=1, tenant="lab-a", job=f"k-{number}", spec=SPEC)
                scheduler.placed.clear()
                await journal.append(fact("gateway", "g2"), Frame(Writer("gateway", "g2", 1, number), (event,)))
                submitted = time.perf_counter()
                async with asyncio.timeout(WAIT_SECONDS):
                    await scheduler.placed.wait()
                began, answered, _ = scheduler.passes[-1]
                took.append(answered - submitted)
                appending.append(answered - began)
                await _end(journal, number)
                await asyncio.sleep(PACE_SECONDS)
    before = [whole - append for whole, append in zip(took, appending, strict=True)]
    return {
        **_quantiles("journal_to_decision", took[1:]),
        **_quantiles("decision_append", appending[1:]),
        **_quantiles("decision_before_append", before[1:]),
        **_quantiles("paced_ping", pings),
        **_quantiles("paced_bare_append", bare),
        "decision_over_bare_append_p50": round(statistics.median(took[1:]) / statistics.median(bare), 2),
        "decision_over_bare_append_p99": round(_at(took[1:], 0.99) / _at(bare, 0.99), 2),
    }


async def _end(journal: NatsJournal, number: int) -> None:
    """Let the job that was placed last complete at once, so that each is decided on a cluster that is as idle."""
    last = await journal.last(DECISION)
    placed = next(event for event in last.frame.events if isinstance(event, JobPlaced)) if last else None
    if placed is None:
        raise RuntimeError("no job was placed last")
    node = placed.members[0].node
    about = {"at_ns": 1, "tenant": placed.tenant, "job": placed.job, "attempt": placed.attempt, "rank": 0, "node": node}
    started = SandboxStarted(id=f"{node}-s-{number}", level="trusted", **about)  # type: ignore[arg-type]
    exited = SandboxExited(id=f"{node}-e-{number}", outcome="completed", exit_code=0, **about)  # type: ignore[arg-type]
    await journal.append(fact("node", node), Frame(Writer("node", node, 1, number + 1), (started, exited)))


async def placing(directory: Path) -> dict[str, float]:
    """Measure a queue of jobs being placed, from the first frame's beginning to the last one's answer."""
    history = OrdinaryHistory(nodes=PLACEMENT_NODES)
    for _ in range(PLACEMENT_JOBS):
        history.submit()
    async with bus_of(directory) as (client, url):
        await write(client, history.take())
        began = time.perf_counter()
        async with scheduler_of(url) as scheduler, asyncio.timeout(WAIT_SECONDS):
            while sum(len(jobs) for _, _, jobs in scheduler.passes) < PLACEMENT_JOBS:
                scheduler.placed.clear()
                await scheduler.placed.wait()
    # The first pass was being decided before its frame was begun, for about as long as the others took each.
    seconds = scheduler.passes[-1][1] - scheduler.passes[0][0]
    counted = PLACEMENT_JOBS - len(scheduler.passes[0][2])
    return {
        "placements_per_s_through_journal": round(counted / seconds),
        "placement_passes": len(scheduler.passes),
        "placement_start_to_end_s": round(scheduler.passes[-1][1] - began, 3),
    }


# ---- history ----


def folding(raws: list[Raw]) -> dict[str, float]:
    """Measure decoding and folding, and verifying, on one core; of several rounds the best, for others run beside."""
    events = sum(len(decode(raw.data).events) for raw in raws)
    folds = []
    for _ in range(FOLD_ROUNDS):
        state = State()
        started = time.process_time()
        for raw in raws:
            evolve(state, Recorded(raw.seq, raw.subject, decode(raw.data)))
        folds.append(time.process_time() - started)

    async def recorded() -> AsyncIterator[Recorded]:
        for raw in raws:
            yield Recorded(raw.seq, raw.subject, decode(raw.data))

    started = time.process_time()
    report = asyncio.run(verify(recorded()))
    seconds = time.process_time() - started
    if not report.ok or report.state_digest != state.digest():
        raise RuntimeError(f"the history does not verify: {report.difference}")
    return {
        "fold_events_per_s": round(events / min(folds)),
        "verify_events_per_s": round(events / seconds),
        "verified_decisions": report.decisions_verified,
    }


async def starting(directory: Path, history: OrdinaryHistory, events: int) -> dict[str, float]:
    """Measure a start from a snapshot, whose tail is read from the journal."""
    history.grow(events - TAIL_EVENTS)
    history.take()
    seq = history.state.seq
    async with bus_of(directory, first_seq=seq + 1) as (client, _):
        store = SnapshotStore(client, keeps=True)
        await store.ensure()
        kept = await store.save(history.state)
        history.grow(events)
        await write(client, history.take())
        took = []
        for _ in range(STARTS):
            took.append(await _timed(_start(client, history.state)))
    return {
        "startup_from_snapshot_s": round(min(took), 3),
        "startup_events": history.events,
        "snapshot_bytes": kept.size_bytes,
        "snapshot_finished_jobs": len(history.state.finished),
    }


async def _start(client: Client, expected: State) -> None:
    """Do what a scheduler does before it may stand for the lead."""
    journal = NatsJournal(client)
    fold = Fold(journal, await load_state(client))
    if fold.state.seq == 0:
        raise RuntimeError("the snapshot was not used")
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(fold.run())
        await fold.reach(await journal.end())
        running.cancel()
    if fold.state.digest() != expected.digest():
        raise RuntimeError("the start led to another state")


def fsyncs(directory: Path) -> dict[str, float]:
    """Return what a small write with fsync takes, in ms."""
    took = []
    with (directory / "fsync").open("wb") as file:
        for _ in range(FSYNCS):
            started = time.perf_counter()
            file.write(b"x" * 400)
            file.flush()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - started) * 1000)
    return {"fsync_ms": round(statistics.median(took), 3), "fsync_p99_ms": round(_at(took, 0.99), 3)}


def _quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    p50, p99 = statistics.median(seconds), _at(seconds, 0.99)
    return {f"{name}_p50_ms": round(p50 * 1000, 3), f"{name}_p99_ms": round(p99 * 1000, 3)}


def _at(values: list[float], share: float) -> float:
    """Return the value that this share of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(events: int) -> dict[str, Any]:
    """Measure everything, each part on a server of its own."""
    parts: list[Callable[[Path], Awaitable[dict[str, float]]]] = [publishing, deciding, placing]
    result: dict[str, Any] = {}
    for part in parts:
        with tempfile.TemporaryDirectory() as directory:
            result |= fsyncs(Path(directory))
            result |= uvloop.run(part(Path(directory)))
    history = OrdinaryHistory()
    history.grow(min(FOLD_EVENTS, events - TAIL_EVENTS))
    result |= folding(history.take())
    with tempfile.TemporaryDirectory() as directory:
        result |= uvloop.run(starting(Path(directory), history, events))
    return {**result, "load_average": os.getloadavg()[0]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast the journal is, as one line of JSON.")
    parser.add_argument("--events", type=int, default=1_000_000, help="how long the history is that a start goes on")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(json.dumps(measure(parser.parse_args().events)))


if __name__ == "__main__":
    main()
