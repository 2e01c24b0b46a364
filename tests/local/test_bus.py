"""The bus as the stack configures it, on a real nats-server: each writes their own, nobody rewrites history."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events import bus as connecting
from tidegate_events.events import LeaderElected, NodeJoined
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.resources import Resources
from tidegate_local import plan
from tidegate_local.bus import Bus, config_file, is_ready, new_bus
from tidegate_local.home import Home
from tidegate_local.permissions import ADMIN, publish_permissions
from tidegate_local.topology import NATS, ONE_OF_EACH

from tests.support.stack_bus import running

NODE = "local"
REFUSED_SECONDS = 0.3
(SERVER,) = ONE_OF_EACH.processes(NATS)


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Yield the stack's bus, running."""
    async with running(tmp_path, new_bus((plan.free_port(),))) as made:
        yield made


async def connect(bus: Bus, user: str) -> Client:
    return await connecting.connect(bus.login(user))


def frame(service: str, instance: str) -> Frame:
    event = (
        LeaderElected(id="e", at_ns=1, epoch=1, instance="local")
        if service == "scheduler"
        else NodeJoined(id="e", at_ns=1, node=NODE, incarnation=1, capacity=Resources(1, 1), levels=("trusted",))
    )
    return Frame(Writer(service, instance, 1, 1), (event,))  # type: ignore[arg-type]


OWN = {
    "scheduler": ("scheduler", "local", "tg.decision"),
    "executor": ("node", "local", "tg.fact.node.local"),
    "gateway": ("gateway", "local", "tg.fact.gateway.local"),
    "checkpoint": ("checkpoint", "local", "tg.fact.checkpoint.local"),
    "metrics": ("metrics", "local", "tg.fact.metrics.local"),
}


@pytest.mark.parametrize("user", OWN)
async def test_a_service_writes_and_reads_the_journal_as_itself(bus: Bus, user: str) -> None:
    service, instance, subject = OWN[user]
    client = await connect(bus, user)
    journal = NatsJournal(client)
    written = frame(service, instance)
    answer = await journal.append(subject, written, expected_last=0)
    assert isinstance(answer, Appended)
    found = [recorded async for recorded in journal.read(0, await journal.end())]
    assert [recorded.frame for recorded in found] == [written]
    assert (await journal.last(subject)) == found[0]
    await client.close()


@pytest.mark.parametrize("user", [*OWN, "projector", "operator"])
async def test_nobody_writes_as_another(bus: Bus, user: str) -> None:
    client = await connect(bus, user)
    others = {subject for owner, (_, _, subject) in OWN.items() if owner != user} | {"tg.fact.node.elsewhere"}
    for subject in others:
        with pytest.raises((nats.errors.TimeoutError, TimeoutError)):
            await client.request(subject, b"{}", timeout=REFUSED_SECONDS)
    await client.close()
    admin = await connect(bus, ADMIN)
    assert await NatsJournal(admin).end() == 0
    await admin.close()


@pytest.mark.parametrize("user", [*OWN, "operator"])
async def test_no_service_can_touch_a_stream(bus: Bus, user: str) -> None:
    client = await connect(bus, user)
    calls = ("STREAM.DELETE", "STREAM.PURGE", "STREAM.UPDATE", "STREAM.CREATE", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT")

    async def refused(call: str) -> bool:
        try:
            await client.request(f"$JS.API.{call}.JOURNAL_1", b"{}", timeout=REFUSED_SECONDS)
        except (nats.errors.TimeoutError, TimeoutError):
            return True
        return False

    assert all(await asyncio.gather(*(refused(call) for call in calls)))
    assert await NatsJournal(client).end() == 0
    await client.close()


async def test_even_the_stacks_own_login_cannot_delete_from_the_journal(bus: Bus) -> None:
    admin = await connect(bus, ADMIN)
    journal = NatsJournal(admin)
    await journal.append("tg.decision", frame("scheduler", "local"))
    stream = await admin.jetstream().stream_info("JOURNAL_1")
    assert stream.config.deny_delete
    assert stream.config.deny_purge
    answer = await admin.request("$JS.API.STREAM.PURGE.JOURNAL_1", b"", timeout=2)
    assert b'"error"' in answer.data
    assert await journal.end() == 1
    await admin.close()


async def test_samples_go_into_a_bounded_stream_in_memory_that_a_restarted_bus_has_again(bus: Bus) -> None:
    executor, metrics = await connect(bus, "executor"), await connect(bus, "metrics")
    await executor.jetstream().publish("tg.telemetry.local", b"[]")
    stored = await metrics.jetstream().get_last_msg("TELEMETRY", "tg.telemetry.local")
    assert stored.data == b"[]"
    with pytest.raises((nats.errors.TimeoutError, TimeoutError)):
        await metrics.request("tg.telemetry.local", b"[]", timeout=REFUSED_SECONDS)
    stream = await metrics.jetstream().stream_info("TELEMETRY")
    assert (stream.config.storage, stream.config.discard) == ("memory", "old")
    assert stream.config.max_age == 600
    assert stream.config.max_bytes == 64 * 1024**2
    admin = await connect(bus, ADMIN)
    await admin.request("$JS.API.STREAM.DELETE.TELEMETRY", b"", timeout=2)  # as after a restart of the server
    assert await is_ready(bus, SERVER)
    assert (await metrics.jetstream().stream_info("TELEMETRY")).state.messages == 0
    for client in (executor, metrics, admin):
        await client.close()


async def test_questions_are_answered_through_the_inbox(bus: Bus) -> None:
    scheduler, gateway = await connect(bus, "scheduler"), await connect(bus, "gateway")

    async def answer(message: Msg) -> None:
        await message.respond(b"because")

    await scheduler.subscribe("tg.ask.scheduler.explain", cb=answer)
    for _ in range(2):  # the client writes the first ping past what it has queued, the subscription too
        await scheduler.flush()
    assert (await gateway.request("tg.ask.scheduler.explain", b"{}", timeout=2)).data == b"because"
    await scheduler.close()
    await gateway.close()


async def test_passwords_are_needed_and_lie_where_only_the_owner_reads(bus: Bus, tmp_path: Path) -> None:
    assert stat.S_IMODE(config_file(Home(tmp_path), SERVER).stat().st_mode) == 0o600
    assert len({*bus.passwords.values()}) == len(publish_permissions(ONE_OF_EACH)) + 1
    reader, writer = await asyncio.open_connection("127.0.0.1", bus.ports[0])
    await reader.readline()
    writer.write(b"CONNECT {}\r\nPING\r\n")
    assert b"Authorization Violation" in await reader.readline()
    writer.close()
    await writer.wait_closed()
