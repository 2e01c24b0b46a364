"""Telemetry from JetStream, by an ephemeral pull consumer that is made anew whenever it falls silent.

Nothing is acknowledged: where this service stands is its own to keep. The consumer's own sequence tells a lost delivery
from messages that the stream itself let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.subjects import TELEMETRY_STREAM
from tidegate_events.telemetry import stream_config

from tidegate_metrics.feed.base import Message, read

API_TIMEOUT_SECONDS = 2.0
RETRY_WAIT_SECONDS = 1.0
BATCH_MESSAGES = 256
EXPIRES_SECONDS = 2.0
SILENCE_SECONDS_MAX = 5.0
INACTIVE_SECONDS = 30.0
STREAM_MISSING_CODE = 10059
NS_PER_SECOND = 1_000_000_000

log = structlog.get_logger()
_NO_ANSWER = (
    TimeoutError,
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
    nats.errors.ConnectionReconnectingError,
)


class _Renew(Exception):
    """The consumer is of no more use; a new one is needed."""


class _Refused(Exception):
    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"JetStream refused: {description} (code {code})")
        self.code = code


class FeedClosedError(Exception):
    """The connection to the bus was closed for good."""


class NatsFeed:
    """The stream TELEMETRY; `create_bytes_max` is the size to make it with where it is missing, 0 to wait for it."""

    def __init__(self, client: Client, *, create_bytes_max: int = 0) -> None:
        self._client = client
        self._create_bytes_max = create_bytes_max

    async def follow(self, since_ns: int) -> AsyncGenerator[Message, None]:
        """Yield as the port says. Raises FeedClosedError."""
        at_ns, seen = since_ns, ("", 0)
        while True:
            try:
                async with aclosing(self._deliver(at_ns)) as messages:
                    async for message in messages:
                        if message.stream == seen[0] and message.seq <= seen[1]:
                            continue  # a new consumer begins at a time, and several messages can share one
                        at_ns, seen = message.at_ns, (message.stream, message.seq)
                        yield message
            except (_Renew, _Refused, *_NO_ANSWER) as error:
                honour_cancellation()
                if self._client.is_closed:
                    raise FeedClosedError("the connection to the bus was closed") from error
                log.info("telemetry_consumer_renewed", why=repr(error))
                if isinstance(error, _Refused) and error.code == STREAM_MISSING_CODE:
                    await self._create_stream()
                await asyncio.sleep(RETRY_WAIT_SECONDS)

    async def _create_stream(self) -> None:
        if not self._create_bytes_max:
            return
        try:
            await self._api(f"STREAM.CREATE.{TELEMETRY_STREAM}", stream_config(max_bytes=self._create_bytes_max))
        except (_Refused, *_NO_ANSWER) as error:  # whoever may make streams will have to
            log.warning("telemetry_stream_missing", why=str(error))

    async def _deliver(self, since_ns: int) -> AsyncGenerator[Message, None]:
        inbox = self._client.new_inbox()
        name = inbox.rsplit(".", 1)[-1]
        subscription = await self._client.subscribe(inbox)
        try:
            await self._create_consumer(name, since_ns)
            stream = str((await self._api(f"STREAM.INFO.{TELEMETRY_STREAM}", None))["created"])
            delivered = 0
            while True:
                await self._ask_for_more(name, inbox)
                for _ in range(BATCH_MESSAGES):
                    honour_cancellation()
                    message = await self._next(subscription)
                    if message is None:
                        break
                    place = message.metadata
                    delivered += 1
                    if place.sequence.consumer != delivered:
                        raise _Renew(f"delivery skipped to {place.sequence.consumer}, not {delivered}")
                    yield read(stream, place.sequence.stream, _ns(place.timestamp), message.subject, message.data)
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    async def _ask_for_more(self, name: str, inbox: str) -> None:
        wanted = {"batch": BATCH_MESSAGES, "expires": int(EXPIRES_SECONDS * NS_PER_SECOND)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{TELEMETRY_STREAM}.{name}"
        await self._client.publish(subject, msgspec.json.encode(wanted), reply=inbox)

    async def _next(self, subscription: Any) -> Msg | None:
        """Return the next message; None when the request for more is over."""
        try:
            message: Msg = await subscription.next_msg(timeout=SILENCE_SECONDS_MAX)
        except TimeoutError as error:
            raise _Renew(f"no answer for {SILENCE_SECONDS_MAX} s") from error
        if message.reply.startswith("$JS.ACK."):
            return message
        status = (message.headers or {}).get("Status", "")
        if status in ("404", "408"):  # nothing came until it expired
            return None
        raise _Renew(f"status {status}: {(message.headers or {}).get('Description', '')}")

    async def _create_consumer(self, name: str, since_ns: int) -> None:
        config = {
            "name": name,
            "deliver_policy": "by_start_time",
            "opt_start_time": _rfc3339(since_ns),
            "ack_policy": "none",
            "replay_policy": "instant",
            "inactive_threshold": int(INACTIVE_SECONDS * NS_PER_SECOND),
            "mem_storage": True,
            "num_replicas": 1,
        }
        body = {"stream_name": TELEMETRY_STREAM, "config": config}
        await self._api(f"CONSUMER.CREATE.{TELEMETRY_STREAM}.{name}", body)

    async def _api(self, call: str, body: dict[str, Any] | None) -> dict[str, Any]:
        payload = b"" if body is None else msgspec.json.encode(body)
        answer = await self._client.request(f"$JS.API.{call}", payload, timeout=API_TIMEOUT_SECONDS)
        decoded: dict[str, Any] = msgspec.json.decode(answer.data)
        if (refusal := decoded.get("error")) is not None:
            raise _Refused(refusal.get("err_code", 0), refusal.get("description", ""))
        return decoded


def _ns(moment: datetime) -> int:
    """Return nanoseconds of a datetime, exactly (its float timestamp loses some)."""
    return (int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond) * 1000


def _rfc3339(at_ns: int) -> str:
    seconds, rest = divmod(max(0, at_ns), NS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC).strftime('%Y-%m-%dT%H:%M:%S')}.{rest:09d}Z"
