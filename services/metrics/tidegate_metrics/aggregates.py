"""Sums samples up in windows of time, as rows for PostgreSQL. Pure.

A row is what was heard of one series in one window since the last `take`; readers sum the rows of a window up. Together
with the stream position of the last sample in it, that makes each sample count once, wherever the service is killed.
"""

from __future__ import annotations

import msgspec

WINDOW_SECONDS = 10
WINDOW_NS = WINDOW_SECONDS * 1_000_000_000
ROWS_MAX = 50_000
"""Rows kept while PostgreSQL is away; those of the oldest windows go first."""

Place = tuple[str, str, str, str]
"""tenant, job, component, node; empty where the level has none"""
RowKey = tuple[int, str, Place]


class Row(msgspec.Struct):
    """What was heard of one series in one window."""

    samples: int
    total: float
    smallest: float
    largest: float
    newest: float

    def add(self, value: float) -> None:
        """Take one more sample."""
        self.samples += 1
        self.total += value
        self.smallest = min(self.smallest, value)
        self.largest = max(self.largest, value)
        self.newest = value


class Aggregates:
    """The rows that wait to be written. `dropped` counts samples that went because PostgreSQL was away for long."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows: dict[RowKey, Row] = {}
        self._rows_max = rows_max
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, at_ns: int, name: str, place: Place, value: float) -> None:
        """Take one value of a series."""
        key = (at_ns // WINDOW_NS * WINDOW_NS, name, place)
        row = self._rows.get(key)
        if row is not None:
            row.add(value)
            return
        if len(self._rows) >= self._rows_max:
            self._drop_oldest()
        self._rows[key] = Row(1, value, value, value, value)

    def take(self) -> dict[RowKey, Row]:
        """Return the rows and begin anew."""
        rows, self._rows = self._rows, {}
        return rows

    def _drop_oldest(self) -> None:
        """Make room for a tenth: one pass over the rows, not one for each new row."""
        order = sorted(self._rows, key=lambda key: key[0])
        for key in order[: max(1, self._rows_max // 10)]:
            self.dropped += self._rows.pop(key).samples
