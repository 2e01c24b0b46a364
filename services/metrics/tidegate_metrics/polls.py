"""What is asked of others now and then: the scheduler about the queue and its passes, JetStream about the journal."""

from __future__ import annotations

from typing import Protocol

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from tidegate_events import subjects
from tidegate_events.deadletter import nats_letters
from tidegate_events.journal.base import JournalError
from tidegate_events.journal.generations import generations
from tidegate_events.register.base import RegisterUnavailableError

from tidegate_metrics.letter_count import LetterCount

ASK_SECONDS_MAX = 2.0

log = structlog.get_logger()


class WaitingCount(msgspec.Struct, frozen=True):
    """How many jobs of a tenant wait for one reason."""

    tenant: str
    reason: str
    jobs: int


class PassTimes(msgspec.Struct, frozen=True):
    """How long passes, or wakes, took, since the scheduler began."""

    bounds_seconds: tuple[float, ...]
    counts: tuple[int, ...]
    total_seconds: float


class SchedulerAnswer(msgspec.Struct, frozen=True):
    """The leading scheduler's answer to `waiting`."""

    waiting: tuple[WaitingCount, ...]
    passes: PassTimes
    wakes: PassTimes | None = None


class JournalBytes(msgspec.Struct, frozen=True):
    """How large the journal's newest generation is and may become (a negative limit is none), and how many lie before.

    `sealed` counts generations that are closed and still on the bus: until they are archived, or longer by a setting.
    """

    used: int
    limit: int
    generation: int = 1
    sealed: int = 0


class Polls(Protocol):
    """Questions; each returns None where nobody answers in time, or what comes is no answer."""

    async def scheduler(self) -> SchedulerAnswer | None:
        """Ask who waits and how long passes take."""
        ...

    async def journal_bytes(self) -> JournalBytes | None:
        """Ask how large the journal is."""
        ...

    async def count_letters(self, count: LetterCount) -> None:
        """Bring the count of dead letters up to date, as far as the bus answers."""
        ...


class NatsPolls:
    """Asks over one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._letters = nats_letters(client)

    async def scheduler(self) -> SchedulerAnswer | None:
        """Ask the leading scheduler."""
        answer = await self._ask(subjects.ask_scheduler("waiting"))
        try:
            return None if answer is None else msgspec.json.decode(answer, type=SchedulerAnswer)
        except msgspec.MsgspecError as error:
            log.warning("scheduler_answer_unreadable", why=str(error))
            return None

    async def journal_bytes(self) -> JournalBytes | None:
        """Ask JetStream about the generations of the journal."""
        try:
            there = await generations(self._client)
        except (JournalError, nats.errors.Error, OSError) as error:
            log.debug("journal_not_asked", why=repr(error))
            return None
        if not there:
            return None
        newest = there[-1]
        sealed = sum(generation.closed for generation in there)
        return JournalBytes(newest.used_bytes, newest.limit_bytes, newest.number, sealed)

    async def count_letters(self, count: LetterCount) -> None:
        """Read on in the stream of dead letters."""
        try:
            # Asked before reading on: what is older and was not changed since is gone.
            oldest = await self._letters.oldest()
            async for stored in self._letters.newer(count.revision):
                count.apply(stored)
        except RegisterUnavailableError as error:
            log.debug("dead_letters_not_counted", why=str(error))
        else:
            count.forget(oldest)

    async def _ask(self, subject: str) -> bytes | None:
        try:
            return (await self._client.request(subject, b"", timeout=ASK_SECONDS_MAX)).data
        except (nats.errors.Error, TimeoutError, OSError) as error:
            log.debug("nobody_answered", subject=subject, why=repr(error))
            return None
