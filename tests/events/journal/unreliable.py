"""A JetStream that forgets, delays, repeats and reorders: it answers a client's requests as scripted faults say.

Streams behave as the real server's do (guards, duplicates within the window, subjects that are taken away, sealing);
what is unreliable is the way there and back. A request may be lost, arrive later, arrive twice, and each answer may be
lost as well. Whatever was delayed arrives before some later request, in an order of the script's choosing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import msgspec
import nats.errors

from tests.events.journal import unreliable_streams as streams


class Fault(Enum):
    """What becomes of one request."""

    NONE = "none"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    REQUEST_LATE = "request late"
    REQUEST_TWICE = "request twice, once late"
    REFUSED_FOR_NOW = "refused for now"


class Answer(msgspec.Struct):
    """What a client's request returns."""

    data: bytes


class UnreliableClient:
    """The part of a NATS client that the journal's appends use."""

    is_closed = False

    def __init__(self, faults: Iterator[Fault], choose: Callable[[int], int], *, remember_ids: bool = True) -> None:
        self.streams = streams.Streams(remember_ids=remember_ids)
        self._faults = faults
        self._choose = choose
        self._late: list[tuple[str, bytes, dict[str, str]]] = []

    async def request(
        self, subject: str, payload: bytes = b"", *, timeout: float, headers: dict[str, str] | None = None
    ) -> Answer:
        """Carry the request there and the answer back, as the next fault allows."""
        message = (subject, payload, headers or {})
        self._let_some_arrive()
        fault = next(self._faults, Fault.NONE)
        if fault is Fault.REQUEST_LOST:
            raise nats.errors.TimeoutError
        if fault in {Fault.REQUEST_LATE, Fault.REQUEST_TWICE}:
            self._late.append(message)
        if fault is Fault.REQUEST_LATE:
            raise nats.errors.TimeoutError
        if fault is Fault.REFUSED_FOR_NOW:
            return Answer(msgspec.json.encode({"error": {"code": 503, "err_code": 10008, "description": "try later"}}))
        answer = self._deliver(message)
        if fault is Fault.ANSWER_LOST:
            raise nats.errors.TimeoutError
        return answer

    def arrive(self) -> None:
        """Let everything that is still under way arrive."""
        while self._late:
            self._deliver_late()

    def _let_some_arrive(self) -> None:
        while self._late and self._choose(2):
            self._deliver_late()

    def _deliver_late(self) -> None:
        message = self._late.pop(self._choose(len(self._late)))
        try:
            self._deliver(message)
        except nats.errors.NoRespondersError:
            return  # nobody waits for the answer any more

    def _deliver(self, message: tuple[str, bytes, dict[str, str]]) -> Answer:
        subject, payload, headers = message
        if subject.startswith("$JS.API."):
            call = subject.removeprefix("$JS.API.")
            return Answer(msgspec.json.encode(self._api(call, msgspec.json.decode(payload) if payload else {})))
        stream = self.streams.listening(subject)
        if stream is None:
            raise nats.errors.NoRespondersError
        return Answer(msgspec.json.encode(stream.store(subject, payload, headers)))

    def _api(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        if call == "STREAM.NAMES":
            return {"streams": list(self.streams.by_name), "total": len(self.streams.by_name)}
        kind, name = call.rsplit(".", 1)
        if kind in {"STREAM.CREATE", "STREAM.UPDATE"}:
            return self.streams.create(body) if kind == "STREAM.CREATE" else self.streams.update(body)
        stream = self.streams.by_name.get(name)
        if stream is None:
            return streams.refusal(404, 10059, "stream not found")
        if kind == "STREAM.INFO":
            return stream.info()
        assert kind == "STREAM.MSG.GET", call
        found = stream.find(body)
        if found is None:
            return streams.refusal(404, 10037, "no message found")
        data = base64.b64encode(found.data).decode()
        return {"message": {"seq": found.seq, "subject": found.subject, "data": data}}
