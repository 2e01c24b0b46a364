"""What is asked of JetStream: how full the journal's newest generation is, and how many lie closed before it."""

from __future__ import annotations

from pathlib import Path

from tidegate_events import bus
from tidegate_events.journal.closing import close, open_next
from tidegate_events.journal.generations import open_first, trim
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.subjects import fact
from tidegate_metrics.polls import JournalBytes, NatsPolls

from tests.events.writing import frame
from tests.support.nats import NatsServer

LIMIT_BYTES = 4 * 1024**2


async def test_the_newest_generation_is_shown_and_the_closed_ones_counted(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    await server.start()
    client = await bus.connect(bus.BusSettings(url=server.url))
    polls = NatsPolls(client)
    try:
        assert await polls.journal_bytes() is None, "there is no journal yet"
        await open_first(client, max_bytes=LIMIT_BYTES)
        await NatsJournal(client).append(fact("gateway", "g1"), frame(padding="x" * 1000))
        first = await polls.journal_bytes()
        assert first is not None
        assert 1000 < first.used < 2000
        assert (first.limit, first.generation, first.sealed) == (LIMIT_BYTES, 1, 0)
        await close(client, 1)
        between = await polls.journal_bytes()
        assert between is not None
        assert (between.generation, between.sealed) == (1, 1)
        await open_next(client, 1, max_bytes=LIMIT_BYTES)
        assert await polls.journal_bytes() == JournalBytes(0, LIMIT_BYTES, 2, 1)
        await trim(client, 1)
        assert await polls.journal_bytes() == JournalBytes(0, LIMIT_BYTES, 2, 0)
        server.stop()
        assert await polls.journal_bytes() is None
    finally:
        await client.close()
        server.stop()
