"""One bus with an open journal for each test of the keeper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from tidegate_events import bus
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.generations import open_first
from tidegate_events.journal.nats import NatsJournal

from tests.scheduler.keeper.bench import GENERATION_BYTES, History
from tests.support.nats import NatsServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    made = NatsServer(tmp_path)
    await made.start()
    yield made
    made.stop()


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    made = await bus.connect(bus.BusSettings(url=server.url))
    await open_first(made, max_bytes=GENERATION_BYTES)
    yield made
    await made.close()


@pytest.fixture
def archive_dir(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
async def history(client: Client, archive_dir: Path) -> History:
    """Return a history that has begun."""
    made = History(NatsJournal(client, ArchiveDirectory(archive_dir)))
    await made.begin()
    return made
