"""A register on a JetStream stream that keeps one message of each subject; a key-value bucket is such a stream.

Calls are plain requests whose JSON answer is read here, as the journal's are: the error codes matter. After a doubtful
answer the subject is read back before anything is written again.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tidegate_events.cancellation import honour_cancellation
from tidegate_events.register.base import Kept, RegisterUnavailableError, Stale

CALL_SECONDS_MAX = 2.0
PUT_TRIES_MAX = 5
RETRY_WAIT_SECONDS = 0.2

# Error codes of the JetStream API (server/errors.json of nats-server 2.15).
WRONG_LAST_SEQUENCE_CODES = frozenset({10071, 10164})
NO_MESSAGE_CODE = 10037

_NO_ANSWER = (
    TimeoutError,
    OSError,
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.OutboundBufferLimitError,  # while the bus is away: what waits to be sent is bounded
)


class _Refused(Exception):
    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} (code {code})")
        self.code = code


class NatsRegister:
    """The stream `stream`; the subject of a key is `<prefix>.<key>`."""

    def __init__(self, client: Client, stream: str, prefix: str) -> None:
        self._client = client
        self._stream = stream
        self._prefix = prefix

    async def get(self, key: str) -> Kept | None:
        """Return the key's value, read from the stream's leader."""
        return await self._message({"last_by_subj": f"{self._prefix}.{key}"})

    async def put(self, key: str, data: bytes, expected: int) -> int | Stale:
        """Write as the port says, within PUT_TRIES_MAX tries."""
        subject = f"{self._prefix}.{key}"
        headers = {"Nats-Expected-Last-Subject-Sequence": str(expected)}
        why = ""
        for _ in range(PUT_TRIES_MAX):
            honour_cancellation()
            try:
                answer = await self._call(subject, data, headers)
                return int(answer["seq"])
            except _Refused as error:
                if error.code not in WRONG_LAST_SEQUENCE_CODES:
                    raise RegisterUnavailableError(f"{self._stream} did not take {key}: {error}") from error
                # Either somebody was faster, or it was we ourselves, and the answer got lost.
                why = str(error)
                kept = await self.get(key)
                actual = kept.revision if kept is not None else 0
                if kept is not None and actual > expected and kept.data == data:
                    return actual
                if actual != expected:
                    return Stale(expected, actual)
            except RegisterUnavailableError as error:
                why = str(error)
            await asyncio.sleep(RETRY_WAIT_SECONDS)
        raise RegisterUnavailableError(f"{self._stream} did not settle {key} in {PUT_TRIES_MAX} tries: {why}")

    async def next(self, after: int, under: str = "") -> Kept | None:
        """Return the oldest value newer than `after`."""
        return await self._message({"seq": after + 1, "next_by_subj": self._subjects(under)})

    async def oldest(self) -> int:
        """Return the stream's first sequence."""
        try:
            body = await self._call(f"$JS.API.STREAM.INFO.{self._stream}", b"")
        except _Refused as error:
            raise RegisterUnavailableError(f"{self._stream} cannot be read: {error}") from error
        state = body["state"]
        return int(state["first_seq"]) if state["messages"] else int(state["last_seq"]) + 1

    @asynccontextmanager
    async def changes(self, under: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that every message below `under` sets; those sent while we reconnect are missed."""
        changed = asyncio.Event()

        async def hear(_message: Msg) -> None:
            changed.set()

        subscription = await self._client.subscribe(self._subjects(under), cb=hear)
        try:
            yield changed
        finally:
            with suppress(nats.errors.Error):  # a connection that is being closed takes its subscriptions along
                await subscription.unsubscribe()

    def _subjects(self, under: str) -> str:
        return f"{self._prefix}.{under}.>" if under else f"{self._prefix}.>"

    async def _message(self, which: dict[str, Any]) -> Kept | None:
        try:
            body = await self._call(f"$JS.API.STREAM.MSG.GET.{self._stream}", msgspec.json.encode(which))
        except _Refused as error:
            if error.code == NO_MESSAGE_CODE:
                return None
            raise RegisterUnavailableError(f"{self._stream} cannot be read: {error}") from error
        message = body["message"]
        key = message["subject"].removeprefix(f"{self._prefix}.")
        return Kept(key, base64.b64decode(message.get("data", "")), int(message["seq"]))

    async def _call(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Return the answer's body. Raises _Refused and RegisterUnavailableError."""
        try:
            answer = await self._client.request(subject, data, timeout=CALL_SECONDS_MAX, headers=headers)
        except _NO_ANSWER as error:
            raise RegisterUnavailableError(f"JetStream did not answer in {CALL_SECONDS_MAX:g} s: {error!r}") from error
        body: dict[str, Any] = msgspec.json.decode(answer.data)
        if (refusal := body.get("error")) is not None:
            if refusal.get("code") == 503:
                raise RegisterUnavailableError(str(refusal.get("description")))
            raise _Refused(int(refusal.get("err_code", 0)), str(refusal.get("description")))
        return body
