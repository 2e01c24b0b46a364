"""The keeper on the stack's own bus, with no more rights than its login has there."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tidegate_events import bus as connecting
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.generations import generations
from tidegate_events.journal.nats import NatsJournal
from tidegate_local import plan
from tidegate_local.bus import Bus, new_bus, write_config
from tidegate_local.home import Home
from tidegate_local.permissions import ADMIN, KEEPER
from tidegate_local.topology import NATS, ONE_OF_EACH
from tidegate_scheduler.snapshot import SnapshotStore

from tests.scheduler.keeper.bench import GENERATION_BYTES, PADDING_BYTES, History, keeper, result, settings

TO_ROLL = GENERATION_BYTES * 75 // 100 // PADDING_BYTES
(SERVER,) = ONE_OF_EACH.processes(NATS)


@pytest.fixture
async def stack_bus(tmp_path: Path) -> AsyncIterator[Bus]:
    home = Home(tmp_path)
    home.create()
    made = msgspec.structs.replace(new_bus((plan.free_port(),)), journal_bytes=GENERATION_BYTES)
    write_config(home, made)
    spec = plan.nats_service(home, made, SERVER)
    with (tmp_path / "nats.log").open("wb") as log:
        process = subprocess.Popen(spec.argv, stdout=log, stderr=log)  # noqa: ASYNC220 - a fork of milliseconds
    try:
        while not await spec.is_ready():
            assert process.poll() is None
            await asyncio.sleep(0.02)
        yield made
    finally:
        process.terminate()
        process.wait(10)


async def test_it_may_do_all_that_it_does(stack_bus: Bus, tmp_path: Path) -> None:
    admin = await connecting.connect(stack_bus.login(ADMIN))
    own = await connecting.connect(stack_bus.login(KEEPER))
    archive_dir = tmp_path / "archive"
    try:
        history = History(NatsJournal(admin))
        await history.begin()
        made = keeper(own, settings(archive_dir, snapshot_events=1, snapshots_kept=1, instance="local"))
        await made.begin()
        await made.keep()
        await history.run_a_job()
        await made.keep()
        for number in (2, 3):
            await history.pad(TO_ROLL)
            for _ in range(2):
                await made.keep()
                await made.archive()
            assert [each.number for each in await generations(admin)] == [number]
        assert len(ArchiveDirectory(archive_dir).list()) == 2
        assert len(await SnapshotStore(admin).kept()) <= 2, "old ones are deleted"
        assert len((await result(admin, archive_dir)).opened) == 2
    finally:
        await admin.close()
        await own.close()
