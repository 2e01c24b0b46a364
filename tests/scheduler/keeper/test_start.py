"""Who starts after a trim: from a snapshot without the archive, from the archive without a snapshot, or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

from nats.aio.client import Client
from tidegate_events import events as e
from tidegate_events.journal.chain import ChainDigest
from tidegate_events.journal.generations import generations
from tidegate_scheduler.snapshot_store import BUCKET, SnapshotStore
from tidegate_scheduler.state import State

from tests.scheduler.keeper.bench import GENERATION_BYTES, PADDING_BYTES, History, keeper, settings
from tests.support.cluster import spec
from tests.support.nats import NatsServer
from tests.support.schedulers import SchedulerProcess, create_lease_bucket

TO_ROLL = GENERATION_BYTES * 75 // 100 // PADDING_BYTES
WAIT_SECONDS = 60


async def trimmed(client: Client, history: History, archive_dir: Path) -> None:
    """Bring the history into its second generation, and the first one off the bus."""
    made = keeper(client, settings(archive_dir))
    await made.begin()
    await history.run_a_job()
    await history.pad(TO_ROLL)
    for _ in range(2):
        await made.keep()
        await made.archive()
    assert [each.number for each in await generations(client)] == [2]
    await create_lease_bucket(client)


async def places_a_job(history: History, process: SchedulerProcess) -> None:
    await process.ready()
    after = await history.journal.end()
    submitted = e.JobSubmitted(id="s-new", at_ns=1, tenant="t", job="new", spec=spec(500))
    await history.append("gateway", "g1", submitted)
    async with asyncio.timeout(WAIT_SECONDS):
        async for recorded in history.journal.follow(after):
            process.must_run()
            if any(isinstance(event, e.JobPlaced) and event.job == "new" for event in recorded.frame.events):
                return


async def test_a_scheduler_starts_from_a_snapshot_without_what_was_trimmed(
    client: Client, history: History, server: NatsServer, archive_dir: Path, tmp_path: Path
) -> None:
    await trimmed(client, history, archive_dir)
    process = SchedulerProcess(tmp_path, server.url, "s2")
    try:
        await places_a_job(history, process)
    finally:
        process.kill9()
    assert "starts_from_snapshot" in process.log_path.read_text()


async def test_a_scheduler_starts_from_the_archive_without_a_snapshot(
    client: Client, history: History, server: NatsServer, archive_dir: Path, tmp_path: Path
) -> None:
    await trimmed(client, history, archive_dir)
    await client.jetstream().delete_stream(f"OBJ_{BUCKET}")
    process = SchedulerProcess(tmp_path, server.url, "s2", TIDEGATE_JOURNAL_ARCHIVE_DIR=str(archive_dir))
    try:
        await places_a_job(history, process)
    finally:
        process.kill9()
    assert "starts_from_the_beginning" in process.log_path.read_text()


async def test_a_scheduler_with_neither_says_what_it_needs(
    client: Client, history: History, server: NatsServer, archive_dir: Path, tmp_path: Path
) -> None:
    await trimmed(client, history, archive_dir)
    await client.jetstream().delete_stream(f"OBJ_{BUCKET}")
    process = SchedulerProcess(tmp_path, server.url, "s2")
    assert await asyncio.to_thread(process._process.wait, WAIT_SECONDS) != 0
    assert "set TIDEGATE_JOURNAL_ARCHIVE_DIR" in process.log_path.read_text()


async def test_a_keeper_does_not_go_on_from_the_state_of_another_journal(
    client: Client, history: History, archive_dir: Path
) -> None:
    """Left by a journal that was made anew: every digest from there on would be wrong."""
    foreign = State()
    foreign.seq = await history.journal.end()
    snapshots = SnapshotStore(client, keeps=True)
    await snapshots.ensure()
    await snapshots.save(foreign, ChainDigest().text())
    made = keeper(client, settings(archive_dir))
    await made.begin()
    await made.keep()
    await history.settle()
    assert made._known.state.digest() == history.state.digest() != foreign.digest()
