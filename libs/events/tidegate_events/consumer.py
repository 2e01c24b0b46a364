"""Side-effect consumers: each event of the journal is handed to a handler, at least once, whatever dies in between.

What went well moves a position that is kept on the bus, after it was done: a crash between both hands the event over
again, so a handler must change nothing the second time. While infrastructure is away an event is tried for ever, with
growing pauses. After a handler's own errors, a few in number, the event becomes a dead letter and the reader goes on.

Folds and projections are no side effects and do not read this way: to skip an event would fork history, so they stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar

import msgspec
import structlog

from tidegate_events.cancellation import honour_cancellation
from tidegate_events.clock import Clock
from tidegate_events.deadletter import DeadLetter, DeadLetters, Failure, StoredLetter, encode_event
from tidegate_events.events import Event
from tidegate_events.journal.base import (
    Journal,
    JournalFullError,
    JournalGapError,
    JournalUnavailableError,
    Recorded,
)
from tidegate_events.lanes import Delivery, Lanes, Position, Work
from tidegate_events.positions import Positions
from tidegate_events.register.base import RegisterUnavailableError
from tidegate_events.subjects import token

AWAY_WAIT_SECONDS = 1.0
FRAMES_PER_BREATH = 200
WAITS_LOGGED_EVERY = 20

INFRASTRUCTURE: tuple[type[Exception], ...] = (JournalUnavailableError, JournalFullError, RegisterUnavailableError)
"""What is waited out whoever raises it; a handler adds its own kinds."""

T = TypeVar("T")
log = structlog.get_logger()


class OtherJournalError(Exception):
    """The position was kept of another journal: to go on from it would skip what was never handled."""


class EventGoneError(Exception):
    """The journal no longer holds the event of a dead letter."""


class Handler(Protocol):
    """What a consumer does with events. It must change nothing when an event comes a second time."""

    @property
    def retriable(self) -> tuple[type[Exception], ...]:
        """The errors that say nothing about the event: what the handler needs is away. They are waited out."""
        ...

    def lane(self, event: Event) -> str | None:
        """Return which events have to wait for this one (those of the same lane); None if it is not wanted at all."""
        ...

    async def handle(self, delivery: Delivery) -> None:
        """Process the event. Whatever it raises besides `retriable` counts as a try."""
        ...


class ReaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a consumer: tries before an event is set aside, pauses between tries, events at a time.

    The position is kept after `save_events` events, or `save_seconds` after the first of them. At most `window_events`
    events (and the rest of a frame) are read and not done: a lane that has to wait lets others go on until then.
    """

    name: str
    tries_max: int = 5
    pause_seconds: float = 0.2
    pause_seconds_max: float = 30.0
    parallel: int = 1
    window_events: int = 1024
    save_events: int = 100
    save_seconds: float = 1.0


class ReaderPorts(msgspec.Struct, frozen=True):
    """What a consumer stands on."""

    journal: Journal
    positions: Positions
    letters: DeadLetters
    clock: Clock


class DurableReader:
    """One consumer. `run` is a task of its service."""

    def __init__(self, settings: ReaderSettings, ports: ReaderPorts, handler: Handler) -> None:
        token(settings.name)
        self._settings = settings
        self._ports = ports
        self._handler = handler
        self._lanes = Lanes(Position(), settings.window_events)
        self._moved = asyncio.Condition()
        self._kept = Position()
        self._finished = 0
        self._letters_seen = 0
        self._settled: set[tuple[int, int]] = set()
        """Places beyond the kept position that a letter speaks of, open or closed: reading does not handle those."""

    @property
    def position(self) -> Position:
        """Return how far everything is done."""
        return self._lanes.handled

    async def run(self) -> None:
        """Consume for ever. Raises JournalGapError, UnreadableFrameError and OtherJournalError: trying mends none."""
        await self._begin()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read())
            tasks.create_task(self._hear_letters())
            tasks.create_task(self._save_now_and_then())
            for _ in range(self._settings.parallel):
                tasks.create_task(self._work_for_ever())

    # ---- where it stands ----

    async def _begin(self) -> None:
        name = self._settings.name
        self._kept = await self._patiently(lambda: self._ports.positions.load(name))
        await self._patiently(self._check_history)
        self._lanes = Lanes(self._kept, self._settings.window_events)
        await self._patiently(self._look_at_letters)
        log.info("consumer_begins", consumer=name, after=self._kept.seq)

    async def _check_history(self) -> None:
        seq = self._kept.seq
        if seq == 0:
            return
        remedy = f"remove the position of {self._settings.name} to begin anew"
        end = await self._ports.journal.end()
        if end < seq:
            raise OtherJournalError(f"the position is {seq}, the journal ends at {end}; {remedy}")
        try:
            recorded = await self._frame(seq)
        except JournalGapError as error:
            log.warning("history_not_checked", consumer=self._settings.name, after=seq, why=str(error))
            return
        if recorded.frame.writer.frame_id != self._kept.frame:
            found = recorded.frame.writer.frame_id
            raise OtherJournalError(f"frame {seq} was {self._kept.frame}, here it is {found}; {remedy}")

    async def _save_now_and_then(self) -> None:
        while True:
            honour_cancellation()
            async with self._moved:
                await self._moved.wait_for(lambda: self._lanes.handled.seq > self._kept.seq)
                if self._finished < self._settings.save_events:
                    await self._wait_for_more()
            self._finished = 0
            position = self._lanes.handled
            await self._patiently(lambda: self._ports.positions.save(self._settings.name, position))  # noqa: B023
            self._kept = position
            self._settled = {place for place in self._settled if place[0] > position.seq}

    async def _wait_for_more(self) -> None:
        try:
            async with asyncio.timeout(self._settings.save_seconds):
                await self._moved.wait_for(lambda: self._finished >= self._settings.save_events)
        except TimeoutError:
            return

    # ---- what comes ----

    async def _read(self) -> None:
        while True:
            honour_cancellation()
            try:
                async with aclosing(self._ports.journal.follow(self._lanes.last.seq)) as frames:
                    async for recorded in frames:
                        await self._take(recorded)
                        if recorded.seq % FRAMES_PER_BREATH == 0:
                            await asyncio.sleep(0)
            except JournalUnavailableError as error:
                log.warning("journal_away", consumer=self._settings.name, why=str(error))
            await asyncio.sleep(AWAY_WAIT_SECONDS)

    async def _take(self, recorded: Recorded) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: not self._lanes.full)
            before = self._lanes.last
            for index, event in enumerate(recorded.frame.events):
                lane = self._handler.lane(event)
                if lane is not None and (recorded.seq, index) not in self._settled:
                    delivery = Delivery(recorded.seq, index, recorded.frame.writer, event)
                    self._lanes.add(Work(delivery, lane, before))
            self._lanes.read(recorded.seq, recorded.frame.writer.frame_id)
            self._moved.notify_all()

    async def _hear_letters(self) -> None:
        name = self._settings.name
        async with aclosing(self._ports.letters.follow(name, self._letters_seen)) as letters:
            async for stored in letters:
                await self._hear(stored)

    async def _look_at_letters(self) -> None:
        async with aclosing(self._ports.letters.newer(self._letters_seen, self._settings.name)) as letters:
            async for stored in letters:
                await self._hear(stored)

    async def _hear(self, stored: StoredLetter) -> None:
        """Take note of a letter; one that is to be retried becomes work."""
        letter = stored.letter
        self._letters_seen = stored.revision
        if letter.seq > self._kept.seq:
            self._settled.add((letter.seq, letter.index))
        if letter.state != "retry":
            return
        try:
            recorded = await self._patiently(lambda: self._frame(letter.seq))
            if letter.index >= len(recorded.frame.events):
                raise EventGoneError(f"frame {letter.seq} has no event {letter.index}")
            event = recorded.frame.events[letter.index]
        except (JournalGapError, EventGoneError) as error:
            now_ns = self._ports.clock.now_ns()
            failure = Failure(type(error).__name__, str(error), 1, now_ns, now_ns)
            name = self._settings.name
            await self._patiently(lambda: self._ports.letters.failed_again(name, letter.place, failure))
            return
        delivery = Delivery(letter.seq, letter.index, recorded.frame.writer, event)
        async with self._moved:
            self._lanes.add(Work(delivery, self._handler.lane(event) or "", None))
            self._moved.notify_all()

    async def _frame(self, seq: int) -> Recorded:
        async with aclosing(self._ports.journal.read(seq - 1, seq)) as frames:
            async for recorded in frames:
                return recorded
        raise JournalGapError(f"the journal has no sequence {seq}")

    # ---- what is done ----

    async def _work_for_ever(self) -> None:
        while True:
            honour_cancellation()
            work = await self._next()
            done = await self._try(work)
            async with self._moved:
                if done:
                    self._lanes.finish(work)
                    self._finished += 1
                self._moved.notify_all()

    async def _next(self) -> Work:
        loop = asyncio.get_running_loop()
        async with self._moved:
            while (work := self._lanes.take(loop.time())) is None:
                due = self._lanes.due()
                try:
                    async with asyncio.timeout_at(due):
                        await self._moved.wait()
                except TimeoutError:
                    continue
            return work

    async def _try(self, work: Work) -> bool:
        """Hand an event over once; say whether nothing more is to be done about it."""
        work.first_at_ns = work.first_at_ns or self._ports.clock.now_ns()
        try:
            if work.before is None and not await self._is_wanted(work):
                return True
            await self._handler.handle(work.delivery)
        except (*INFRASTRUCTURE, *self._handler.retriable) as error:
            if work.waits % WAITS_LOGGED_EVERY == 0:
                log.warning("event_waits", **self._about(work), waits=work.waits, why=repr(error))
            self._lanes.again(work, self._due(work.waits))
            work.waits += 1
            return False
        except Exception as error:  # noqa: BLE001 - any other error is the handler's about this event: that is the point
            work.tries += 1
            if work.tries < self._settings.tries_max:
                log.warning("event_failed", **self._about(work), tries=work.tries, error=repr(error))
                self._lanes.again(work, self._due(work.tries - 1))
                return False
            await self._set_aside(work, error)
            return True
        if work.before is None:
            name, place = self._settings.name, work.delivery.place
            await self._patiently(lambda: self._ports.letters.settle(name, place, self._ports.clock.now_ns()))
        return True

    async def _is_wanted(self, work: Work) -> bool:
        """Say whether the retry is still asked for: its letter may have been dropped while it waited."""
        stored = await self._ports.letters.find(self._settings.name, work.delivery.place)
        return stored is not None and stored.letter.state == "retry"

    def _due(self, pauses: int) -> float:
        # Growth is bounded before it is computed: 2 ** pauses of a long outage is no number for a pause.
        pause = self._settings.pause_seconds * 2.0 ** min(pauses, 30)
        return asyncio.get_running_loop().time() + min(self._settings.pause_seconds_max, pause)

    async def _set_aside(self, work: Work, error: Exception) -> None:
        delivery, now_ns = work.delivery, self._ports.clock.now_ns()
        failure = Failure(type(error).__name__, _text(error), work.tries, work.first_at_ns, now_ns)
        name = self._settings.name
        if work.before is None:
            await self._patiently(lambda: self._ports.letters.failed_again(name, delivery.place, failure))
            return
        letter = DeadLetter(
            consumer=name,
            seq=delivery.seq,
            index=delivery.index,
            kind=type(delivery.event).__name__,
            job=getattr(delivery.event, "job", ""),
            event=encode_event(delivery.event),
            **msgspec.structs.asdict(failure),
        )
        log.error("event_failed", **self._about(work), tries=work.tries, exc_info=error)
        await self._patiently(lambda: self._ports.letters.add(letter))

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask` returns, waiting out whatever is away."""
        waits = 0
        while True:
            honour_cancellation()
            try:
                return await ask()
            except INFRASTRUCTURE as error:
                if waits % WAITS_LOGGED_EVERY == 0:
                    log.warning("consumer_waits", consumer=self._settings.name, waits=waits, why=str(error))
                waits += 1
                await asyncio.sleep(AWAY_WAIT_SECONDS)

    def _about(self, work: Work) -> dict[str, str]:
        event = work.delivery.event
        about = {"consumer": self._settings.name, "place": work.delivery.place, "kind": type(event).__name__}
        job = getattr(event, "job", "")
        return {**about, "job": job} if job else about


def _text(error: Exception) -> str:
    """Return what an error says as text that every wire takes: a poison event must not end who sets it aside."""
    try:
        text = str(error)
    except Exception as worse:  # noqa: BLE001 - whatever its words do, the error itself is to be kept
        text = f"its text cannot be made: {type(worse).__name__}"
    return text.encode("utf-8", "backslashreplace").decode()
