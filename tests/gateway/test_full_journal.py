"""A journal without room, on a real bus: a submission gets a 503 with what, why and what to do, and later succeeds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidegate_events import bus
from tidegate_events.journal.closing import close, open_next
from tidegate_events.journal.nats import NatsJournal

from tests.gateway.conftest import Bench
from tests.support.nats import NatsServer
from tests.support.small_disk import SmallDiskServer, need_mounts

QUOTA_BYTES = 64 * 1024
STREAM_BYTES_MAX = 32 * 1024**2
SUBMISSIONS_MAX = 200


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    made = NatsServer(tmp_path)
    await made.start()
    yield made
    made.stop()


async def refused(bench: Any, key: str | None) -> dict[str, Any]:
    """Submit; return the body of the 503 that must come."""
    answer = await bench.submit(key=key)
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "1"
    body: dict[str, Any] = answer.json()
    return body


async def test_a_full_generation_refuses_submissions_until_the_next_one_is_open(
    server: NatsServer, tmp_path: Path
) -> None:
    client = await bus.connect(bus.BusSettings(url=server.url))
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=QUOTA_BYTES)
    async with Bench(tmp_path / "gateway", journal=journal) as bench:
        taken = 0
        for _ in range(SUBMISSIONS_MAX):
            if (await bench.submit()).status_code != 201:
                break
            taken += 1
        assert 0 < taken < SUBMISSIONS_MAX
        for key in (None, "k"):
            body = await refused(bench, key)
            assert body["code"] == "journal_full"
            assert body["problem"] == "the journal takes no more: maximum bytes exceeded"
            assert "nothing was taken" in body["accepted"]
        assert await journal.end() == taken
        await close(client, 1)
        await open_next(client, 1, max_bytes=QUOTA_BYTES)
        assert (await bench.submit(key="k")).status_code == 201
        assert await journal.end() == taken + 1
    await client.close()


async def test_a_full_disk_refuses_submissions_until_there_is_room(tmp_path: Path) -> None:
    need_mounts()
    server = SmallDiskServer(tmp_path)
    try:
        await server.start()
        client = await bus.connect(bus.BusSettings(url=server.url))
        journal = NatsJournal(client)
        await journal.ensure_stream(max_bytes=STREAM_BYTES_MAX)
        async with Bench(tmp_path / "gateway", journal=journal) as bench:
            assert (await bench.submit(key="before")).status_code == 201
            server.disk.fill()
            # The last page of the disk may take some frames yet, whose acknowledgements are as good as any.
            taken = 1
            for number in range(SUBMISSIONS_MAX):
                if (answer := await bench.submit(key=f"k{number}")).status_code != 201:
                    break
                taken += 1
            assert answer.status_code == 503
            body = answer.json()
            assert body["code"] == "journal_unavailable"
            assert "its disk may be full" in body["problem"]
            assert "the same idempotency key" in body["accepted"]
            server.disk.make_room()
            await server.restart()
            retried = await bench.submit(key=f"k{number}")
            assert retried.status_code == 201
            assert (await bench.submit(key="before")).headers["idempotency-replayed"] == "true"
            assert await journal.end() == taken + 1
        await client.close()
    finally:
        server.close()
