"""Appending to the journal on JetStream: each frame once, whatever becomes of the answers.

Appends are plain requests whose JSON answer is read here, because the error *codes* matter: a failed guard is 10071 on
a single server and mostly 10164 in a cluster. After any doubtful answer (timeout, reconnect) what the subject holds
since is read back and compared before anything is written again; after a failed guard, the frame that followed the
guard's.

Each try names the stream it is meant for. So one that arrives late, when the next generation is open, is refused; and
a writer learns in that way that its generation was closed, where it can then read for certain whether its frame is in.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import structlog
from nats.aio.client import Client

from tidegate_events.cancellation import honour_cancellation
from tidegate_events.frame import Frame, Writer, decode, encode
from tidegate_events.journal.base import Appended, Conflict, JournalFullError, JournalUnavailableError, Raw
from tidegate_events.journal.generations import Generation, head_of, listed
from tidegate_events.journal.jetstream import NO_ANSWER, WRONG_LAST_SEQUENCE_CODES, ApiError, JetStream, raw_of

APPEND_TIMEOUT_SECONDS = 2.0
APPEND_SECONDS_MAX = 30.0
APPEND_TRIES_MAX = 150
NOT_STORED_SECONDS_MAX = 4.0
RETRY_WAIT_SECONDS = 0.2
READ_BACK_FRAMES_MAX = 1000

OTHER_STREAM_CODE = 10060
SEALED_CODE = 10109
IN_PROCESS_CODES = frozenset({10158, 10167})
STREAM_FULL_CODES = frozenset({10077, 10047, 10023})

log = structlog.get_logger()


class _Append(msgspec.Struct):
    """One append and what its tries have shown.

    Nothing at or before `floor` can be a try of this append. While `in_doubt`, an earlier try may have written it, and
    it is not sent again before reading back has said that it did not.
    """

    subject: str
    writer: Writer
    data: bytes
    expected_last: int | None
    began: float
    floor: int | None = None
    in_doubt: bool = False
    silent_since: float | None = None


class _Live(msgspec.Struct, frozen=True):
    """The live generation and the older ones, as they were when it was looked up."""

    generation: Generation
    older: tuple[Generation, ...]
    heads: dict[str, Raw | None]


class Appender:
    """Appends for one account; what it knows of generations is renewed when the bus says that it is old."""

    def __init__(self, client: Client, js: JetStream, known: dict[int, Generation]) -> None:
        self._client = client
        self._js = js
        self._known = known
        self._live: _Live | None = None
        self._newest_seq = 0

    async def append(self, subject: str, frame: Frame, expected_last: int | None) -> Appended | Conflict:
        """Append as the port says, within APPEND_SECONDS_MAX and one try more."""
        clock = asyncio.get_running_loop().time
        one = _Append(subject, frame.writer, encode(frame), expected_last, clock())
        for attempt in range(APPEND_TRIES_MAX):
            honour_cancellation()
            try:
                if one.in_doubt and (found := await self._written(one)) is not None:
                    return found
                if (settled := await self._try(one)) is not None:
                    return settled
            except (JournalUnavailableError, *NO_ANSWER) as error:
                self._live = None
                why = repr(error)
                log.warning("append_doubtful", subject=subject, frame=frame.writer.frame_id, attempt=attempt, why=why)
                if not isinstance(error, TimeoutError):
                    one.silent_since = None
                elif one.silent_since is None:
                    one.silent_since = clock() - APPEND_TIMEOUT_SECONDS
                await asyncio.sleep(RETRY_WAIT_SECONDS)
            self._give_up_in_time(one, clock())
        raise _unsettled(one, clock() - one.began)

    def _give_up_in_time(self, one: _Append, now: float) -> None:
        if one.silent_since is not None and now - one.silent_since > NOT_STORED_SECONDS_MAX:
            raise JournalUnavailableError(
                f"the bus answers but has stored nothing on {one.subject} for {now - one.silent_since:.1f} s: "
                "its disk may be full; it may be written later, so read first"
            )
        if now - one.began > APPEND_SECONDS_MAX:
            raise _unsettled(one, now - one.began)

    async def _try(self, one: _Append) -> Appended | Conflict | None:
        live = self._live or await self._look_up()
        if one.floor is None:
            one.floor = self._newest_seq
        before = await self._head(live, one.subject)
        if before is not None and decode(before.data).writer == one.writer:
            return Appended(before.seq, duplicate=True)
        headers = {"Nats-Msg-Id": one.writer.frame_id, "Nats-Expected-Stream": live.generation.stream}
        if one.expected_last is not None:
            guard = one.expected_last
            if guard < live.generation.first_seq:
                if guard != (before.seq if before else 0):
                    return await self._conflict(one, one.expected_last)
                guard = 0
            headers["Nats-Expected-Last-Subject-Sequence"] = str(guard)
        one.in_doubt = True
        answer = await self._client.request(one.subject, one.data, timeout=APPEND_TIMEOUT_SECONDS, headers=headers)
        return await self._settle(one, msgspec.json.decode(answer.data))

    async def _settle(self, one: _Append, body: dict[str, Any]) -> Appended | Conflict | None:
        error = body.get("error")
        if error is None:
            self._newest_seq = max(self._newest_seq, body["seq"])
            return Appended(body["seq"], duplicate=bool(body.get("duplicate")))
        code, description = error.get("err_code", 0), error.get("description", "")
        if code in WRONG_LAST_SEQUENCE_CODES and one.expected_last is not None:
            return await self._conflict(one, one.expected_last)
        if code in STREAM_FULL_CODES:
            if (found := await self._written(one)) is not None:
                return found
            raise JournalFullError(f"the journal takes no more: {description}")
        if code in {OTHER_STREAM_CODE, SEALED_CODE}:
            self._live = None
            return None
        if code in IN_PROCESS_CODES or error.get("code") == 503:
            raise JournalUnavailableError(f"JetStream refused an append for now: {description}")
        raise ApiError(code, description)

    async def _look_up(self) -> _Live:
        there = await listed(self._js, self._known)
        if not there or not there[-1].live:
            raise JournalUnavailableError("no generation of the journal takes appends now; the next one opens soon")
        self._newest_seq = max(self._newest_seq, there[-1].last_seq)
        self._live = _Live(there[-1], there[:-1], {})
        return self._live

    async def _head(self, live: _Live, subject: str) -> Raw | None:
        """Return the subject's last frame before the live generation, read once in its time."""
        if live.generation.number == 1:
            return None
        if subject not in live.heads:
            live.heads[subject] = await self._last_of(live.older, subject)
        return live.heads[subject]

    async def _last_of(self, streams: tuple[Generation, ...], subject: str) -> Raw | None:
        for generation in reversed(streams):
            message = await self._js.message(generation.stream, {"last_by_subj": subject})
            if message is None:
                continue
            last = raw_of(message)
            if generation.closed and last.seq > generation.last_seq:
                raise JournalUnavailableError(
                    f"{generation.stream} is closed, and has {subject} at {last.seq}, after its end at "
                    f"{generation.last_seq}: it was still coming to rest, or the journal has forked, as its keeper says"
                )
            return last
        return await head_of(self._js, subject)

    async def last(self, subject: str) -> Raw | None:
        """Return the subject's last frame, wherever it lies."""
        return await self._last_of(await listed(self._js, self._known), subject)

    async def _conflict(self, one: _Append, expected: int) -> Appended | Conflict:
        # A frame that was written under this guard is the subject's first one after it, whatever came later.
        there = await listed(self._js, self._known)
        followed = await self._next(there, one.subject, expected)
        if followed is not None and decode(followed.data).writer == one.writer:
            return Appended(followed.seq, duplicate=True)
        last = await self._last_of(there, one.subject)
        actual = last.seq if last else 0
        if actual == expected:
            raise JournalUnavailableError(f"something is under way on {one.subject} that is not stored yet")
        return Conflict(expected, actual)

    async def _next(self, there: tuple[Generation, ...], subject: str, after: int) -> Raw | None:
        for generation in there:
            if generation is not there[-1] and generation.last_seq <= after:
                continue  # it is over
            start = max(after + 1, generation.first_seq)
            message = await self._js.message(generation.stream, {"seq": start, "next_by_subj": subject})
            if message is not None:
                return raw_of(message)
        return None

    async def _written(self, one: _Append) -> Appended | None:
        """Return the frame if an earlier try wrote it; None when the subject holds no such frame since."""
        there = await listed(self._js, self._known)
        last = await self._last_of(there, one.subject)
        if last is not None and decode(last.data).writer == one.writer:
            return Appended(last.seq, duplicate=True)
        floor = one.floor
        if last is None or floor is None:
            return None
        for _ in range(READ_BACK_FRAMES_MAX):
            if floor >= last.seq or (found := await self._next(there, one.subject, floor)) is None:
                return None
            if decode(found.data).writer == one.writer:
                return Appended(found.seq, duplicate=True)
            floor = found.seq
        raise JournalUnavailableError(
            f"{one.subject} got more than {READ_BACK_FRAMES_MAX} frames during one append: read before writing again"
        )


def _unsettled(one: _Append, seconds: float) -> JournalUnavailableError:
    return JournalUnavailableError(
        f"append on {one.subject} not settled in {seconds:.1f} s: it may be written later, so read first"
    )
