"""Counters and rows count each sample once: over duplicates, restarts of what is counted, and deaths of the service."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events.telemetry import CheckpointTiming, Sample
from tidegate_metrics import aggregates, totals
from tidegate_metrics.aggregates import Aggregates
from tidegate_metrics.feed.base import Message
from tidegate_metrics.ledger import Batch, Ledger, Position, Stored
from tidegate_metrics.totals import Series, Source, Total

from tests.metrics.samples import SECOND, START, Node

PLACE = ("lab-a", "j1", "main", "n1")
ENV_STEPS: Series = ("tidegate_env_steps_total", PLACE)
CPU: Series = ("tidegate_sandbox_cpu_seconds_total", PLACE)
LATER = START + 60 * SECOND
"""After the time in which a ledger without a past takes what it sees for old."""


def message(seq: int, *samples: Sample, stream: str = "s", at_ns: int = LATER) -> Message:
    return Message(stream, seq, at_ns, samples)


def value(ledger: Ledger, series: Series) -> float:
    found = ledger.totals.series.get(series)
    return found.value if found else 0.0


def test_steps_and_counters_add_up_over_attempts_and_restarts() -> None:
    ledger, node = Ledger(Stored(), START), Node()
    samples = [
        node.process(LATER, 100),
        node.process(LATER, 150),
        node.process(LATER, 120),  # it went back to a step of its own: what it repeats is not counted twice
        node.process(LATER, 130),
        node.process(LATER, 140, attempt=2),  # resumes at 140, which was counted in the first attempt
        node.process(LATER, 160, attempt=2),
        node.sandbox(LATER, 5.0),
        node.sandbox(LATER, 2.0),  # the replica was started again
        node.sandbox(LATER, 3.0),
    ]
    for seq, sample in enumerate(samples, start=1):
        ledger.apply(message(seq, sample))
    assert value(ledger, ENV_STEPS) == 150 + 10 + 20
    assert value(ledger, CPU) == 5 + 3


def test_env_steps_that_a_process_reports_go_before_its_training_step() -> None:
    ledger, node = Ledger(Stored(), START), Node()
    ledger.apply(message(1, node.process(LATER, 3, metrics={"env_steps": 3000.0})))
    assert value(ledger, ENV_STEPS) == 3000


def test_what_runs_already_when_the_first_ledger_begins_is_not_counted_as_new() -> None:
    ledger, node = Ledger(Stored(), START), Node()
    ledger.apply(message(1, node.sandbox(START, 900.0), node.process(START, 900), at_ns=START + SECOND))
    ledger.apply(message(2, node.sandbox(LATER, 905.0), node.process(LATER, 910)))
    assert (value(ledger, CPU), value(ledger, ENV_STEPS)) == (5, 10)


def test_duplicates_and_read_messages_change_nothing() -> None:
    ledger, node = Ledger(Stored(), START), Node()
    first, second = node.process(LATER, 10), node.process(LATER, 20)
    for seq, sample in ((1, first), (2, second), (2, second), (3, first), (4, second)):
        ledger.apply(message(seq, sample))
    restarted = Node(incarnation=2)
    ledger.apply(message(5, restarted.process(LATER, 30)))
    ledger.apply(message(6, Node(incarnation=1).process(LATER, 99)))
    assert value(ledger, ENV_STEPS) == 30
    assert ledger.duplicates == 3
    batch = ledger.take()
    assert batch is not None
    assert batch.marks == [("n1", 2, 1)]
    assert ledger.take() is None


def test_a_stream_that_was_made_anew_is_read_from_its_beginning() -> None:
    ledger, node = Ledger(Stored(), START), Node()
    ledger.apply(message(900, node.process(LATER, 10)))
    ledger.apply(message(1, node.process(LATER, 20), stream="another"))
    assert value(ledger, ENV_STEPS) == 20
    assert ledger.position == Position("another", 1, LATER)


def test_times_of_saves_become_a_histogram_and_a_sum() -> None:
    ledger, node = Ledger(Stored(), START), Node()
    saves = tuple(CheckpointTiming(step=1, copy_seconds=0.5, write_seconds=write) for write in (0.5, 1.0, 1000.0))
    ledger.apply(message(1, node.process(LATER, checkpoints=saves, dropped_reports=4)))
    bucket = "tidegate_checkpoint_seconds_bucket"
    assert value(ledger, (bucket, (*PLACE, "1"))) == 1
    assert value(ledger, (bucket, (*PLACE, "2.5"))) == 1
    assert value(ledger, (bucket, (*PLACE, "+Inf"))) == 1
    assert value(ledger, ("tidegate_checkpoint_seconds_sum", PLACE)) == 1003
    assert value(ledger, ("tidegate_checkpoint_wait_seconds_total", PLACE)) == 1.5
    assert value(ledger, ("tidegate_reports_dropped_total", PLACE)) == 4


def test_a_clock_that_is_far_off_is_not_believed() -> None:
    ledger, node = Ledger(Stored(), START), Node()
    ledger.apply(message(1, node.process(0, 1), node.process(2**62, 2)))
    batch = ledger.take()
    assert batch is not None
    assert {key[0] // SECOND for key in batch.rows} == {LATER // SECOND // 10 * 10}


def test_rows_are_bounded_and_the_oldest_windows_go() -> None:
    rows = Aggregates(rows_max=20)
    for window in range(100):
        rows.add(window * aggregates.WINDOW_NS, "x", ("", "", "", "n1"), 1.0)
    assert len(rows) <= 20
    assert rows.dropped == 100 - len(rows)
    assert max(key[0] for key in rows.take()) == 99 * aggregates.WINDOW_NS


def test_series_and_sources_are_bounded_and_old_ones_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "SERIES_MAX", 3)
    monkeypatch.setattr(totals, "SOURCES_MAX", 4)
    found = totals.Totals()
    for number in range(9):
        found.observe(("x_total", (str(number),)), str(number), 1.0, START + number)
    assert (len(found.series), len(found.sources)) == (3, 4)
    assert found.full == 5 + 1
    found.forget(START + totals.FORGET_SECONDS * SECOND + 2)
    assert (len(found.series), len(found.sources)) == (1, 2)


class FakeDatabase:
    """Stores batches as PostgreSQL does: whole, and only from the position they lead on from."""

    def __init__(self) -> None:
        self.position = Position()
        self.rows: dict[tuple[object, ...], list[float]] = defaultdict(lambda: [0, 0])
        self.series: dict[Series, Total] = {}
        self.sources: dict[Source, Total] = {}
        self.marks: dict[str, tuple[int, int]] = {}

    def store(self, batch: Batch) -> None:
        assert batch.before == self.position
        self.position = batch.after
        for key, row in batch.rows.items():
            self.rows[key][0] += row.samples
            self.rows[key][1] += row.total
        self.series |= dict(batch.series)
        self.sources |= dict(batch.sources)
        self.marks |= {node: (incarnation, seq) for node, incarnation, seq in batch.marks}

    def load(self) -> Stored:
        marks = tuple((node, *mark) for node, mark in self.marks.items())
        return Stored(self.position, tuple(self.series.items()), tuple(self.sources.items()), marks)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["process", "sandbox", "attempt", "duplicate"]),
        st.integers(0, 30),
        st.sampled_from(["", "", "store", "die", "die before storing"]),
    ),
    min_size=1,
    max_size=60,
)


def history(steps: list[tuple[str, int, str]]) -> list[Message]:
    node, attempt, step, cpu = Node(), 1, 0, 0.0
    sent: list[Sample] = []
    messages = []
    for seq, (kind, amount, _) in enumerate(steps, start=2):
        at_ns = LATER + seq * SECOND
        if kind == "duplicate" and sent:
            messages.append(message(seq, sent[amount % len(sent)], at_ns=at_ns))
            continue
        if kind == "attempt":
            attempt, cpu, step = attempt + 1, 0.0, max(0, step - amount)
        cpu, step = cpu + amount, step + amount
        sample: Sample = (
            node.sandbox(at_ns, cpu, attempt=attempt)
            if kind == "sandbox"
            else node.process(at_ns, step, attempt=attempt)
        )
        sent.append(sample)
        messages.append(message(seq, sample, at_ns=at_ns))
    return messages


@given(STEPS)
def test_dying_at_any_moment_changes_nothing_of_what_is_stored(steps: list[tuple[str, int, str]]) -> None:
    messages = [message(1, Node("n0").node(LATER)), *history(steps)]
    undisturbed, disturbed = FakeDatabase(), FakeDatabase()
    ledger = Ledger(undisturbed.load(), START)
    for each in messages:
        ledger.apply(each)
    undisturbed.store(ledger.take() or pytest.fail("nothing to store"))

    ledger, index = Ledger(disturbed.load(), START), 0
    ledger.apply(messages[0])
    disturbed.store(ledger.take() or pytest.fail("nothing to store"))
    for number, (_, _, event) in enumerate(steps, start=1):
        for each in messages[index : number + 1]:
            ledger.apply(each)
        index = number + 1
        if event in ("store", "die") and (batch := ledger.take()) is not None:
            disturbed.store(batch)
        if event.startswith("die"):
            ledger, index = Ledger(disturbed.load(), LATER + 10**6 * SECOND), 0
    for each in messages[index:]:
        ledger.apply(each)
    if (batch := ledger.take()) is not None:
        disturbed.store(batch)
    if index == 0:  # the last death was the last event: all that was not stored is read again
        ledger = Ledger(disturbed.load(), LATER + 10**6 * SECOND)
        for each in messages:
            ledger.apply(each)
        if (batch := ledger.take()) is not None:
            disturbed.store(batch)
    assert dict(disturbed.rows) == dict(undisturbed.rows)
    assert {key: total.value for key, total in disturbed.series.items()} == {
        key: total.value for key, total in undisturbed.series.items()
    }
    assert disturbed.position == undisturbed.position
