"""Dead letters and positions on the stack's own bus: each consumer keeps its own, the operator may settle any."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import nats.errors
import pytest
from tidegate_checkpoint.verifying import reader_settings
from tidegate_events.bus import connect
from tidegate_events.deadletter import nats_letters
from tidegate_events.lanes import Position
from tidegate_events.positions import nats_positions
from tidegate_events.subjects import fact
from tidegate_local import plan
from tidegate_local.bus import Bus, new_bus
from tidegate_local.topology import Topology

from tests.metrics.letters import letter
from tests.support.stack_bus import running

CONSUMERS = ("checkpoint", "projector")
REFUSED_SECONDS = 0.3


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    """Yield the stack's bus, running."""
    async with running(tmp_path, new_bus((plan.free_port(),))) as made:
        yield made


async def test_a_consumer_sets_aside_and_the_operator_settles(bus: Bus) -> None:
    operator = await connect(bus.login("operator"))
    for consumer in CONSUMERS:
        client = await connect(bus.login(consumer))
        letters = nats_letters(client)
        await letters.add(letter(consumer, 1))
        await nats_letters(operator).ask_retry(consumer, "1.0", by="op", reason="", now_ns=1)
        stored = await letters.find(consumer, "1.0")
        assert stored is not None
        assert stored.letter.state == "retry"
        await letters.settle(consumer, "1.0", 2)
        await letters.add(letter(consumer, 2))
        await nats_letters(operator).drop(consumer, "2.0", by="op", reason="", now_ns=3)
        await client.close()
    states = {stored.letter.key: stored.letter.state async for stored in nats_letters(operator).newer(0)}
    assert states == {f"{c}.{place}": s for c in CONSUMERS for place, s in (("1.0", "handled"), ("2.0", "dropped"))}
    await operator.close()


async def test_who_reads_the_journal_keeps_its_position(bus: Bus) -> None:
    client = await connect(bus.login("checkpoint"))
    positions = nats_positions(client)
    assert await positions.load("checkpoint") == Position()
    await positions.save("checkpoint", Position(7, "f"))
    assert await nats_positions(client).load("checkpoint") == Position(7, "f")
    await client.close()


@pytest.mark.parametrize("login", [*CONSUMERS, "scheduler", "executor", "metrics", "gateway"])
async def test_nobody_touches_what_another_consumer_keeps(bus: Bus, login: str) -> None:
    client = await connect(bus.login(login))
    for other in set(CONSUMERS) - {login}:
        for subject in (f"tg.deadletter.{other}.1.0", f"$KV.POSITIONS.{other}"):
            with pytest.raises((nats.errors.TimeoutError, TimeoutError)):
                await client.request(subject, b"{}", timeout=REFUSED_SECONDS)
    await client.close()
    operator = await connect(bus.login("operator"))
    assert [stored async for stored in nats_letters(operator).newer(0)] == []
    await operator.close()


async def test_a_nodes_checkpoint_service_keeps_what_is_its_own_and_nothing_of_another_node(tmp_path: Path) -> None:
    made = new_bus((plan.free_port(),), topology=Topology(checkpoint_nodes=("n1", "n2")))
    name = reader_settings(1, "n1").name
    async with running(tmp_path, made):
        client = await connect(made.login(name))
        await nats_positions(client).save(name, Position(7, "f"))
        assert await nats_positions(client).load(name) == Position(7, "f")
        await nats_letters(client).add(letter(name, 1))
        assert await nats_letters(client).find(name, "1.0") is not None
        answer = await client.request(fact("checkpoint", "n1"), b"{}", timeout=REFUSED_SECONDS * 10)
        assert b"JOURNAL_1" in answer.data
        others = [fact("checkpoint", "n2"), fact("checkpoint", "local"), fact("node", "n1")]
        others += [f"$KV.POSITIONS.checkpoint{of}" for of in ("", "-n2")]
        others += [f"tg.deadletter.checkpoint{of}.1.0" for of in ("", "-n2")]
        for subject in others:
            with pytest.raises((nats.errors.TimeoutError, TimeoutError)):
                await client.request(subject, b"{}", timeout=REFUSED_SECONDS)
        await client.close()
