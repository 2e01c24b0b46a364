"""Reading the journal in order, whatever each frame lies in: a file of the archive, a closed stream, the live one.

A stream is read by an ephemeral push consumer, made anew from the next sequence whenever it falls silent. Who waits at
the end of a generation hears the server's advisory that the next one was given its subjects, and asks now and then in
case it was lost.

A consumer lives on whichever server of a cluster it was placed on, and delivers that one's copy of the stream. Where
the copy lags, which after a crash can last for minutes, the consumer beats as if there were nothing new. So a consumer
that is made on such a server makes way for another, and who only hears beats compares with the stream's leader, and is
given by that one what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from tidegate_events.cancellation import honour_cancellation
from tidegate_events.journal.archive import Archived, ArchiveDirectory, read_segments
from tidegate_events.journal.base import JournalGapError, JournalUnavailableError, Raw
from tidegate_events.journal.generations import Generation, listed
from tidegate_events.journal.jetstream import NO_ANSWER, STREAM_MISSING_CODE, ApiError, JetStream, raw_of
from tidegate_events.subjects import journal_stream

RETRY_WAIT_SECONDS = 0.2
HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS_MAX = 3.0
HEARTBEATS_BETWEEN_LOOKS = 5
HEARTBEATS_TO_DELIVER = 2
"""How long a consumer may beat and not deliver what the stream's leader has."""
FROM_LEADER_MAX = 1000
"""Messages that are asked of the leader one by one before another consumer is tried."""
CONSUMERS_TRIED_MAX = 3
"""Consumers that are made in search of a server whose copy does not lag; where the server puts each is its choice."""

log = structlog.get_logger()


class _Silent(Exception):
    """The consumer stopped delivering; a new one is needed."""


class Reader:
    """Reads for one account."""

    def __init__(
        self, client: Client, js: JetStream, known: dict[int, Generation], archive: ArchiveDirectory | None
    ) -> None:
        self._client = client
        self._js = js
        self._known = known
        self._archive = archive
        self._looking = asyncio.Lock()

    async def follow(self, after: int) -> AsyncGenerator[Raw, None]:
        """Yield every message after `after`, for ever; generations, reconnects and lost consumers do not show."""
        while True:
            honour_cancellation()
            try:
                async with aclosing(await self._source(after)) as messages:
                    async for raw in messages:
                        after = raw.seq
                        yield raw
            except (_Silent, JournalUnavailableError, *NO_ANSWER) as error:
                if self._client.is_closed:
                    # Final; and a cancellation that meets a closed client comes as ConnectionClosedError.
                    raise JournalUnavailableError("the connection to the bus was closed") from error
                log.info("journal_consumer_renewed", after=after, why=repr(error))
                await asyncio.sleep(RETRY_WAIT_SECONDS)

    async def end(self) -> int:
        """Return the last sequence."""
        there = await listed(self._js, self._known)
        if not there:
            raise JournalUnavailableError("the bus has no journal yet")
        return there[-1].last_seq

    async def _source(self, after: int) -> AsyncGenerator[Raw, None]:
        """Return the messages after `after` of what holds the next one: it may end long before the journal does."""
        there = await listed(self._js, self._known)
        if not there:
            raise JournalUnavailableError("the bus has no journal yet")
        for generation in there:
            if generation.first_seq <= after + 1 and (after < generation.last_seq or generation is there[-1]):
                return self._from_stream(generation.number, after)
        archived = None
        if self._archive is not None:
            async with self._looking:
                archived = await asyncio.to_thread(self._archive.find, after + 1)
        if archived is None:
            where = "has no archive" if self._archive is None else "does not find it in the archive"
            raise JournalGapError(
                f"sequence {after + 1} is no longer on the bus, which begins at {there[0].first_seq}, and this process "
                f"{where}: set TIDEGATE_JOURNAL_ARCHIVE_DIR to where the keeper puts closed generations"
            )
        return self._from_archive(archived, after)

    async def _from_archive(self, archived: Archived, after: int) -> AsyncGenerator[Raw, None]:
        segments = read_segments(archived.path, after)
        while (messages := await asyncio.to_thread(next, segments, None)) is not None:
            honour_cancellation()
            for raw in messages:
                yield raw

    async def _from_stream(self, number: int, after: int) -> AsyncGenerator[Raw, None]:
        arrived: asyncio.Queue[Msg | None] = asyncio.Queue()

        async def on_message(message: Msg) -> None:
            arrived.put_nowait(message)

        async def on_next_open(_message: Msg) -> None:
            arrived.put_nowait(None)

        inbox = self._client.new_inbox()
        hooked = f"$JS.EVENT.ADVISORY.STREAM.UPDATED.{journal_stream(number + 1)}"
        subscriptions = [await self._client.subscribe(inbox, cb=on_message)]
        try:
            subscriptions.append(await self._client.subscribe(hooked, cb=on_next_open))
            async with aclosing(self._until_next(number, after, inbox, arrived)) as messages:
                async for raw in messages:
                    yield raw
        finally:
            if not self._client.is_closed:
                for subscription in subscriptions:
                    await subscription.unsubscribe()

    async def _until_next(
        self, number: int, after: int, inbox: str, arrived: asyncio.Queue[Msg | None]
    ) -> AsyncGenerator[Raw, None]:
        """Yield what arrives of a generation, until the next one is there and all of it was read."""
        held, is_over = await self._extent_of(number)
        if is_over and after >= held:
            return
        await self._begin(number, inbox, after, held)
        expected = expected_at_look = after + 1
        heartbeats = 0
        while not is_over or expected <= held:
            message = await self._next(arrived)
            honour_cancellation()
            behind = expected == expected_at_look and expected <= held
            if heartbeats >= (HEARTBEATS_TO_DELIVER if behind else HEARTBEATS_BETWEEN_LOOKS):
                if behind:
                    async with aclosing(self._from_leader(number, expected, held)) as messages:
                        async for raw in messages:
                            yield raw
                    raise _Silent(f"it beats and does not deliver {expected}; the stream's leader has up to {held}")
                heartbeats, expected_at_look = 0, expected
                held, is_over = await self._extent_of(number)
            if message is None:
                held, is_over = await self._extent_of(number)
                continue
            if not message.reply.startswith("$JS.ACK."):
                heartbeats += 1
                await self._answer_status(message)
                if (sent := _last_sent(message)) >= expected:
                    raise _Silent(f"it has sent up to {sent}, and {expected} did not come")
                continue
            seq = message.metadata.sequence.stream
            if seq > expected:
                if expected == after + 1 and message.metadata.sequence.consumer == 1:
                    raise JournalGapError(f"the journal has no sequence {expected}; the next is {seq}")
                raise _Silent(f"delivery skipped from {expected} to {seq}")
            if seq == expected:
                expected += 1
                yield Raw(seq, message.subject, message.data)

    async def _from_leader(self, number: int, first: int, last: int) -> AsyncGenerator[Raw, None]:
        """Yield what the stream's leader has, one request for each: slow, and as good as the leader."""
        for seq in range(first, min(last, first + FROM_LEADER_MAX - 1) + 1):
            message = await self._js.message(journal_stream(number), {"seq": seq})
            if message is None:
                raise _Silent(f"the leader of {journal_stream(number)} changed: this one does not have {seq}")
            yield raw_of(message)

    async def _next(self, arrived: asyncio.Queue[Msg | None]) -> Msg | None:
        if not arrived.empty():
            return arrived.get_nowait()
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX):
                return await arrived.get()
        except TimeoutError as error:
            raise _Silent(f"nothing for {SILENCE_SECONDS_MAX} s") from error

    async def _extent_of(self, number: int) -> tuple[int, bool]:
        """Return a generation's last sequence, and whether it is over: one that is not may still grow."""
        there = await listed(self._js, self._known)
        if not there or there[-1].number < number:
            return 0, False
        for generation in there:
            if generation.number == number:
                return generation.last_seq, generation is not there[-1]
        raise _Silent(f"{journal_stream(number)} was trimmed")

    async def _begin(self, number: int, inbox: str, after: int, held: int) -> None:
        """Have a generation delivered, from a server with all that its leader `held`, if one comes up."""
        stream = journal_stream(number)
        for tried in range(1, CONSUMERS_TRIED_MAX + 1):
            name = f"{inbox.rsplit('.', 1)[-1]}-{tried}"
            made = await self._create_consumer(stream, name, inbox, after + 1)
            copied = after + made["num_pending"]
            if copied >= held or tried == CONSUMERS_TRIED_MAX:
                return
            log.info("journal_copy_lags", stream=stream, copied=copied, held=held)
            await self._js.call(f"CONSUMER.DELETE.{stream}.{name}")

    async def _create_consumer(self, stream: str, name: str, inbox: str, start: int) -> dict[str, Any]:
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
        try:
            return await self._js.call(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        except ApiError as error:
            if error.code == STREAM_MISSING_CODE:
                raise _Silent(f"{stream} was trimmed") from error
            raise

    async def _answer_status(self, message: Msg) -> None:
        """Answer a flow-control request, which otherwise stalls the consumer; plain heartbeats need nothing."""
        stalled = (message.headers or {}).get("Nats-Consumer-Stalled")
        reply = message.reply or stalled
        if reply:
            await self._client.publish(reply, b"")


def _last_sent(status: Msg) -> int:
    """Return the sequence up to which the consumer has sent when it says so, as it does with each idle heartbeat."""
    return int((status.headers or {}).get("Nats-Last-Stream", 0))
