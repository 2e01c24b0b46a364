"""What is trimmed is in the archive at that moment, not only when it was put there."""

from __future__ import annotations

from pathlib import Path

import pytest
from nats.aio.client import Client
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.generations import generations

from tests.scheduler.keeper.bench import GENERATION_BYTES, PADDING_BYTES, History, keeper, result, settings

TO_ROLL = GENERATION_BYTES * 75 // 100 // PADDING_BYTES


@pytest.mark.parametrize("cut", [0, 100])
async def test_a_file_that_was_lost_before_its_stream_was_trimmed_is_written_again(
    client: Client, history: History, archive_dir: Path, cut: int
) -> None:
    made = keeper(client, settings(archive_dir, sealed_kept=1))
    await made.begin()
    await history.pad(TO_ROLL)
    for _ in range(2):
        await made.keep()
        await made.archive()
    assert [each.number for each in await generations(client)] == [1, 2]
    path = ArchiveDirectory(archive_dir).path(1)
    if cut:
        path.write_bytes(path.read_bytes()[:cut])
    else:
        path.unlink()
    await history.pad(TO_ROLL)
    for _ in range(2):
        await made.keep()
        await made.archive()
    assert [each.number for each in await generations(client)] == [2, 3]
    found = await result(client, archive_dir)  # reads every frame, from wherever it lies
    await history.settle()
    assert found.state_digest == history.state.digest()
