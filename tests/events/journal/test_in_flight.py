"""In a cluster a frame may be under way for a while: sent again it is refused as a duplicate, or by its own guard."""

from __future__ import annotations

import asyncio

import msgspec
import nats.errors
import pytest
from tidegate_events.journal import nats_append
from tidegate_events.journal.base import Appended
from tidegate_events.journal.generations import stream_config
from tidegate_events.journal.nats import NatsJournal

from tests.events.journal.unreliable import Answer, UnreliableClient
from tests.events.journal.unreliable_streams import refusal
from tests.events.writing import frame

SUBJECT = "tg.fact.gateway.g1"
UNDER_WAY_SECONDS = 0.5
SENT_MAX = 10


class SlowQuorum(UnreliableClient):
    """A leader that has proposed the first frame it got and waits for the others to take it, as nats-server 2.15."""

    def __init__(self, refused: tuple[int, int, str]) -> None:
        super().__init__(iter(()), lambda _count: 0)
        self.streams.create(stream_config(max_bytes=1024))
        self.sent = 0
        self._refused = refused

    async def request(
        self, subject: str, payload: bytes = b"", *, timeout: float, headers: dict[str, str] | None = None
    ) -> Answer:
        """Let the first frame get no answer, and refuse it again until it is stored."""
        if subject != SUBJECT:
            return await super().request(subject, payload, timeout=timeout, headers=headers)
        self.sent += 1
        if self.sent == 1:
            asyncio.get_running_loop().call_later(UNDER_WAY_SECONDS, self._deliver, (subject, payload, headers or {}))
            raise nats.errors.TimeoutError
        if not self.streams.all_messages():
            return Answer(msgspec.json.encode(refusal(*self._refused)))
        return await super().request(subject, payload, timeout=timeout, headers=headers)


@pytest.mark.parametrize(
    ("guard", "refused"),
    [
        (None, (409, 10158, "duplicate message id is in process")),
        (0, (409, 10158, "duplicate message id is in process")),
        (0, (400, 10164, "wrong last sequence")),
        (None, (429, 10167, "too many requests")),
    ],
)
async def test_a_frame_under_way_is_waited_for(
    guard: int | None, refused: tuple[int, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_append, "RETRY_WAIT_SECONDS", 0.1)
    client = SlowQuorum(refused)
    journal = NatsJournal(client)  # type: ignore[arg-type]
    assert await journal.append(SUBJECT, frame("g1", 1), expected_last=guard) == Appended(1, duplicate=True)
    assert len(client.streams.all_messages()) == 1
    assert 1 < client.sent <= SENT_MAX, "asked now and then, not as fast as it goes"
