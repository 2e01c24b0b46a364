"""Spans through the real projection: killed between batches, projected again beside the old tables, exported once."""

from __future__ import annotations

import random

import httpx
import pytest
from tidegate_events.clock import SystemClock
from tidegate_events.deadletter import DeadLetters
from tidegate_events.register.memory import MemoryRegister
from tidegate_gateway.database import generations
from tidegate_gateway.projector.projection import Projection
from tidegate_gateway.projector.store import Head
from tidegate_gateway.traces import store
from tidegate_gateway.traces.export import Exporter, OtlpSettings
from tidegate_gateway.traces.store import Position

from tests.gateway.traces.conftest import Kept
from tests.gateway.traces.story import preempted_and_resumed
from tests.gateway.traces.telling import derived
from tests.support.otlp import OtlpReceiver


async def project(kept: Kept, generation: generations.Generation, seed: int) -> None:
    """Write the story in batches of random size; the projector forgets everything after each."""
    frames, chance = preempted_and_resumed(), random.Random(seed)
    while True:
        projection = await Projection.load(kept.database, generation)
        batch = frames[projection.seq : projection.seq + chance.randint(1, 5)]
        if not batch:
            return
        await projection.write(batch, Head(len(frames), 0, "test"))


@pytest.mark.parametrize("seed", range(3))
async def test_projecting_again_gives_the_same_spans_and_exports_none(
    kept: Kept, receiver: OtlpReceiver, seed: int
) -> None:
    exporter = Exporter(
        OtlpSettings(f"{receiver.url}/v1/traces"), kept.database, DeadLetters(MemoryRegister()), SystemClock()
    )
    wanted = derived(preempted_and_resumed())
    async with httpx.AsyncClient(trust_env=False) as client, kept.database.connection() as connection:
        first = await generations.ensure_active(connection)
        await project(kept, first, seed)
        assert await store.read_after(connection, Position(), 1000) == wanted
        while await exporter.step(client):
            pass
        assert len(receiver.spans) == len(wanted)

        second = await generations.building(connection)
        await project(kept, second, seed + 10)
        assert await generations.activate(connection, second)
        assert await store.read_after(connection, Position(), 1000) == wanted
        states = [await store.load_states(connection, each.schema) for each in (first, second)]
        assert states[0] == states[1]
        assert not await exporter.step(client)
        assert len(receiver.spans) == len(wanted)
