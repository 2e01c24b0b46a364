"""What must count each sample exactly once: counters and rows, with the place in the stream that they tell up to. Pure.

A batch is everything that changed since the last one. Stored as a whole or not at all, together with its position, it
lets the service go on from there after any death: what was not stored is read from the stream again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from tidegate_events.telemetry import NodeSample, ProcessSample, Sample

from tidegate_metrics import samples as reading
from tidegate_metrics.aggregates import Aggregates, Row, RowKey
from tidegate_metrics.catalogue import CHECKPOINT_BUCKETS
from tidegate_metrics.feed.base import Message
from tidegate_metrics.marks import Mark, Marks
from tidegate_metrics.totals import NS_PER_SECOND, Series, Source, Total, Totals

CLOCK_SECONDS_MAX = 300
"""A sample's clock that differs by more from its arrival is not believed."""
FRESH_SECONDS = 10
"""Without stored counters, what is first heard of in this time has been running: its past was counted before."""

ENV_STEPS = "tidegate_env_steps_total"
CHECKPOINT = "tidegate_checkpoint_seconds"
CHECKPOINT_WAIT = "tidegate_checkpoint_wait_seconds_total"
REPORTS_DROPPED = "tidegate_reports_dropped_total"


class Position(msgspec.Struct, frozen=True):
    """The last message that is told of; `stream` names the stream by the time it was made."""

    stream: str = ""
    seq: int = 0
    at_ns: int = 0


class Stored(msgspec.Struct, frozen=True):
    """What an earlier process stored last."""

    position: Position = Position()
    series: tuple[tuple[Series, Total], ...] = ()
    sources: tuple[tuple[Source, Total], ...] = ()
    marks: tuple[Mark, ...] = ()


class Batch(msgspec.Struct, frozen=True):
    """What to store at once: it leads from the position `before` to `after`."""

    before: Position
    after: Position
    rows: dict[RowKey, Row]
    series: list[tuple[Series, Total]]
    sources: list[tuple[Source, Total]]
    marks: list[Mark]


class Ledger:
    """Folds messages in the order of the stream."""

    def __init__(self, stored: Stored, now_ns: int) -> None:
        self.position = stored.position
        self.totals = Totals()
        self.totals.restore(stored.series, stored.sources)
        self.aggregates = Aggregates()
        self.duplicates = 0
        self._marks = Marks(stored.marks)
        self._taken = stored.position
        # Without a stored place, what came before this start belongs to an earlier process's counters.
        self._since_ns = 0 if stored.position.stream else now_ns
        self._fresh_until_ns = 0 if stored.position.stream else now_ns + FRESH_SECONDS * NS_PER_SECOND

    def apply(self, message: Message) -> None:
        """Fold a message, unless it is told of already."""
        if message.stream == self.position.stream and message.seq <= self.position.seq:
            return
        if message.at_ns < self._since_ns:
            return
        self.position = Position(message.stream, message.seq, message.at_ns)
        for sample in message.samples:
            if not self._marks.is_news(sample):
                self.duplicates += 1
            else:
                self._fold(sample, _believed(sample.at_ns, message.at_ns), message.at_ns)

    def take(self) -> Batch | None:
        """Return what changed since the last batch, None if nothing did."""
        if self.position == self._taken:
            return None
        series, sources = self.totals.take()
        batch = Batch(self._taken, self.position, self.aggregates.take(), series, sources, self._marks.take())
        self._taken = self.position
        return batch

    def _fold(self, sample: Sample, at_ns: int, now_ns: int) -> None:
        for name, place, value in reading.gauges(sample):
            self.aggregates.add(at_ns, name, place, value)
        if isinstance(sample, ProcessSample):
            self._fold_process(sample, at_ns, now_ns)
            return
        # A node's counters began when it booted, which may be long before anyone asked; a sandbox's began with it.
        first = not isinstance(sample, NodeSample) and now_ns >= self._fresh_until_ns
        for name, series, source, value in reading.counters(sample):
            grown = self.totals.observe(series, source, value, now_ns, first=first)
            self.aggregates.add(at_ns, name, reading.place_of(sample), grown)

    def _fold_process(self, sample: ProcessSample, at_ns: int, now_ns: int) -> None:
        place = reading.place_of(sample)
        if (steps := reading.env_steps(sample)) is not None:
            # An attempt that resumes begins at the step it was saved at, which was made and counted before.
            first = sample.attempt == 1 and now_ns >= self._fresh_until_ns
            series, source = (ENV_STEPS, place), reading.process_of(sample)
            grown = self.totals.observe(series, source, steps, now_ns, first=first, restarts=False)
            self.aggregates.add(at_ns, "process.env_steps", place, grown)
        if sample.dropped_reports:
            self.totals.add((REPORTS_DROPPED, place), sample.dropped_reports, now_ns)
        for timing in sample.checkpoints:
            seconds = timing.copy_seconds + timing.write_seconds
            self.totals.add((f"{CHECKPOINT}_bucket", (*place, bucket_of(seconds, CHECKPOINT_BUCKETS))), 1, now_ns)
            self.totals.add((f"{CHECKPOINT}_sum", place), seconds, now_ns)
            self.totals.add((CHECKPOINT_WAIT, place), timing.copy_seconds, now_ns)
            self.aggregates.add(at_ns, "process.checkpoint_seconds", place, seconds)


def bucket_of(value: float, bounds: Iterable[float]) -> str:
    """Return the name of the narrowest bucket that holds `value`, as Prometheus writes bounds."""
    return next((f"{bound:g}" for bound in bounds if value <= bound), "+Inf")


def _believed(at_ns: int, arrived_ns: int) -> int:
    return at_ns if abs(at_ns - arrived_ns) <= CLOCK_SECONDS_MAX * NS_PER_SECOND else arrived_ns
