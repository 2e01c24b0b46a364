"""The journal on NATS JetStream.

Appends are plain requests whose JSON answer is read here, because the error *codes* matter: a failed guard is 10071 on
a single server and mostly 10164 in a cluster. After any doubtful answer (timeout, reconnect) the subject's last message
is read back and compared before anything is written again; after a failed guard, the one that followed the guard's.

Reading uses an ephemeral push consumer that is made anew, from the next sequence, whenever it falls silent.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from tidegate_events.cancellation import honour_cancellation
from tidegate_events.frame import Frame, Writer, decode, encode
from tidegate_events.journal.base import (
    Appended,
    Conflict,
    JournalError,
    JournalFullError,
    JournalGapError,
    JournalUnavailableError,
    Recorded,
)
from tidegate_events.subjects import JOURNAL_STREAM, JOURNAL_SUBJECTS

APPEND_TIMEOUT_SECONDS = 2.0
APPEND_TRIES_MAX = 30
API_TIMEOUT_SECONDS = 2.0
RETRY_WAIT_SECONDS = 0.2
HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS_MAX = 3.0

# Error codes of the JetStream API (server/errors.json of nats-server 2.15).
WRONG_LAST_SEQUENCE_CODES = frozenset({10071, 10164})
NO_MESSAGE_CODE = 10037
STREAM_FULL_CODES = frozenset({10077, 10047, 10023})
STREAM_EXISTS_CODE = 10058

log = structlog.get_logger()
_NO_ANSWER = (
    TimeoutError,
    nats.errors.TimeoutError,
    nats.errors.NoRespondersError,
    nats.errors.ConnectionClosedError,
)


class _Silent(Exception):
    """The consumer stopped delivering; a new one is needed."""


class _ApiError(JournalError):
    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"JetStream refused: {description} (code {code})")
        self.code = code


def stream_config(*, max_bytes: int, replicas: int = 1) -> dict[str, Any]:
    """Return the journal stream's configuration: append-only, fixed order, refusing when full."""
    return {
        "name": JOURNAL_STREAM,
        "subjects": list(JOURNAL_SUBJECTS),
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_bytes": max_bytes,
        "max_msgs": -1,
        "max_age": 0,
        "max_consumers": -1,
        "num_replicas": replicas,
        "duplicate_window": 120_000_000_000,
        "deny_delete": True,
        "deny_purge": True,
        "compression": "s2",
    }


class NatsJournal:
    """The journal of one JetStream account."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def ensure_stream(self, *, max_bytes: int, replicas: int = 1) -> None:
        """Create the stream where it is missing; one that exists is left as it is."""
        try:
            await self._api(f"STREAM.CREATE.{JOURNAL_STREAM}", stream_config(max_bytes=max_bytes, replicas=replicas))
        except _ApiError as error:
            if error.code != STREAM_EXISTS_CODE:
                raise

    async def append(self, subject: str, frame: Frame, *, expected_last: int | None = None) -> Appended | Conflict:
        """Append as the port says, within APPEND_TRIES_MAX tries."""
        data = encode(frame)
        headers = {"Nats-Msg-Id": frame.writer.frame_id}
        if expected_last is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected_last)
        for attempt in range(APPEND_TRIES_MAX):
            honour_cancellation()
            try:
                answer = await self._client.request(subject, data, timeout=APPEND_TIMEOUT_SECONDS, headers=headers)
                settled = await self._settle(subject, frame.writer, expected_last, answer.data)
                if settled is not None:
                    return settled
            except (JournalUnavailableError, *_NO_ANSWER):
                log.warning("append_doubtful", subject=subject, frame=frame.writer.frame_id, attempt=attempt)
                await asyncio.sleep(RETRY_WAIT_SECONDS)
            if (found := await self._find_again(subject, frame.writer)) is not None:
                return found
        raise JournalUnavailableError(
            f"append on {subject} not settled after {APPEND_TRIES_MAX} tries: it may be written later, so read first"
        )

    async def _settle(
        self, subject: str, writer: Writer, expected_last: int | None, answer: bytes
    ) -> Appended | Conflict | None:
        body = msgspec.json.decode(answer)
        error = body.get("error")
        if error is None:
            return Appended(body["seq"], duplicate=bool(body.get("duplicate")))
        code = error.get("err_code", 0)
        if code in WRONG_LAST_SEQUENCE_CODES and expected_last is not None:
            # A frame that was written under this guard is the subject's first one after it, whatever came later.
            followed = await self._message({"seq": expected_last + 1, "next_by_subj": subject})
            if followed is not None and followed.frame.writer == writer:
                return Appended(followed.seq, duplicate=True)
            last = await self.last(subject)
            actual = last.seq if last else 0
            return None if actual == expected_last else Conflict(expected_last, actual)
        if code in STREAM_FULL_CODES:
            raise JournalFullError(f"the journal takes no more: {error.get('description')}")
        if error.get("code") == 503:
            await asyncio.sleep(RETRY_WAIT_SECONDS)
            return None
        raise _ApiError(code, error.get("description", ""))

    async def _find_again(self, subject: str, writer: Writer) -> Appended | None:
        """Return the frame if it is the subject's last one; None when it is not, or nobody answers."""
        try:
            last = await self.last(subject)
        except JournalUnavailableError:
            return None
        if last is not None and last.frame.writer == writer:
            return Appended(last.seq, duplicate=True)
        return None

    async def last(self, subject: str) -> Recorded | None:
        """Return the subject's last frame, read from the stream's leader."""
        return await self._message({"last_by_subj": subject})

    async def _message(self, which: dict[str, Any]) -> Recorded | None:
        try:
            body = await self._api(f"STREAM.MSG.GET.{JOURNAL_STREAM}", which)
        except _ApiError as error:
            if error.code == NO_MESSAGE_CODE:
                return None
            raise
        message = body["message"]
        return Recorded(message["seq"], message["subject"], decode(base64.b64decode(message["data"])))

    async def end(self) -> int:
        """Return the stream's last sequence."""
        body = await self._api(f"STREAM.INFO.{JOURNAL_STREAM}", None)
        return int(body["state"]["last_seq"])

    async def read(self, after: int, until: int) -> AsyncGenerator[Recorded, None]:
        """Yield `after < seq <= until`."""
        if after >= until:
            return
        async with aclosing(self.follow(after)) as frames:
            async for recorded in frames:
                yield recorded
                if recorded.seq >= until:
                    return

    async def follow(self, after: int) -> AsyncGenerator[Recorded, None]:
        """Yield every frame after `after`, for ever; reconnects and lost consumers do not show."""
        while True:
            honour_cancellation()
            try:
                async with aclosing(self._deliver(after)) as frames:
                    async for recorded in frames:
                        after = recorded.seq
                        yield recorded
            except (_Silent, JournalUnavailableError, *_NO_ANSWER) as error:
                if self._client.is_closed:
                    # Final; and a cancellation that meets a closed client comes as ConnectionClosedError.
                    raise JournalUnavailableError("the connection to the bus was closed") from error
                log.info("journal_consumer_renewed", after=after, why=repr(error))
                await asyncio.sleep(RETRY_WAIT_SECONDS)

    async def _deliver(self, after: int) -> AsyncGenerator[Recorded, None]:
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        try:
            await self._create_consumer(inbox, after + 1)
            expected = after + 1
            while True:
                try:
                    message = await subscription.next_msg(timeout=SILENCE_SECONDS_MAX)
                except TimeoutError as error:
                    raise _Silent(f"nothing for {SILENCE_SECONDS_MAX} s") from error
                honour_cancellation()
                if not message.reply.startswith("$JS.ACK."):
                    await self._answer_status(message)
                    continue
                seq = message.metadata.sequence.stream
                if seq > expected:
                    if expected == after + 1:
                        raise JournalGapError(f"the journal has no sequence {expected}; the next is {seq}")
                    raise _Silent(f"delivery skipped from {expected} to {seq}")
                if seq == expected:
                    expected += 1
                    yield Recorded(seq, message.subject, decode(message.data))
        finally:
            if not self._client.is_closed:
                await subscription.unsubscribe()

    async def _create_consumer(self, inbox: str, start: int) -> None:
        name = inbox.rsplit(".", 1)[-1]
        config = {
            "name": name,
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": start,
            "ack_policy": "none",
            "max_deliver": 1,
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
            "inactive_threshold": 5_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
        }
        await self._api(f"CONSUMER.CREATE.{JOURNAL_STREAM}.{name}", {"stream_name": JOURNAL_STREAM, "config": config})

    async def _answer_status(self, message: Msg) -> None:
        """Answer a flow-control request, which otherwise stalls the consumer; plain heartbeats need nothing."""
        stalled = (message.headers or {}).get("Nats-Consumer-Stalled")
        reply = message.reply or stalled
        if reply:
            await self._client.publish(reply, b"")

    async def _api(self, call: str, body: dict[str, Any] | None) -> dict[str, Any]:
        payload = b"" if body is None else msgspec.json.encode(body)
        try:
            answer = await self._client.request(f"$JS.API.{call}", payload, timeout=API_TIMEOUT_SECONDS)
        except _NO_ANSWER as error:
            raise JournalUnavailableError(
                f"JetStream did not answer {call.split('.', maxsplit=1)[0]} in {API_TIMEOUT_SECONDS} s"
            ) from error
        decoded: dict[str, Any] = msgspec.json.decode(answer.data)
        if (refusal := decoded.get("error")) is not None:
            if refusal.get("code") == 503:
                raise JournalUnavailableError(str(refusal.get("description")))
            raise _ApiError(refusal.get("err_code", 0), refusal.get("description", ""))
        return decoded
