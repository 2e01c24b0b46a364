"""All that the service knows at one moment, from which Prometheus is answered. Changed on the event loop alone."""

from __future__ import annotations

from collections import Counter

from tidegate_events.telemetry import ProcessSample

from tidegate_metrics.feed.base import Message
from tidegate_metrics.journal_metrics import JournalMetrics
from tidegate_metrics.ledger import Ledger
from tidegate_metrics.letter_count import LetterCount
from tidegate_metrics.marks import Marks
from tidegate_metrics.polls import JournalBytes, SchedulerAnswer
from tidegate_metrics.readings import Readings
from tidegate_metrics.totals import Series
from tidegate_metrics.windows import ProcessKey, StepWindows, WindowRate


class State:
    """`ledger` is None until its stored counters are known: an absent counter is honest, one from 0 would not be."""

    def __init__(self, window_seconds: int) -> None:
        self.journal = JournalMetrics()
        self.caught_up = False
        self.readings = Readings()
        self.windows = StepWindows(window_seconds)
        self.rates: dict[ProcessKey, WindowRate] = {}
        self.ledger: Ledger | None = None
        self.scheduler: SchedulerAnswer | None = None
        self.journal_bytes: JournalBytes | None = None
        self.letters = LetterCount()
        self.projection_lag: tuple[float, int] | None = None
        self.database_up: bool | None = None
        self.rows_written = 0
        self.messages = 0
        self.newest_ns = 0
        self.lag_seconds = 0.0
        self.dropped: Counter[str] = Counter()
        self._marks = Marks()
        self._seen: tuple[str, int] = ("", 0)

    def hear(self, message: Message, now_ns: int) -> None:
        """Take a message in. The ledger keeps its own place; the rest takes each message once while it runs."""
        if self.ledger is not None:
            self.ledger.apply(message)
        if message.stream == self._seen[0] and message.seq <= self._seen[1]:
            return  # read again for the ledger's sake
        self._seen = (message.stream, message.seq)
        self.messages += 1
        self.dropped["unreadable"] += message.unreadable
        self.dropped["foreign"] += message.foreign
        self.newest_ns, self.lag_seconds = message.at_ns, max(0.0, (now_ns - message.at_ns) / 1e9)
        for sample in message.samples:
            if not self._marks.is_news(sample):
                self.dropped["duplicate"] += 1
                continue
            self.readings.hear(sample, message.at_ns)
            if isinstance(sample, ProcessSample) and sample.step is not None:
                key = ProcessKey(sample.job, sample.attempt, sample.rank, sample.component, sample.replica)
                self.windows.add(key, sample.node, sample.at_ns, sample.step)

    def close_windows(self, now_ns: int) -> list[WindowRate]:
        """Close the windows that ended; return their rates, the newest of which are shown."""
        closed = self.windows.close(now_ns)
        if closed:
            newest_ns = closed[-1].start_ns
            self.rates = {rate.key: rate for rate in closed if rate.start_ns == newest_ns}
        return closed

    def dropped_samples(self) -> dict[str, int]:
        """Return what was left out, by reason."""
        full = self.ledger.aggregates.dropped + self.ledger.totals.full if self.ledger is not None else 0
        return {reason: self.dropped[reason] for reason in ("duplicate", "unreadable", "foreign")} | {"full": full}

    def step_rates(self) -> dict[Series, float]:
        """Return the step rate of each component on each node over the last whole window."""
        found: dict[Series, float] = {}
        for key, rate in self.rates.items():
            job = self.journal.jobs.get(key.job)
            if rate.rate_millis is not None and job is not None and job.attempt == key.attempt:
                series = ("tidegate_steps_per_second", (job.tenant, key.job, key.component, rate.node))
                found[series] = found.get(series, 0.0) + rate.rate_millis / 1000
        return found
