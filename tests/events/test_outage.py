"""While the bus is away a client keeps only so much to be sent; what it takes no more of counts as not answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from nats.aio.client import Client
from tidegate_events import bus
from tidegate_events.journal import nats_append
from tidegate_events.journal.base import JournalUnavailableError
from tidegate_events.journal.generations import Generation
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.positions import POSITIONS_PREFIX, POSITIONS_STREAM
from tidegate_events.register import nats as register
from tidegate_events.register.base import RegisterUnavailableError
from tidegate_events.register.nats import NatsRegister

from tests.events.writing import frame
from tests.support.nats import NatsServer

AT_ONCE = 4
LARGE_BYTES = 800_000
LOOKS_MAX = 500


@pytest.fixture
async def cut_off(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """Yield a client whose server has gone."""
    monkeypatch.setattr(nats_append, "APPEND_SECONDS_MAX", 0.5)
    monkeypatch.setattr(nats_append, "APPEND_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(register, "CALL_SECONDS_MAX", 0.3)
    client = await bus.connect(bus.BusSettings(url=server.url))
    server.stop()
    for _ in range(LOOKS_MAX):
        if not client.is_connected:
            break
        await asyncio.sleep(0.02)
    yield client
    with suppress(OSError):  # what it still had to send goes nowhere
        await client.close()


async def test_many_large_appends_are_all_refused_as_unavailable(cut_off: Client) -> None:
    journal = NatsJournal(cut_off)
    live = Generation(number=1, first_seq=1, last_seq=0, used_bytes=0, limit_bytes=-1, live=True, closed=False)
    journal._appender._live = nats_append._Live(live, (), {})  # looked up before the bus went away
    ended = await asyncio.gather(
        *(journal.append("tg.fact.gateway.g1", frame("g1", n, padding="x" * LARGE_BYTES)) for n in range(AT_ONCE)),
        return_exceptions=True,
    )
    assert [type(each) for each in ended] == [JournalUnavailableError] * AT_ONCE, ended


async def test_a_register_says_that_it_is_away(cut_off: Client) -> None:
    kept = NatsRegister(cut_off, POSITIONS_STREAM, POSITIONS_PREFIX)
    ended = await asyncio.gather(
        *(kept.put(f"k{n}", b"x" * LARGE_BYTES, 0) for n in range(AT_ONCE)), return_exceptions=True
    )
    assert [type(each) for each in ended] == [RegisterUnavailableError] * AT_ONCE, ended
