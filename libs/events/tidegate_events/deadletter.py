"""Dead letters: events that a side-effect consumer could not process, kept with why, to be retried or dropped.

A letter is named by its consumer and its event's place in history: the same event set aside twice is one letter. What
becomes of it is written over it: asked to be retried, handled at last, or dropped. So a retry that was asked for while
its consumer was down is found when that is back, and what was dropped by whom stays on record until the stream lets
the oldest go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import msgspec
import structlog
from nats.aio.client import Client

from tidegate_events.cancellation import honour_cancellation
from tidegate_events.register.base import Kept, Register, RegisterUnavailableError, Stale
from tidegate_events.register.nats import NatsRegister
from tidegate_events.subjects import token

DEADLETTER_STREAM = "DEADLETTER"
DEADLETTER_PREFIX = "tg.deadletter"
LETTER_AGE_SECONDS_MAX = 30 * 24 * 3600
LETTERS_MAX = 10_000
ERROR_CHARS_MAX = 2000
TEXT_CHARS_MAX = 500
LOOK_SECONDS = 5.0
"""How soon a retry is seen whose hint got lost, and how long a stream that is away is left alone."""
CHANGE_TRIES_MAX = 5
NS_PER_SECOND = 1_000_000_000

State = Literal["dead", "retry", "handled", "dropped"]
OPEN: tuple[State, ...] = ("dead", "retry")

log = structlog.get_logger()


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that `consumer` did not process in `attempts` tries, and what became of it.

    (`seq`, `index`) is its place in the order that the consumer reads. `by` and `reason` are whoever asked for the
    retry, or dropped it, and why. `event` is gone once the letter is closed.
    """

    consumer: str
    seq: int
    index: int
    kind: str
    job: str = ""
    state: State = "dead"
    error_type: str
    error_text: str
    attempts: int
    first_at_ns: int
    last_at_ns: int
    by: str = ""
    reason: str = ""
    changed_at_ns: int = 0
    event: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def place(self) -> str:
        """Return its event's place as the journal writes places."""
        return f"{self.seq}.{self.index}"

    @property
    def key(self) -> str:
        """Return its key in the register."""
        return f"{self.consumer}.{self.place}"

    @property
    def is_open(self) -> bool:
        """Say whether something is still to be done about it."""
        return self.state in OPEN


class Failure(msgspec.Struct, frozen=True):
    """How the tries to process an event ended."""

    error_type: str
    error_text: str
    attempts: int
    first_at_ns: int
    last_at_ns: int


class StoredLetter(msgspec.Struct, frozen=True):
    """A letter as it was at `revision`."""

    letter: DeadLetter
    revision: int


class NoLetterError(Exception):
    """There is no such letter, or it is closed already."""


class LetterContestedError(RegisterUnavailableError):
    """Others kept changing the letter; look at it again."""


def stream_config(*, max_bytes: int, replicas: int = 1) -> dict[str, Any]:
    """Return the stream's configuration: one message of each letter, on disk; the oldest go when it is full or old."""
    return {
        "name": DEADLETTER_STREAM,
        "subjects": [f"{DEADLETTER_PREFIX}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_bytes": max_bytes,
        "max_msgs": LETTERS_MAX,
        "max_msgs_per_subject": 1,
        "max_age": LETTER_AGE_SECONDS_MAX * NS_PER_SECOND,
        "num_replicas": replicas,
        "deny_delete": True,
        "deny_purge": True,
    }


def nats_letters(client: Client) -> DeadLetters:
    """Return the letters of one JetStream account."""
    return DeadLetters(NatsRegister(client, DEADLETTER_STREAM, DEADLETTER_PREFIX))


def encode_event(event: object) -> msgspec.Raw:
    """Return an event as a letter carries it."""
    return msgspec.Raw(msgspec.json.encode(event))


class DeadLetters:
    """All letters. Every method but `follow` raises RegisterUnavailableError."""

    def __init__(self, register: Register) -> None:
        self._register = register

    async def add(self, letter: DeadLetter) -> None:
        """Keep a letter unless its event has an open one already. Raises LetterContestedError."""
        token(letter.consumer)
        text = letter.error_text[:ERROR_CHARS_MAX]
        data = msgspec.json.encode(msgspec.structs.replace(letter, error_text=text))
        for _ in range(CHANGE_TRIES_MAX):
            kept = await self._register.get(letter.key)
            known = _read(kept) if kept is not None else None
            if known is not None and known.letter.is_open:
                return
            if not isinstance(await self._register.put(letter.key, data, kept.revision if kept else 0), Stale):
                log.error("event_set_aside", **_about(letter), error=f"{letter.error_type}: {text}")
                return
        raise LetterContestedError(f"{letter.key} was changed by others {CHANGE_TRIES_MAX} times in a row")

    async def find(self, consumer: str, place: str) -> StoredLetter | None:
        """Return a letter, also a closed one; None where none is kept."""
        kept = await self._register.get(f"{consumer}.{place}")
        return None if kept is None else _read(kept)

    async def newer(self, after: int, consumer: str = "") -> AsyncGenerator[StoredLetter, None]:
        """Yield the letters (of one consumer, where named) that changed after revision `after`, the oldest first."""
        while (kept := await self._register.next(after, consumer)) is not None:
            after = kept.revision
            if (stored := _read(kept)) is not None:
                yield stored

    async def follow(self, consumer: str, after: int) -> AsyncGenerator[StoredLetter, None]:
        """Yield the consumer's letters as they change, for ever; a register that is away is waited for."""
        async with self._register.changes(consumer) as changed:
            while True:
                changed.clear()
                try:
                    async for stored in self.newer(after, consumer):
                        after = stored.revision
                        yield stored
                except RegisterUnavailableError as error:
                    log.warning("dead_letters_away", consumer=consumer, why=str(error))
                honour_cancellation()
                await _wait(changed, LOOK_SECONDS)

    async def oldest(self) -> int:
        """Return the revision below which letters were let go."""
        return await self._register.oldest()

    async def ask_retry(self, consumer: str, place: str, *, by: str, reason: str, now_ns: int) -> DeadLetter:
        """Ask the consumer to process the event again, now or when it is back.

        Raises NoLetterError and LetterContestedError.
        """
        return await self._change(consumer, place, lambda letter: _marked(letter, "retry", by, reason, now_ns))

    async def drop(self, consumer: str, place: str, *, by: str, reason: str, now_ns: int) -> DeadLetter:
        """Give the event up. Raises NoLetterError and LetterContestedError."""
        return await self._change(consumer, place, lambda letter: _marked(letter, "dropped", by, reason, now_ns))

    async def settle(self, consumer: str, place: str, now_ns: int) -> None:
        """Note that the event was processed at last; nothing happens where the letter is closed already."""
        try:
            await self._change(consumer, place, lambda it: _marked(it, "handled", it.by, it.reason, now_ns))
        except NoLetterError:
            log.info("dead_letter_gone_meanwhile", consumer=consumer, place=place)

    async def failed_again(self, consumer: str, place: str, failure: Failure) -> None:
        """Note that a retry failed; nothing happens where the letter is closed already."""

        def again(letter: DeadLetter) -> DeadLetter:
            return msgspec.structs.replace(
                letter,
                state="dead",
                error_type=failure.error_type,
                error_text=failure.error_text[:ERROR_CHARS_MAX],
                attempts=letter.attempts + failure.attempts,
                last_at_ns=failure.last_at_ns,
                changed_at_ns=failure.last_at_ns,
            )

        try:
            await self._change(consumer, place, again)
        except NoLetterError:
            log.info("dead_letter_gone_meanwhile", consumer=consumer, place=place)

    async def _change(self, consumer: str, place: str, change: Callable[[DeadLetter], DeadLetter]) -> DeadLetter:
        for _ in range(CHANGE_TRIES_MAX):
            stored = await self.find(consumer, place)
            if stored is None:
                raise NoLetterError(f"{consumer} has no dead letter {place}; see `tidegate deadletter ls`")
            if not stored.letter.is_open:
                raise NoLetterError(f"the dead letter {consumer} {place} is {stored.letter.state} already")
            changed = change(stored.letter)
            if not isinstance(
                await self._register.put(changed.key, msgspec.json.encode(changed), stored.revision), Stale
            ):
                log.info("dead_letter_changed", **_about(changed), state=changed.state, by=changed.by)
                return changed
        raise LetterContestedError(f"{consumer}.{place} was changed by others {CHANGE_TRIES_MAX} times in a row")


def _marked(letter: DeadLetter, state: State, by: str, reason: str, now_ns: int) -> DeadLetter:
    event = letter.event if state in OPEN else msgspec.Raw(b"null")
    return msgspec.structs.replace(
        letter,
        state=state,
        by=by[:TEXT_CHARS_MAX],
        reason=reason[:TEXT_CHARS_MAX],
        changed_at_ns=now_ns,
        event=event,
    )


def _read(kept: Kept) -> StoredLetter | None:
    """Return the letter; None for what is none, which must not hide the others."""
    try:
        letter = msgspec.json.decode(kept.data, type=DeadLetter)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.warning("dead_letter_unreadable", key=kept.key, why=str(error))
        return None
    if letter.key != kept.key:
        log.warning("dead_letter_unreadable", key=kept.key, why=f"it says that it is {letter.key}")
        return None
    return StoredLetter(letter, kept.revision)


def _about(letter: DeadLetter) -> dict[str, Any]:
    about = {"consumer": letter.consumer, "place": letter.place, "kind": letter.kind, "attempts": letter.attempts}
    return {**about, "job": letter.job} if letter.job else about


async def _wait(changed: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return
