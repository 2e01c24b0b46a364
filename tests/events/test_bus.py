"""A connection is closed in peace also while the bus is away: whoever is told to end then ends well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from tidegate_events import bus
from tidegate_events.journal.base import JournalUnavailableError
from tidegate_events.journal.jetstream import JetStream

from tests.support.nats import NatsServer

LOOKS_MAX = 500


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
def test_closing_while_the_bus_is_away_and_something_waits_to_be_sent(
    tmp_path: Path, run: Callable[[Awaitable[None]], None]
) -> None:
    async def story() -> None:
        server = NatsServer(tmp_path)
        await server.start()
        client = await bus.connect(bus.BusSettings(url=server.url))
        server.stop()
        for _ in range(LOOKS_MAX):
            if not client.is_connected:
                break
            await asyncio.sleep(0.02)
        with pytest.raises(JournalUnavailableError):
            await JetStream(client).call("INFO")
        await bus.close(client)
        assert client.is_closed

    run(story())
