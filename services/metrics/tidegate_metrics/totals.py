"""Counters that go on across restarts of whatever counts, and of this service. Pure; the time comes as an argument.

A source (a process, a control group) reports a number that only grows while it lives. What it grew by is added to the
total of its series; where it is smaller than before, the source began anew. Exactly what changed since the last `take`
is given out, to be stored together with the position in the stream that it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

NS_PER_SECOND = 1_000_000_000
SERIES_MAX = 50_000
SOURCES_MAX = 100_000
FORGET_SECONDS = 3600

Series = tuple[str, tuple[str, ...]]
"""The name of a metric and the values of its labels."""
Source = tuple[str, str]
"""The name of the metric and what reports it."""


class Total(msgspec.Struct, frozen=True):
    """The state of one series or of one source."""

    value: float
    at_ns: int


class Totals:
    """All counters. `full` counts what there was no room for."""

    def __init__(self) -> None:
        self.series: dict[Series, Total] = {}
        self.sources: dict[Source, Total] = {}
        self.full = 0
        self._changed_series: set[Series] = set()
        self._changed_sources: set[Source] = set()

    def restore(self, series: Iterable[tuple[Series, Total]], sources: Iterable[tuple[Source, Total]]) -> None:
        """Continue from what was stored."""
        self.series, self.sources = dict(series), dict(sources)
        self._changed_series.clear()
        self._changed_sources.clear()

    def add(self, series: Series, amount: float, at_ns: int) -> None:
        """Add to a series."""
        known = self.series.get(series)
        if known is None and len(self.series) >= SERIES_MAX:
            self.full += 1
            return
        self.series[series] = Total((known.value if known else 0.0) + amount, at_ns)
        self._changed_series.add(series)

    def observe(
        self, series: Series, source: str, value: float, at_ns: int, *, first: bool = True, restarts: bool = True
    ) -> float:
        """Take a source's number; return what it grew by, which was added to the series.

        `first`: all of a number that is seen for the first time is new. `restarts`: a number that shrank has begun
        again from 0; otherwise it went back, and what it repeats counts only from there on.
        """
        key = (series[0], source)
        known = self.sources.get(key)
        if known is None:
            if len(self.sources) >= SOURCES_MAX:
                self.full += 1
                return 0.0
            grown = value if first else 0.0
        elif value >= known.value:
            grown = value - known.value
        else:
            grown = value if restarts else 0.0
        self.sources[key] = Total(value, at_ns)
        self._changed_sources.add(key)
        self.add(series, grown, at_ns)
        return grown

    def take(self) -> tuple[list[tuple[Series, Total]], list[tuple[Source, Total]]]:
        """Return what changed since the last time."""
        series = [(key, self.series[key]) for key in self._changed_series if key in self.series]
        sources = [(key, self.sources[key]) for key in self._changed_sources if key in self.sources]
        self._changed_series.clear()
        self._changed_sources.clear()
        return series, sources

    def forget(self, now_ns: int) -> None:
        """Drop what nothing was heard of for FORGET_SECONDS; whoever stores them does the same."""
        oldest = now_ns - FORGET_SECONDS * NS_PER_SECOND
        self.series = {key: total for key, total in self.series.items() if total.at_ns >= oldest}
        self.sources = {key: total for key, total in self.sources.items() if total.at_ns >= oldest}
