"""The durable reader: whatever fails and dies in between, every event is handled, in order, or set aside with why."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events import consumer, deadletter
from tidegate_events.clock import ManualClock, SystemClock
from tidegate_events.consumer import DurableReader, OtherJournalError, ReaderPorts, ReaderSettings
from tidegate_events.deadletter import DeadLetter, DeadLetters
from tidegate_events.events import CancelRequested, Event
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import JournalGapError, JournalUnavailableError
from tidegate_events.journal.memory import MemoryJournal
from tidegate_events.lanes import Delivery, Position
from tidegate_events.positions import Positions
from tidegate_events.register.base import Kept, RegisterUnavailableError, Stale
from tidegate_events.register.memory import MemoryRegister

NAME = "mailer"
SECONDS_MAX = 30
TRIES_MAX = 2
SUBJECT = "tg.fact.gateway.g1"


class Crash(BaseException):
    """The process dies here."""


class ServiceAwayError(Exception):
    """What the handler needs does not answer."""


class Fate:
    """Lets the process die, or a call fail, at steps that were drawn before."""

    def __init__(self, crashes: set[int] = frozenset(), outages: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self._crashes, self._outages = crashes, outages
        self.step = 0

    def meet(self, outage: type[Exception]) -> None:
        self.step += 1
        if self.step in self._crashes:
            raise Crash
        if self.step in self._outages:
            raise outage("away")


class Register(MemoryRegister):
    """A register on a bus that may be away before a call, or after it was done."""

    def __init__(self, fate: Fate) -> None:
        super().__init__()
        self._fate = fate

    async def get(self, key: str) -> Kept | None:
        self._fate.meet(RegisterUnavailableError)
        return await super().get(key)

    async def put(self, key: str, data: bytes, expected: int) -> int | Stale:
        self._fate.meet(RegisterUnavailableError)
        answer = await super().put(key, data, expected)
        self._fate.meet(RegisterUnavailableError)
        return answer

    async def next(self, after: int, under: str = "") -> Kept | None:
        self._fate.meet(RegisterUnavailableError)
        return await super().next(after, under)


class Mailer:
    """Sends one mail for each event; `failing` says how often each place fails (-1: always)."""

    retriable = (ServiceAwayError,)

    def __init__(self, failing: dict[str, int] | None = None, fate: Fate | None = None) -> None:
        self.failing = failing or {}
        self.sent: Counter[str] = Counter()
        self.calls: list[tuple[str, str]] = []
        self._fate = fate or Fate()

    def lane(self, event: Event) -> str | None:
        assert isinstance(event, CancelRequested)
        return None if event.actor == "nobody" else event.job

    async def handle(self, delivery: Delivery) -> None:
        place = delivery.place
        self.calls.append((delivery.event.job, place))  # type: ignore[attr-defined]
        self._fate.meet(ServiceAwayError)
        await asyncio.sleep(0)
        if (left := self.failing.get(place, 0)) != 0:
            self.failing[place] = left - 1
            raise ValueError(f"{place} cannot be mailed")
        if place not in self.sent:  # what makes it idempotent
            self.sent[place] += 1
        self._fate.meet(ServiceAwayError)


class World:
    """A journal, registers and a handler that outlive the readers."""

    def __init__(self, mailer: Mailer, fate: Fate | None = None, **bounds: Any) -> None:
        self.journal = MemoryJournal()
        register = Register(fate) if fate is not None else MemoryRegister()
        self.positions = register if fate is None else Register(fate)
        self.letters = DeadLetters(register)
        self.mailer = mailer
        self.clock = ManualClock()
        quick = {"tries_max": TRIES_MAX, "pause_seconds": 0.0, "save_seconds": 0.0, "save_events": 3}
        self.settings = ReaderSettings(name=NAME, **{**quick, **bounds})
        self._written = 0

    async def write(self, *jobs: str, actor: str = "") -> None:
        """Append one frame with an event for each job."""
        self._written += 1
        writer = Writer("gateway", "g1", 1, self._written)
        events = [
            CancelRequested(id=writer.event_id(i), at_ns=1, tenant="lab", job=job, actor=actor)
            for i, job in enumerate(jobs)
        ]
        await self.journal.append(SUBJECT, Frame(writer, tuple(events)))

    def reader(self, journal: MemoryJournal | None = None) -> DurableReader:
        ports = ReaderPorts(journal or self.journal, Positions(self.positions), self.letters, self.clock)
        return DurableReader(self.settings, ports, self.mailer)

    async def run(self, until: Callable[[DurableReader], Any]) -> None:
        """Run a reader until `until` holds. Raises Crash if it dies before."""
        reader = self.reader()
        try:
            async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as tasks:
                running = tasks.create_task(reader.run())
                while not await _true(until(reader)):  # noqa: ASYNC110 - it must not pass by between two steps
                    await asyncio.sleep(0)
                running.cancel()
        except* Crash:
            raise Crash from None

    async def run_to_end(self) -> None:
        """Run readers, one after the other where they die, until everything is done and that is kept."""
        end = await self.journal.end()
        while True:
            try:
                await self.run(lambda _reader: self._kept(end))
            except Crash:
                self.mailer.calls.append(("crash", ""))
            else:
                return

    async def _kept(self, end: int) -> bool:
        kept = await MemoryRegister.get(self.positions, NAME)
        return kept is not None and f'"seq":{end},'.encode() in kept.data

    async def dead(self) -> dict[str, DeadLetter]:
        return {stored.letter.place: stored.letter async for stored in self.letters.newer(0)}


async def _true(found: Any) -> bool:
    return bool(await found) if asyncio.iscoroutine(found) else bool(found)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "AWAY_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(deadletter, "LOOK_SECONDS", 0.01)


JOBS = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3)
STEPS = st.sets(st.integers(1, 120), max_size=8)


@settings(max_examples=40, deadline=None)
@given(
    frames=st.lists(JOBS, min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
    parallel=st.sampled_from([1, 3]),
    window=st.sampled_from([1, 3, 100]),
    crashes=STEPS,
    outages=STEPS,
)
def test_whatever_fails_and_dies(  # noqa: PLR0917 - Hypothesis names them all
    frames: list[list[str]], seed: int, parallel: int, window: int, crashes: set[int], outages: set[int]
) -> None:
    drawn = random.Random(seed)
    places = [(f"{seq}.{index}", job) for seq, jobs in enumerate(frames, 1) for index, job in enumerate(jobs)]
    failing = {place: drawn.choice([0, 0, 0, 1, -1]) for place, _ in places}
    hopeless = {place for place, count in failing.items() if count < 0}
    fate = Fate(crashes, outages)
    world = World(Mailer(dict(failing), fate), fate, parallel=parallel, window_events=window)

    async def story() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(consumer, "AWAY_WAIT_SECONDS", 0.0)
            patch.setattr(deadletter, "LOOK_SECONDS", 0.002)
            for jobs in frames:
                await world.write(*jobs)
            await world.run_to_end()
            fate.__init__()  # type: ignore[misc]  # nothing more happens while we look
            dead = await world.dead()
        # Every event had its effect exactly once, but for those that never succeed: just those are dead letters.
        assert world.mailer.sent == Counter(place for place, _ in places if place not in hopeless)
        assert set(dead) == hopeless
        for letter in dead.values():
            assert (letter.state, letter.error_type, letter.attempts) == ("dead", "ValueError", TRIES_MAX)
            assert letter.error_text == f"{letter.place} cannot be mailed"
        _in_order(world.mailer.calls, [job for _, job in places] if parallel > 1 else [])

    asyncio.run(story())


def _in_order(calls: list[tuple[str, str]], jobs: list[str]) -> None:
    """Assert that no lane ever goes back, except to what may come again when a process died."""
    newest: dict[str, tuple[int, ...]] = {}
    for job, place in calls:
        if job == "crash":
            newest.clear()
            continue
        at = tuple(map(int, place.split(".")))
        assert newest.get(job, (0,)) <= at, f"{job} went back to {place}"
        newest[job] = at
    assert not jobs or set(jobs) >= set(newest)


async def test_it_goes_on_where_it_stopped_and_leaves_out_what_nobody_wants() -> None:
    world = World(Mailer())
    await world.write("a", "b")
    await world.write("c", actor="nobody")
    await world.run_to_end()
    await world.write("d")
    await world.run_to_end()
    assert [place for _, place in world.mailer.calls] == ["1.0", "1.1", "3.0"]
    assert (await Positions(world.positions).load(NAME)) == Position(3, "gateway/g1/1/3")


async def test_a_dead_letter_says_what_happened_and_holds_nobody_up() -> None:
    world = World(Mailer({"1.1": -1}), tries_max=3)
    world.clock.advance(5)
    await world.write("a", "b", "c")
    await world.run_to_end()
    assert world.mailer.sent == {"1.0": 1, "1.2": 1}
    letter = (await world.dead())["1.1"]
    assert (letter.consumer, letter.seq, letter.index, letter.kind, letter.job) == (NAME, 1, 1, "CancelRequested", "b")
    assert (letter.error_type, letter.attempts, letter.first_at_ns) == ("ValueError", 3, world.clock.now_ns())
    assert b'"job":"b"' in bytes(letter.event)


async def test_what_is_away_is_waited_out_and_sets_nothing_aside() -> None:
    fate = Fate(outages=set(range(1, 60)))
    world = World(Mailer(fate=fate))
    await world.write("a")
    await world.run_to_end()
    assert fate.step >= 60
    assert world.mailer.sent == {"1.0": 1}
    assert await world.dead() == {}


async def test_a_lane_that_waits_holds_up_no_other_until_the_window_is_full() -> None:
    class Stuck(Mailer):
        away = True

        async def handle(self, delivery: Delivery) -> None:
            if delivery.event.job == "a" and self.away:  # type: ignore[attr-defined]
                raise ServiceAwayError("a's mailbox")
            await super().handle(delivery)

    stuck = Stuck()
    world = World(stuck, window_events=4, pause_seconds=0.001, pause_seconds_max=0.01)
    for job in ("a", "b", "a", "b", "a", "a", "b"):
        await world.write(job)
    await world.run(lambda _reader: len(stuck.sent) == 2)
    assert set(stuck.sent) == {"2.0", "4.0"}
    assert (await Positions(world.positions).load(NAME)).seq == 0, "what waits would be skipped after a crash"
    stuck.away = False
    await world.run_to_end()
    assert [place for job, place in stuck.calls if job == "a"] == ["1.0", "3.0", "5.0", "6.0"]
    assert all(count == 1 for count in stuck.sent.values())


@pytest.mark.parametrize("asked_while_down", [True, False])
async def test_a_retry_is_done_when_the_consumer_is_there(asked_while_down: bool) -> None:
    world = World(Mailer({"1.0": -1}))
    await world.write("a")
    await world.run_to_end()
    world.mailer.failing.clear()

    async def handled() -> bool:
        return (await world.dead())["1.0"].state == "handled"

    asking = world.letters.ask_retry(NAME, "1.0", by="op", reason="fixed", now_ns=7)
    if asked_while_down:
        await asking
        await world.run(lambda _reader: handled())
    else:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.run(lambda _reader: handled()))
            await asking
            await running
    letter = (await world.dead())["1.0"]
    assert (letter.by, letter.reason, bytes(letter.event)) == ("op", "fixed", b"null")
    assert world.mailer.sent == {"1.0": 1}


async def test_a_retry_that_fails_leaves_the_letter_with_more_attempts() -> None:
    world = World(Mailer({"1.0": -1}))
    await world.write("a")
    await world.run_to_end()
    world.clock.advance(60)
    await world.letters.ask_retry(NAME, "1.0", by="op", reason="", now_ns=world.clock.now_ns())

    async def dead_again() -> bool:
        return (await world.dead())["1.0"].state == "dead"

    await world.run(lambda _reader: dead_again())
    letter = (await world.dead())["1.0"]
    assert letter.attempts == 2 * TRIES_MAX
    assert letter.last_at_ns - letter.first_at_ns == 60 * 10**9


async def test_a_dropped_letter_is_not_retried_and_its_event_not_read_again() -> None:
    world = World(Mailer({"1.0": -1}), save_events=1000, save_seconds=1000.0)
    await world.write("a")
    await world.run(lambda _reader: world.dead())
    # The position was never kept, so the event is read again; the operator has given it up, and that stands.
    await world.letters.drop(NAME, "1.0", by="op", reason="no such address", now_ns=9)
    world.mailer.failing.clear()
    await world.write("b")
    await world.run(lambda reader: reader.position.seq == 2)
    assert world.mailer.sent == {"2.0": 1}


async def test_a_retry_that_was_dropped_while_it_waited_is_not_done() -> None:
    world = World(Mailer({"1.0": -1}))
    await world.write("a")
    await world.run_to_end()
    world.mailer.failing.clear()
    await world.letters.ask_retry(NAME, "1.0", by="op", reason="", now_ns=1)

    class Away(Mailer):
        async def handle(self, delivery: Delivery) -> None:
            if delivery.seq == 1:
                self.calls.append(("a", "1.0"))
                await world.letters.drop(NAME, "1.0", by="op", reason="", now_ns=2)
                raise ServiceAwayError
            await super().handle(delivery)

    world.mailer = Away()
    await world.write("b")
    await world.run_to_end()
    await world.run(lambda _reader: ("a", "1.0") in world.mailer.calls)
    await world.write("c")
    await world.run_to_end()
    assert world.mailer.sent == {"2.0": 1, "3.0": 1}
    assert world.mailer.calls.count(("a", "1.0")) == 1


async def test_a_letter_of_an_event_that_is_gone_fails_again() -> None:
    world = World(Mailer())
    await world.write("a")
    await world.run_to_end()
    for seq, index in ((1, 7), (99, 0)):
        letter = DeadLetter(
            consumer=NAME,
            seq=seq,
            index=index,
            kind="X",
            error_type="E",
            error_text="",
            attempts=1,
            first_at_ns=1,
            last_at_ns=1,
        )
        await world.letters.add(letter)
        await world.letters.ask_retry(NAME, letter.place, by="op", reason="", now_ns=1)

    async def settled() -> bool:
        return all(letter.state == "dead" for letter in (await world.dead()).values())

    await world.run(lambda _reader: settled())
    dead = await world.dead()
    assert (dead["1.7"].error_type, dead["99.0"].error_type) == ("EventGoneError", "JournalGapError")


async def test_the_position_of_another_journal_is_refused() -> None:
    world = World(Mailer())
    await world.write("a")
    await world.write("b")
    await world.run_to_end()
    shorter, other = MemoryJournal(), MemoryJournal()
    event = CancelRequested(id="x", at_ns=1, tenant="lab", job="z")
    for seq in (1, 2):
        await other.append(SUBJECT, Frame(Writer("gateway", "elsewhere", 1, seq), (event,)))
    for journal, why in ((shorter, "ends at 0"), (other, "frame 2 was gateway/g1/1/2")):
        with pytest.raises(OtherJournalError, match=why):
            await world.reader(journal).run()


async def test_a_gap_in_history_ends_it_loudly_and_an_absence_does_not() -> None:
    errors = [JournalUnavailableError("away"), JournalGapError("sequence 1 is gone")]

    class Odd(MemoryJournal):
        def follow(self, after: int) -> Any:
            raise errors.pop(0)

    world = World(Mailer())
    with pytest.raises(ExceptionGroup) as caught:
        await world.reader(Odd()).run()
    assert caught.group_contains(JournalGapError, match="sequence 1 is gone")
    assert errors == []


async def test_two_processes_of_one_name_never_move_the_position_back() -> None:
    register = MemoryRegister()
    ahead, behind = Positions(register), Positions(register)
    for positions in (ahead, behind):
        assert await positions.load(NAME) == Position()
    await ahead.save(NAME, Position(9, "f9"))
    await behind.save(NAME, Position(4, "f4"))
    assert await behind.load(NAME) == Position(9, "f9")
    await behind.save(NAME, Position(12, "f12"))
    await ahead.save(NAME, Position(11, "f11"))
    assert await ahead.load(NAME) == Position(12, "f12")


async def test_a_position_that_cannot_be_read_says_what_to_do() -> None:
    register = MemoryRegister()
    await register.put(NAME, b"{", 0)
    with pytest.raises(ValueError, match=f"nats kv del POSITIONS {NAME}"):
        await Positions(register).load(NAME)


async def test_the_pauses_between_tries_grow_to_their_bound() -> None:
    world = World(Mailer(), pause_seconds=0.5, pause_seconds_max=4.0)
    world.clock = SystemClock()  # type: ignore[assignment]
    reader = world.reader()
    now = asyncio.get_running_loop().time()
    pauses = [round(reader._due(count) - now, 1) for count in (0, 1, 2, 3, 4, 10**6)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


async def test_an_error_that_no_wire_takes_is_set_aside_like_any_other() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("it has no words")

    class Filing(Mailer):
        async def handle(self, delivery: Delivery) -> None:
            if delivery.place == "1.0":
                raise ValueError("no file " + b"/results/\xff".decode(errors="surrogateescape"))
            if delivery.place == "2.0":
                raise Unspeakable
            await super().handle(delivery)

    world = World(Filing())
    await world.write("a")
    await world.write("b")
    await world.write("c")
    await world.run_to_end()
    dead = await world.dead()
    assert set(dead) == {"1.0", "2.0"}
    assert "/results/" in dead["1.0"].error_text
    assert dead["2.0"].error_type == "Unspeakable"
    assert world.mailer.sent == Counter({"3.0": 1})
