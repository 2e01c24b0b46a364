"""One contract for both buckets: compare-and-set, hints, what is unreadable; JetStream's with the stack's rights."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from tidegate_events import bus as connecting
from tidegate_local import plan
from tidegate_local.bus import Bus, new_bus, write_config
from tidegate_local.home import Home
from tidegate_local.permissions import ADMIN
from tidegate_local.topology import NATS, ONE_OF_EACH
from tidegate_scheduler.lease import Entry, LeaseRecord, Write
from tidegate_scheduler.lease_bucket import LeaseBucket, LeaseUnavailableError, MemoryLeaseBucket, NatsLeaseBucket

TIMEOUT_SECONDS = 2.0
RECORD = LeaseRecord(holder="h", instance="s1", epoch=3, seconds=1.0, since_ns=5, number=1)


class Bench:
    """The stack's bus, and clients of it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._clients: list[Client] = []

    async def client(self, login: str) -> Client:
        client = await connecting.connect(self._bus.login(login))
        self._clients.append(client)
        return client

    async def bucket(self, login: str, timeout_seconds: float = TIMEOUT_SECONDS) -> NatsLeaseBucket:
        return NatsLeaseBucket(await self.client(login), timeout_seconds)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    home = Home(tmp_path)
    home.create()
    bus = new_bus((plan.free_port(),))
    write_config(home, bus)
    spec = plan.nats_service(home, bus, *ONE_OF_EACH.processes(NATS))
    with (tmp_path / "nats.log").open("wb") as log:
        process = subprocess.Popen(spec.argv, stdout=log, stderr=log)  # noqa: ASYNC220 - a fork of milliseconds
    made = Bench(bus)
    try:
        while not await spec.is_ready():
            assert process.poll() is None
            await asyncio.sleep(0.02)
        yield made
    finally:
        await made.close()
        process.terminate()
        process.wait(10)


async def keeps_the_contract(bucket: LeaseBucket) -> None:
    nudged = asyncio.Event()
    await bucket.watch(nudged.set)
    assert await bucket.read() is None
    assert await bucket.write(Write(RECORD, expected_revision=7)) is None
    first = await bucket.write(Write(RECORD, expected_revision=0))
    assert first is not None
    assert await bucket.read() == Entry(first, RECORD)
    async with asyncio.timeout(10):
        await nudged.wait()
    assert await bucket.write(Write(RECORD, expected_revision=0)) is None, "who believes it empty is refused"
    second = await bucket.write(Write(RECORD, expected_revision=first))
    assert second is not None
    assert second > first
    assert await bucket.write(Write(RECORD, expected_revision=first)) is None
    assert await bucket.read() == Entry(second, RECORD)


async def test_in_memory() -> None:
    bucket = MemoryLeaseBucket()
    await keeps_the_contract(bucket)
    bucket.available = False
    with pytest.raises(LeaseUnavailableError):
        await bucket.read()
    with pytest.raises(LeaseUnavailableError):
        await bucket.write(Write(RECORD, 0))


async def test_on_the_bus_with_the_schedulers_login(bench: Bench) -> None:
    await keeps_the_contract(await bench.bucket("scheduler"))


async def test_nobody_else_writes_the_lease(bench: Bench) -> None:
    for login in ("executor", "gateway", "keeper", "operator"):
        bucket = await bench.bucket(login, timeout_seconds=0.3)
        with pytest.raises(LeaseUnavailableError):
            await bucket.write(Write(RECORD, 0))
    assert await (await bench.bucket("scheduler")).read() is None


async def test_a_record_that_cannot_be_read_is_an_entry_without_one_and_can_be_replaced(bench: Bench) -> None:
    bucket, admin = await bench.bucket("scheduler"), await bench.client(ADMIN)
    values = await admin.jetstream().key_value("LEASE")
    for spoil in (lambda: values.put("scheduler", b"by hand"), lambda: values.delete("scheduler")):
        await spoil()
        found = await bucket.read()
        assert found is not None
        assert found.record is None
        revision = await bucket.write(Write(RECORD, found.revision))
        assert revision is not None
        assert await bucket.read() == Entry(revision, RECORD)


async def test_without_the_bucket_nothing_can_be_written(bench: Bench) -> None:
    bucket, admin = await bench.bucket("scheduler"), await bench.client(ADMIN)
    await admin.jetstream().delete_stream("KV_LEASE")
    with pytest.raises(LeaseUnavailableError, match="LEASE cannot be written"):
        await bucket.write(Write(RECORD, 0))
