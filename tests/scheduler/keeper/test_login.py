"""The keeper on the stack's own bus, with no more rights than its login has there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tidegate_events import bus as connecting
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.generations import generations
from tidegate_events.journal.nats import NatsJournal
from tidegate_local import plan
from tidegate_local.bus import Bus, new_bus
from tidegate_local.permissions import ADMIN, KEEPER
from tidegate_scheduler.snapshot_store import SnapshotStore

from tests.scheduler.keeper.bench import GENERATION_BYTES, PADDING_BYTES, History, keeper, result, settings
from tests.support.stack_bus import running

TO_ROLL = GENERATION_BYTES * 75 // 100 // PADDING_BYTES


@pytest.fixture
async def stack_bus(tmp_path: Path) -> AsyncIterator[Bus]:
    made = msgspec.structs.replace(new_bus((plan.free_port(),)), journal_bytes=GENERATION_BYTES)
    async with running(tmp_path, made) as bus:
        yield bus


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
