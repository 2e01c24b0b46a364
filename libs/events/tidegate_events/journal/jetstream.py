"""The calls of JetStream's API that the journal needs, as requests whose error codes are read here."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client

from tidegate_events.journal.base import JournalError, JournalUnavailableError, Raw

API_TIMEOUT_SECONDS = 2.0
PAGES_MAX = 100

# Error codes of the JetStream API (server/errors.json of nats-server 2.15).
NO_MESSAGE_CODE = 10037
STREAM_MISSING_CODE = 10059
STREAM_EXISTS_CODE = 10058
SUBJECTS_OVERLAP_CODE = 10065
NO_PEERS_CODE = 10005  # a server is not back yet, or its leader has not heard it yet: right after a start
WRONG_LAST_SEQUENCE_CODES = frozenset({10071, 10164})

NO_ANSWER = (
    TimeoutError,
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
    nats.errors.OutboundBufferLimitError,  # while the bus is away: what waits to be sent is bounded
)


class ApiError(JournalError):
    """JetStream refused a call; `code` says why."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"JetStream refused: {description} (code {code})")
        self.code = code


class JetStream:
    """The API of one account."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer. Raises JournalUnavailableError where none comes, ApiError for a refusal."""
        payload = b"" if body is None else msgspec.json.encode(body)
        try:
            answer = await self._client.request(f"$JS.API.{call}", payload, timeout=API_TIMEOUT_SECONDS)
        except NO_ANSWER as error:
            raise JournalUnavailableError(f"JetStream did not answer {call} in {API_TIMEOUT_SECONDS} s") from error
        decoded: dict[str, Any] = msgspec.json.decode(answer.data)
        if (refusal := decoded.get("error")) is not None:
            if refusal.get("code") == 503 or refusal.get("err_code") == NO_PEERS_CODE:
                raise JournalUnavailableError(f"JetStream refused {call} for now: {refusal.get('description')}")
            raise ApiError(refusal.get("err_code", 0), refusal.get("description", ""))
        return decoded

    async def names(self) -> list[str]:
        """Return the names of all streams."""
        found: list[str] = []
        for _ in range(PAGES_MAX):
            page = await self.call("STREAM.NAMES", {"offset": len(found)})
            listed = page.get("streams") or []
            found += listed
            if not listed or len(found) >= page.get("total", 0):
                return found
        raise JournalError(f"more than {len(found)} streams: that is no bus of Tidegate's")

    async def info(self, stream: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Return what the stream's leader says of it, None where there is no such stream."""
        return await self._unless_missing(f"STREAM.INFO.{stream}", body)

    async def message(self, stream: str, which: dict[str, Any]) -> dict[str, Any] | None:
        """Return a stored message as the stream's leader has it, None where there is none or no such stream."""
        body = await self._unless_missing(f"STREAM.MSG.GET.{stream}", which)
        return None if body is None else body["message"]

    async def _unless_missing(self, call: str, body: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            return await self.call(call, body)
        except ApiError as error:
            if error.code in {NO_MESSAGE_CODE, STREAM_MISSING_CODE}:
                return None
            raise


def raw_of(message: dict[str, Any]) -> Raw:
    """Return the stored message's sequence, subject and bytes."""
    return Raw(message["seq"], message["subject"], base64.b64decode(message.get("data", "")))
