"""Journals for the contract suite: each adapter on a fresh, empty store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_events import bus
from tidegate_events.journal.base import Journal
from tidegate_events.journal.memory import MemoryJournal
from tidegate_events.journal.nats import NatsJournal

from tests.support.nats import NatsServer

STREAM_BYTES_MAX = 64 * 1024 * 1024


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Yield a running server."""
    server = NatsServer(tmp_path)
    await server.start()
    yield server
    server.stop()


@pytest.fixture
async def nats_journal(server: NatsServer) -> AsyncIterator[NatsJournal]:
    """Yield an empty journal on a real server."""
    client = await bus.connect(bus.BusSettings(url=server.url))
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=STREAM_BYTES_MAX)
    yield journal
    await client.close()


@pytest.fixture(params=["memory", "nats"])
def journal(request: pytest.FixtureRequest) -> Journal:
    """Yield each adapter in turn."""
    if request.param == "memory":
        return MemoryJournal()
    adapter: Journal = request.getfixturevalue("nats_journal")
    return adapter
