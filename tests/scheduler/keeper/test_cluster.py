"""The keeper on three bus servers: what it opens has as many copies, and a roll waits for a server that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import nats.errors
from nats.aio.client import Client
from structlog.testing import capture_logs
from tidegate_events import bus
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.generations import generations, journal_stream, open_first
from tidegate_events.journal.nats import NatsJournal
from tidegate_scheduler.snapshot import SnapshotStore

from tests.scheduler.keeper.bench import GENERATION_BYTES, PADDING_BYTES, History, keeper, result, settings
from tests.support.nats_cluster import NatsCluster

TO_ROLL = GENERATION_BYTES * 75 // 100 // PADDING_BYTES
WAIT_SECONDS = 120
REPLICAS = 3


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a log says nothing when it grows
        await asyncio.sleep(0.1)


async def until_missed(client: Client) -> None:
    """Wait until the other servers know that one is away: a leader that was just elected believes the best of all."""
    while True:
        try:
            info = await client.jetstream().stream_info(journal_stream(1))
        except (nats.errors.Error, TimeoutError):
            continue
        if info.cluster is not None and any(not peer.current for peer in info.cluster.replicas or ()):
            return
        await asyncio.sleep(0.1)


async def test_a_roll_waits_for_a_server_and_appends_do_not(tmp_path: Path) -> None:
    cluster = NatsCluster(directory := tmp_path / "cluster")
    await asyncio.to_thread(directory.mkdir)
    archive_dir = tmp_path / "archive"
    try:
        await cluster.start()
        await cluster.ready()
        client = await bus.connect(cluster.settings)
        await open_first(client, max_bytes=GENERATION_BYTES, replicas=REPLICAS)
        await SnapshotStore(client, keeps=True).ensure(max_bytes=16 * 1024**2, replicas=REPLICAS)
        history = History(NatsJournal(client, ArchiveDirectory(archive_dir)))
        await history.begin()
        serving = asyncio.create_task(keeper(client, settings(archive_dir)).run())
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await history.pad(TO_ROLL // 2)
                gone = next(iter(cluster.running))
                cluster.kill9(gone)
                await until_missed(client)
                await history.pad(TO_ROLL // 2 + 2)
                with capture_logs() as logs:
                    await until(
                        lambda: any(line["event"] == "keeper_waits" and line["what"] == "keep" for line in logs)
                    )
                assert [each.live for each in await generations(client)] == [True]
                await history.pad(1)
                cluster.start_one(gone)
                await cluster.ready()
                for _ in range(2):
                    await history.run_a_job()
                    await history.pad(TO_ROLL)
                while len(await generations(client)) > 1:
                    assert not serving.done(), serving.exception()
                    await asyncio.sleep(0.1)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        (live,) = await generations(client)
        info = await client.jetstream().stream_info(live.stream)
        assert info.config.num_replicas == REPLICAS
        assert len(ArchiveDirectory(archive_dir).list()) == live.number - 1 >= 2
        await history.settle()
        left = await result(client, archive_dir)
        assert left.state_digest == history.state.digest()
        assert [generation for generation, *_ in left.opened] == list(range(2, live.number + 1))
        await client.close()
    finally:
        cluster.stop()
