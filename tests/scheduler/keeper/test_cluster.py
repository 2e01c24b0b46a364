"""The keeper on three bus servers, one of which is killed and stays away: generations roll, copies end whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tidegate_events import bus
from tidegate_events.journal import closing
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.base import JournalUnavailableError
from tidegate_events.journal.generations import generations, open_first
from tidegate_events.journal.nats import NatsJournal
from tidegate_scheduler.snapshot import SnapshotError
from tidegate_scheduler.snapshot_store import SnapshotStore

from tests.scheduler.keeper.bench import GENERATION_BYTES, PADDING_BYTES, History, keeper, result, settings
from tests.support.nats_cluster import NAMES, NatsCluster

TO_ROLL = GENERATION_BYTES * 75 // 100 // PADDING_BYTES
WAIT_SECONDS = 240
REPLICAS = 3
T = TypeVar("T")
ROLLS = 4


async def until_done(act: Callable[[], Awaitable[T]]) -> T:
    """Try again while a leader is elected."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await act()
            except (JournalUnavailableError, SnapshotError):
                await asyncio.sleep(0.2)


TAKEN_BACK_SECONDS = 7.0


@pytest.mark.long
async def test_generations_roll_while_a_server_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server is back long after the first roll, so ten waits of 10 s would show nothing; one is in the journal's own
    # test on three servers.
    monkeypatch.setattr(closing, "STAYS_SECONDS", 0.0)
    cluster = NatsCluster(directory := tmp_path / "cluster")
    await asyncio.to_thread(directory.mkdir)
    archive_dir = tmp_path / "archive"
    try:
        await cluster.start()
        client = await bus.connect(cluster.settings)
        store = SnapshotStore(client, keeps=True)
        await until_done(lambda: open_first(client, max_bytes=GENERATION_BYTES, replicas=REPLICAS))
        await until_done(lambda: store.ensure(max_bytes=16 * 1024**2, replicas=REPLICAS))
        history = History(NatsJournal(client, ArchiveDirectory(archive_dir)))
        await history.begin()
        serving = asyncio.create_task(keeper(client, settings(archive_dir, sealed_kept=2)).run())
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await history.run_a_job()
                gone = next(iter(cluster.running))
                cluster.kill9(gone)
                there = await until_done(lambda: generations(client))
                while there[-1].number <= ROLLS:
                    assert not serving.done(), serving.exception()
                    await history.pad(TO_ROLL // 2)
                    there = await until_done(lambda: generations(client))
                    assert not any(each.sealed for each in there), "one copy is not there"
                # Who is back within 5 s of a roll makes the servers take the new stream back: what the 10 s are for.
                await asyncio.sleep(TAKEN_BACK_SECONDS)
                cluster.start_one(gone)
                await cluster.ready()
                await history.run_a_job()
                while [each.sealed for each in await generations(client)] != [True, True, False]:
                    assert not serving.done(), serving.exception()
                    await asyncio.sleep(0.1)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        for each in (there := await generations(client)):
            assert each.surplus == 0
            holds = (each.first_seq, each.last_seq, each.last_seq - each.first_seq + 1)
            for name in NAMES:
                async with asyncio.timeout(WAIT_SECONDS):
                    while await cluster.copy_of(name, each.stream) != holds:  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.1)
        info = await client.jetstream().stream_info(there[-1].stream)
        assert info.config.num_replicas == REPLICAS
        assert len(ArchiveDirectory(archive_dir).list()) == there[-1].number - 1 >= ROLLS
        await history.settle()
        left = await result(client, archive_dir)
        assert left.state_digest == history.state.digest()
        assert [generation for generation, *_ in left.opened] == list(range(2, there[-1].number + 1))
        await client.close()
    finally:
        cluster.stop()
