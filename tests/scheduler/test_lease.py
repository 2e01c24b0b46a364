"""The lease as a state machine: who may take it when, what a doubtful write means, and that two never believe in it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tidegate_events.clock import ManualClock
from tidegate_scheduler.lease import (
    CLOCK_MARGIN,
    COMPUTATIONS_PER_LEASE,
    LEASE_SECONDS_MAX,
    RENEWALS_PER_LEASE,
    Entry,
    Lease,
    LeaseRecord,
    Write,
)

SECONDS = 1.0
QUARTER = SECONDS / RENEWALS_PER_LEASE
WAIT = SECONDS * (1 + CLOCK_MARGIN)


class Bucket:
    """Compare-and-set on one record."""

    def __init__(self) -> None:
        self.entry: Entry | None = None

    def write(self, write: Write) -> int | None:
        revision = self.entry.revision if self.entry is not None else 0
        if write.expected_revision != revision:
            return None
        self.entry = Entry(revision + 1, write.record)
        return revision + 1


class Pair:
    """Two processes, one bucket, and a clock that both read alike."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.clock = ManualClock(0)
        self.one = Lease("one", "s1", SECONDS)
        self.two = Lease("two", "s2", SECONDS)
        self.epoch = 0

    @property
    def now(self) -> float:
        return self.clock.now_ns() / 1e9

    def turn(self, lease: Lease) -> bool:
        """Do what the driver does when the bus is well; say whether the lease is held."""
        if lease.wants_read():
            lease.on_read(self.bucket.entry, self.now)
        write = lease.propose(self.now, epoch_folded=self.epoch, now_ns=self.clock.now_ns())
        if write is not None:
            revision = self.bucket.write(write)
            if revision is None:
                lease.on_doubt()
            else:
                lease.on_written(write, revision, self.now)
        return lease.holds(self.now)

    def record(self) -> LeaseRecord:
        assert self.bucket.entry is not None
        assert self.bucket.entry.record is not None
        return self.bucket.entry.record


@pytest.fixture
def pair() -> Pair:
    made = Pair()
    assert made.turn(made.one)
    assert not made.turn(made.two)
    return made


def test_of_two_that_see_it_free_one_gets_it() -> None:
    pair = Pair()
    for lease in (pair.one, pair.two):
        lease.on_read(pair.bucket.entry, pair.now)
    asked = [lease.propose(pair.now, epoch_folded=7, now_ns=0) for lease in (pair.one, pair.two)]
    first, second = asked
    assert first is not None
    assert second is not None
    assert first.record.epoch == second.record.epoch == 8
    pair.two.on_written(second, pair.bucket.write(second) or 0, pair.now)
    assert pair.bucket.write(first) is None
    pair.one.on_doubt()
    assert not pair.turn(pair.one)
    assert pair.two.holds(pair.now)
    other = pair.one.other_leads(pair.now)
    assert other is not None
    assert other.instance == "s2"


def test_a_holder_renews_every_quarter_and_keeps_it_for_ever(pair: Pair) -> None:
    for _ in range(40):
        pair.clock.advance(QUARTER)
        assert pair.turn(pair.one)
        assert not pair.turn(pair.two)
    assert pair.record().epoch == 1
    assert pair.record().number == 41
    assert pair.one.due_in(pair.now) == pytest.approx(QUARTER)


def test_a_dead_holders_lease_is_taken_after_its_time_and_not_before(pair: Pair) -> None:
    pair.clock.advance(QUARTER)
    assert not pair.turn(pair.two)
    pair.clock.advance(WAIT - QUARTER - 0.001)
    assert not pair.turn(pair.two)
    assert pair.two.due_in(pair.now) == pytest.approx(0.001)
    pair.clock.advance(0.002)
    assert pair.turn(pair.two)
    assert pair.record().epoch == 2


def test_the_waiting_time_begins_anew_with_every_renewal_that_is_seen(pair: Pair) -> None:
    for _ in range(5):
        pair.clock.advance(0.9)
        revision = pair.bucket.entry.revision + 1 if pair.bucket.entry else 0
        pair.bucket.entry = Entry(revision, msgspec.structs.replace(pair.record(), number=revision))
        assert not pair.turn(pair.two)
        assert pair.two.other_leads(pair.now) is not None


def test_who_starts_beside_a_lease_of_unknown_age_waits_for_all_of_it(pair: Pair) -> None:
    pair.clock.advance(100)
    late = Lease("late", "s3", SECONDS)
    assert not pair.turn(late)
    pair.clock.advance(WAIT - 0.01)
    assert not pair.turn(late)
    pair.clock.advance(0.02)
    assert pair.turn(late)


def test_what_the_record_says_counts_and_not_ones_own_setting(pair: Pair) -> None:
    """Two schedulers may have been given different settings."""
    hasty = Lease("hasty", "s3", 0.2)
    pair.turn(hasty)
    pair.clock.advance(0.9)
    assert not pair.turn(hasty)
    assert pair.one.holds(pair.now)


def test_a_released_lease_is_taken_at_once(pair: Pair) -> None:
    write = pair.one.propose_release(pair.now)
    assert write is not None
    assert not pair.one.holds(pair.now), "belief ends before anything is written"
    revision = pair.bucket.write(write)
    assert revision is not None
    pair.one.on_written(write, revision, pair.now)
    assert not pair.one.holds(pair.now)
    assert pair.turn(pair.two)
    assert pair.record().epoch == 2
    assert pair.one.propose_release(pair.now) is None, "nothing is told twice"


def test_nobody_releases_what_another_holds(pair: Pair) -> None:
    assert pair.two.propose_release(pair.now) is None


def test_a_holder_that_was_stopped_past_its_lease_does_not_believe_in_it(pair: Pair) -> None:
    pair.clock.advance(WAIT + 0.1)
    assert not pair.one.holds(pair.now)
    assert pair.turn(pair.two)
    assert not pair.turn(pair.one), "its write is refused"
    assert not pair.turn(pair.one), "and it sees why"
    assert pair.one.other_leads(pair.now) is not None


def test_a_lapsed_term_never_comes_back_even_if_nobody_took_it(pair: Pair) -> None:
    pair.clock.advance(SECONDS)
    assert not pair.one.holds(pair.now)
    assert pair.turn(pair.one), "its own old record keeps it waiting for nobody"
    assert pair.record().epoch == 2


def test_a_renewal_whose_answer_comes_after_the_deadline_renews_nothing(pair: Pair) -> None:
    pair.clock.advance(0.9)
    write = pair.one.propose(pair.now, epoch_folded=1, now_ns=0)
    assert write is not None
    revision = pair.bucket.write(write)
    assert revision is not None
    pair.clock.advance(0.2)
    pair.one.on_written(write, revision, pair.now)
    assert not pair.one.holds(pair.now)
    assert pair.turn(pair.one)
    assert pair.record().epoch == 2


def test_a_renewal_without_an_answer_is_settled_by_reading(pair: Pair) -> None:
    for written in (True, False):
        pair.clock.advance(QUARTER)
        write = pair.one.propose(pair.now, epoch_folded=1, now_ns=0)
        assert write is not None
        pair.one.on_doubt()
        if written:
            pair.bucket.write(write)
        before = pair.one.deadline
        assert pair.one.propose(pair.now, epoch_folded=1, now_ns=0) is None, "nothing is written in doubt"
        pair.one.on_read(pair.bucket.entry, pair.now)
        assert pair.one.holds(pair.now)
        assert (pair.one.deadline > before) == written
    pair.clock.advance(QUARTER)
    assert pair.turn(pair.one)


def test_who_resigned_lets_others_go_first(pair: Pair) -> None:
    pair.one.resign(pair.now)
    assert not pair.turn(pair.one), "its own record does not make it believe again"
    write = pair.one.propose_release(pair.now)
    assert write is not None
    pair.bucket.write(write)
    pair.one.on_doubt()
    assert not pair.turn(pair.one)
    pair.clock.advance(2 * QUARTER)
    assert pair.turn(pair.one), "but it does not wait for ever"


def test_epochs_go_up_past_what_the_journal_has(pair: Pair) -> None:
    pair.epoch = 40
    pair.clock.advance(2 * WAIT)
    assert pair.turn(pair.two)
    assert pair.record().epoch == 41


def test_long_computations_make_long_leases_and_are_forgotten(pair: Pair) -> None:
    pair.one.on_computed(2.0, pair.now)
    pair.clock.advance(QUARTER)
    assert pair.turn(pair.one)
    assert pair.record().seconds == pytest.approx(COMPUTATIONS_PER_LEASE * 2.0, rel=0.05)
    pair.clock.advance(5.0)
    assert pair.turn(pair.one), "nothing was renewed meanwhile"
    assert not pair.turn(pair.two)
    for _ in range(60):
        pair.one.on_computed(0.001, pair.now)
    pair.clock.advance(QUARTER)
    assert pair.turn(pair.one)
    assert pair.record().seconds > COMPUTATIONS_PER_LEASE * 1.3, "many short ones do not tell that long ones are over"
    for _ in range(200):
        pair.clock.advance(QUARTER)
        assert pair.turn(pair.one)
    pair.one.on_computed(0.001, pair.now)
    pair.clock.advance(QUARTER)
    assert pair.turn(pair.one)
    assert pair.record().seconds == SECONDS
    pair.one.on_computed(1e6, pair.now)
    pair.clock.advance(QUARTER)
    assert pair.turn(pair.one)
    assert pair.record().seconds == LEASE_SECONDS_MAX


def test_a_shorter_lease_counts_from_when_it_was_asked_for_whether_or_not_an_answer_comes(pair: Pair) -> None:
    pair.one.on_computed(10.0, pair.now)
    pair.clock.advance(QUARTER)
    assert pair.turn(pair.one)
    assert not pair.turn(pair.two)
    pair.clock.advance(25.0)
    assert pair.turn(pair.two) is False
    write = pair.one.propose(pair.now, epoch_folded=1, now_ns=0)
    assert write is not None
    assert write.record.seconds < pair.record().seconds / 4
    pair.one.on_doubt()
    pair.bucket.write(write)
    assert not pair.turn(pair.two)
    pair.clock.advance(write.record.seconds * (1 + CLOCK_MARGIN) + 0.01)
    assert pair.turn(pair.two)
    assert not pair.one.holds(pair.now)


@pytest.mark.parametrize("broken", [Entry(9, None), None])
def test_a_record_that_somebody_broke_ends_the_term_and_is_replaced(pair: Pair, broken: Entry | None) -> None:
    pair.bucket.entry = broken
    pair.clock.advance(QUARTER)
    pair.turn(pair.one)
    pair.turn(pair.one)
    assert pair.one.held is None or pair.one.held.epoch == 2, "the first term has ended"
    pair.clock.advance(WAIT + 0.01)
    assert pair.turn(pair.one) or pair.turn(pair.two)
    assert pair.record().epoch >= 2


SPEEDS = (1 - CLOCK_MARGIN / 2.1, 1.0, 1 + CLOCK_MARGIN / 2.1)
STEPS_SECONDS = (0.001, QUARTER, 2 * QUARTER, 1 - CLOCK_MARGIN, SECONDS, WAIT, 1.2)
WHICH = st.integers(0, 2)


class Process:
    """One candidate with a clock of its own speed. `answer`: what it is told when the bus answers what is under way."""

    def __init__(self, name: str, speed: float) -> None:
        self.lease = Lease(name, name, SECONDS)
        self.speed = speed
        self.answer: Callable[[float], None] | None = None


class TwoNeverBelieve(RuleBasedStateMachine):
    """Three processes, clocks of different speed, late or lost writes and answers, long passes, resignations."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = Bucket()
        self.now = 0.0
        self.late: list[Write] = []
        self.held: dict[int, str] = {}
        self.ended: set[int] = set()
        self.processes: list[Process] = []

    @initialize(speeds=st.permutations(SPEEDS))
    def begin(self, speeds: list[float]) -> None:
        self.processes = [Process(f"p{index}", speed) for index, speed in enumerate(speeds)]

    def time_of(self, process: Process) -> float:
        return 1000.0 + self.now * process.speed

    def ask(self, process: Process, fate: str) -> None:
        """Read or write, whatever the lease wants; the bus answers later, or never."""
        lease, now = process.lease, self.time_of(process)
        if lease.wants_read():
            seen = self.bucket.entry
            process.answer = lambda then: lease.on_read(seen, then)
        elif (write := lease.propose(now, epoch_folded=0, now_ns=0)) is not None:
            self.send(process, write, fate)

    def send(self, process: Process, write: Write, fate: str) -> None:
        lease = process.lease
        lease.on_doubt()
        if fate == "late":
            self.late.append(write)
        elif fate != "lost":
            revision = self.bucket.write(write)
            if fate == "answered" and revision is not None:
                process.answer = lambda then: lease.on_written(write, revision, then)

    def settle(self, process: Process) -> None:
        answer, process.answer = process.answer, None
        if answer is not None:
            answer(self.time_of(process))

    def turn(self, process: Process) -> None:
        """Read, and write what follows from it, all answered at once."""
        self.settle(process)
        if process.lease.wants_read():
            process.lease.on_read(self.bucket.entry, self.time_of(process))
        write = process.lease.propose(self.time_of(process), epoch_folded=0, now_ns=0)
        if write is not None:
            self.send(process, write, "answered")
            self.settle(process)

    @rule(seconds=st.sampled_from(STEPS_SECONDS))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(which=WHICH)
    def one_is_quick(self, which: int) -> None:
        self.turn(self.processes[which])

    @rule(order=st.permutations((0, 1, 2)), seconds=st.sampled_from(STEPS_SECONDS))
    def all_are_quick_and_time_passes(self, order: list[int], seconds: float) -> None:
        for which in order:
            self.turn(self.processes[which])
        self.now += seconds

    @rule(which=WHICH, fate=st.sampled_from(["answered", "late", "lost", "answer lost"]))
    def one_asks(self, which: int, fate: str) -> None:
        process = self.processes[which]
        self.settle(process)
        self.ask(process, fate)

    @rule(which=WHICH)
    def one_is_answered(self, which: int) -> None:
        self.settle(self.processes[which])

    @precondition(lambda self: self.late)
    @rule(which=st.integers(0, 9))
    def a_late_write_arrives(self, which: int) -> None:
        self.bucket.write(self.late.pop(which % len(self.late)))

    @rule(which=WHICH, seconds=st.sampled_from([0.001, 0.5, 2.0]), times=st.sampled_from([1, 40]))
    def one_computed(self, which: int, seconds: float, times: int) -> None:
        for _ in range(times):
            process = self.processes[which]
            process.lease.on_computed(seconds, self.time_of(process))

    @rule(which=WHICH, fate=st.sampled_from(["answered", "late", "lost", "answer lost"]))
    def one_resigns(self, which: int, fate: str) -> None:
        process = self.processes[which]
        self.settle(process)
        process.lease.resign(self.time_of(process))
        write = process.lease.propose_release(self.time_of(process))
        if write is not None:
            self.send(process, write, fate)

    @invariant()
    def two_never_believe(self) -> None:
        believed: set[int] = set()
        for process in self.processes:
            held = process.lease.held
            if held is not None and process.lease.holds(self.time_of(process)):
                believed.add(held.epoch)
                assert self.held.setdefault(held.epoch, held.holder) == held.holder, "an epoch has one holder for ever"
        assert len(believed) <= 1
        assert not believed & self.ended, "a term that has lapsed never comes back"
        self.ended |= set(self.held) - believed


TwoNeverBelieve.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTwoNeverBelieve = TwoNeverBelieve.TestCase
