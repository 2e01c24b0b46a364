"""A disk that is really full: what was acknowledged stays, appends say so in time, and work goes on with new room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_events import bus
from tidegate_events.journal import health
from tidegate_events.journal.base import Appended, JournalUnavailableError
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.journal.nats_append import APPEND_TIMEOUT_SECONDS, NOT_STORED_SECONDS_MAX

from tests.events.writing import frame, read, take
from tests.support.nats_cluster import NatsCluster
from tests.support.small_disk import SmallDisk, SmallDiskServer, need_mounts

ONE = "tg.fact.gateway.g1"
STREAM_BYTES_MAX = 32 * 1024**2
APPEND_SECONDS_AT_MOST = NOT_STORED_SECONDS_MAX + 3 * APPEND_TIMEOUT_SECONDS + 5


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SmallDiskServer]:
    """Yield a running server on a small disk."""
    need_mounts()
    made = SmallDiskServer(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        made.close()


async def test_a_full_disk_loses_nothing_and_work_goes_on_with_new_room(server: SmallDiskServer) -> None:
    client = await bus.connect(bus.BusSettings(url=server.url))
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=STREAM_BYTES_MAX)
    follower = asyncio.create_task(take(NatsJournal(client), 0, 40))
    for number in range(1, 21):
        assert await journal.append(ONE, frame("g1", number, padding="x" * 500)) == Appended(number)
    assert await health.write_error(server.monitor_url) is None
    server.disk.fill()
    for last in (20, None):
        async with asyncio.timeout(APPEND_SECONDS_AT_MOST):
            with pytest.raises(JournalUnavailableError, match="its disk may be full"):
                await journal.append(ONE, frame("g1", 21, padding="x" * 5000), expected_last=last)
    # What is there can still be read, and the server says what is wrong.
    assert [r.seq for r in await read(NatsJournal(client), 0, 20)] == list(range(1, 21))
    assert "no space left on device" in (await health.write_error(server.monitor_url) or "")
    assert not await health.restart_is_due(server.monitor_url, server.disk.seen)
    server.disk.make_room()
    assert await health.restart_is_due(server.monitor_url, server.disk.seen)
    await server.restart()
    assert not await health.restart_is_due(server.monitor_url, server.disk.seen)
    for number in range(21, 41):
        answer = await journal.append(ONE, frame("g1", number, padding="x" * 5000), expected_last=number - 1)
        assert isinstance(answer, Appended)
        assert answer.seq == number
    assert [r.frame.writer.writer_seq for r in await follower] == list(range(1, 41))
    assert await journal.end() == 40
    await client.close()


async def test_an_append_that_waits_goes_through_when_there_is_room_in_time(server: SmallDiskServer) -> None:
    client = await bus.connect(bus.BusSettings(url=server.url))
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=STREAM_BYTES_MAX)
    assert await journal.append(ONE, frame("g1", 1)) == Appended(1)
    server.disk.fill()
    appending = asyncio.create_task(journal.append(ONE, frame("g1", 2, padding="x" * 5000)))
    async with asyncio.timeout(APPEND_SECONDS_AT_MOST):
        while await health.write_error(server.monitor_url) is None:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    server.disk.make_room()
    await server.restart()
    answer = await appending
    assert isinstance(answer, Appended)
    assert answer.seq == 2
    assert [r.frame.writer.writer_seq for r in await read(journal, 0, 2)] == [1, 2]
    await client.close()


async def test_one_full_disk_of_three_stops_nobody(tmp_path: Path) -> None:
    need_mounts()
    disk = SmallDisk(tmp_path / "n1")
    cluster = NatsCluster(tmp_path, enter={"n1": disk.enter})
    try:
        await cluster.start()
        client = await bus.connect(cluster.settings)
        journal = NatsJournal(client)
        await journal.ensure_stream(max_bytes=STREAM_BYTES_MAX, replicas=3)
        for number in range(1, 61):
            if number == 21:
                disk.fill()
            answer = await journal.append(ONE, frame("g1", number, padding="x" * 5000))
            assert isinstance(answer, Appended)
            assert answer.seq == number
        async with asyncio.timeout(APPEND_SECONDS_AT_MOST):
            while await health.write_error(cluster.monitor_url("n1")) is None:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        assert await health.write_error(cluster.monitor_url("n2")) is None
        disk.make_room()
        assert await health.restart_is_due(cluster.monitor_url("n1"), disk.seen)
        cluster.kill9("n1")
        cluster.start_one("n1")
        await cluster.ready()
        assert not await health.restart_is_due(cluster.monitor_url("n1"), disk.seen)
        assert [r.frame.writer.writer_seq for r in await read(journal, 0, 60)] == list(range(1, 61))
        await client.close()
    finally:
        cluster.stop()
        disk.close()


async def test_nobody_who_answers_is_no_write_error(tmp_path: Path) -> None:
    assert await health.write_error("http://127.0.0.1:9") is None
    assert health.has_room(tmp_path, 1)
    assert not health.has_room(tmp_path, 2**62)
