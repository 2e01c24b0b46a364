"""The lease as a state machine: who may take it when, what a doubtful write means, and that two never believe in it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tidegate_events.clock import ManualClock
from tidegate_scheduler.lease import (
    CLOCK_MARGIN,
    LEASE_SECONDS_MAX,
    PASSES_PER_LEASE,
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
    assert not pair.turn(pair.one)
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


def test_long_passes_make_long_leases_and_are_forgotten(pair: Pair) -> None:
    pair.one.on_pass(2.0)
    pair.clock.advance(QUARTER)
    assert pair.turn(pair.one)
    assert pair.record().seconds == PASSES_PER_LEASE * 2.0
    pair.clock.advance(5.0)
    assert pair.turn(pair.one), "nothing was renewed meanwhile"
    assert not pair.turn(pair.two)
    for _ in range(60):
        pair.one.on_pass(0.001)
    pair.clock.advance(QUARTER)
    assert pair.turn(pair.one)
    assert pair.record().seconds == SECONDS
    pair.one.on_pass(1e6)
    pair.clock.advance(QUARTER)
    assert pair.turn(pair.one)
    assert pair.record().seconds == LEASE_SECONDS_MAX


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


class Process:
    """One candidate with a clock of its own speed, and its request that is under way."""

    def __init__(self, name: str, speed: float) -> None:
        self.lease = Lease(name, name, SECONDS)
        self.speed = speed


class TwoNeverBelieve(RuleBasedStateMachine):
    """Three processes, clocks of different speed, late or lost writes and answers, long passes."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = Bucket()
        self.now = 0.0
        self.late: list[Write] = []
        self.epochs: dict[int, str] = {}

    @initialize(speeds=st.lists(st.floats(1 - CLOCK_MARGIN / 2.1, 1 + CLOCK_MARGIN / 2.1), min_size=3, max_size=3))
    def begin(self, speeds: list[float]) -> None:
        self.processes = [Process(f"p{index}", speed) for index, speed in enumerate(speeds)]

    def time_of(self, process: Process) -> float:
        return 1000.0 + self.now * process.speed

    @rule(seconds=st.floats(0.001, 1.5))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(which=st.integers(0, 2), flow=st.sampled_from(["quick", "lost", "late", "answer lost"]))
    def turn(self, which: int, flow: str) -> None:
        process = self.processes[which]
        lease, now = process.lease, self.time_of(process)
        if lease.wants_read():
            lease.on_read(self.bucket.entry, now)
        write = lease.propose(now, epoch_folded=0, now_ns=0)
        if write is None:
            return
        lease.on_doubt()
        if flow == "late":
            self.late.append(write)
        elif flow != "lost":
            revision = self.bucket.write(write)
            if revision is not None and flow == "quick":
                lease.on_written(write, revision, now)

    @rule(which=st.integers(0, 2), seconds=st.floats(0.0, 2.0))
    def turn_with_a_slow_answer(self, which: int, seconds: float) -> None:
        process = self.processes[which]
        lease = process.lease
        if lease.wants_read():
            seen = self.bucket.entry
            self.now += seconds
            lease.on_read(seen, self.time_of(process))
        write = lease.propose(self.time_of(process), epoch_folded=0, now_ns=0)
        if write is not None:
            revision = self.bucket.write(write)
            self.now += seconds
            if revision is None:
                lease.on_doubt()
            else:
                lease.on_written(write, revision, self.time_of(process))

    @precondition(lambda self: self.late)
    @rule(which=st.integers(0, 100))
    def a_late_write_arrives(self, which: int) -> None:
        self.bucket.write(self.late.pop(which % len(self.late)))

    @rule(which=st.integers(0, 2), seconds=st.floats(0.0, 3.0))
    def a_pass_was_long(self, which: int, seconds: float) -> None:
        self.processes[which].lease.on_pass(seconds)

    @rule(which=st.integers(0, 2), arrives=st.booleans())
    def release(self, which: int, arrives: bool) -> None:
        lease = self.processes[which].lease
        lease.resign(self.time_of(self.processes[which]))
        write = lease.propose_release(self.time_of(self.processes[which]))
        if write is not None:
            lease.on_doubt()
            if arrives:
                self.bucket.write(write)

    @invariant()
    def two_never_believe(self) -> None:
        if not hasattr(self, "processes"):
            return
        holders = [p for p in self.processes if p.lease.holds(self.time_of(p))]
        assert len(holders) <= 1
        for process in holders:
            held = process.lease.held
            assert held is not None
            assert self.epochs.setdefault(held.epoch, held.holder) == held.holder, "an epoch has one holder for ever"


TwoNeverBelieve.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestTwoNeverBelieve = TwoNeverBelieve.TestCase
