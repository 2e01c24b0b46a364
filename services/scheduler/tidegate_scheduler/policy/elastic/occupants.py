"""Who holds room now and until when, and who will: what a forecast seats the jobs in line beside."""

from __future__ import annotations

import msgspec
import numpy as np
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.devices_then import Part, Timeline, millis_of
from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, SHARE, Ints
from tidegate_scheduler.policy.outlook import Start

DEVICES_ROWS, DEVICES_AGAIN_ROWS = 15, 3
"""As how many rows one counts where it is looked at each device: for the first time at a moment, and again."""


class Hold(msgspec.Struct):
    """Room of one member on a row from `begin_ns` until `end` (None: nobody knows).

    Who comes has it by `until_ns` at the latest, where it may only stay until others come.
    """

    row: int
    need: Resources
    begin_ns: int
    end: Start | None
    models: tuple[str, ...] = ()
    until_ns: int = NEVER
    indices: tuple[int, ...] = ()
    """The devices that it has, of those who are there."""

    is_known: bool = True
    """Whether it is known when it finds its devices; else some are kept for it from `begin_ns` on."""

    @property
    def end_ns(self) -> int:
        """Return when the room is free again."""
        return NEVER if self.end is None else self.end.at_ns

    def parts(self, indices: tuple[int, ...]) -> list[Part]:
        """Return what it has of these devices."""
        millis = millis_of(self.need)
        return [Part(index, millis, self.end_ns, begin_ns=self.begin_ns) for index in indices]


class There:
    """Who holds room now and when it is free again, as columns in the order of their ends."""

    def __init__(self, holds: list[Hold]) -> None:
        holds.sort(key=lambda hold: hold.end_ns)
        self.ends = np.array([hold.end_ns for hold in holds], np.int64)
        self._rows = np.array([hold.row for hold in holds], np.int64)
        self._needs = amounts_of(holds)
        self._on_row: dict[int, list[Hold]] = {}
        for hold in holds:
            self._on_row.setdefault(hold.row, []).append(hold)
        self.rows = set(self._on_row)
        self.moments = {hold.end for hold in holds if hold.end is not None}

    def free(self, room: Ints, at_ns: int) -> None:
        """Add to `room` what is free again at that time."""
        count = int(np.searchsorted(self.ends, at_ns, side="right"))
        for amount in range(3):
            np.add.at(room[amount], self._rows[:count], self._needs[:count, amount])

    def parts_on(self, row: int) -> list[Part]:
        """Return what they have of the devices of a row."""
        return [part for hold in self._on_row.get(row, ()) for part in hold.parts(hold.indices)]


class Apart:
    """The rows on which it is looked at each device, as they differ there or parts of them are given away."""

    def __init__(self, index: Index, there: There) -> None:
        self._index = index
        self._there = there
        self._came: dict[int, list[Hold]] = {}
        self._timelines: dict[int, Timeline] = {}
        self._rows = index.table.mixed | index.table.parted
        self._in_order: Ints | None = None

    def come(self, hold: Hold) -> None:
        """Let a member come."""
        row, need = hold.row, hold.need
        if not (need.gpus or need.gpu_millis):
            return
        came = self._came.setdefault(row, [])
        if need.gpu_millis and row not in self._rows:
            self._rows[row] = None
            self._in_order = None
        timeline = self._timelines.get(row) or (self.on(row) if need.gpu_millis else None)
        came.append(hold)
        if timeline is not None:
            _let_come(timeline, hold)

    def on(self, row: int) -> Timeline:
        """Return how the devices of a row come free."""
        timeline = self._timelines.get(row)
        if timeline is None:
            timeline = self._timelines[row] = Timeline(self._index.table.devices[row], self._there.parts_on(row))
            for hold in self._came.get(row, ()):
                _let_come(timeline, hold)
        return timeline

    def tell(self, fit: Fit, room: Ints, among: set[int] | None, at_ns: int, until_ns: int) -> int:
        """Put into `room` what devices suit there from `at_ns` on until others come then; return what that cost.

        As SHARE, what all devices together hold that others have parts of, in whole shares of that size: so each of a
        gang finds its own. The cost is in rows. Where CPU or memory is short anyway, it is not looked.
        """
        need, models = fit.shape.need, fit.shape.gpu_models
        if not self._rows or not (need.gpus or need.gpu_millis):
            return 0
        if self._in_order is None:
            self._in_order = np.array(sorted(self._rows), np.int64)
        rows = self._in_order
        if among is not None:
            rows = np.array(sorted(self._rows.keys() & among), np.int64)
        enough = (room[CPU, rows] >= need.cpu_millis) & (room[MEMORY, rows] >= need.memory_mib)
        cost = 0
        for row in rows[enough & fit.suits(rows)].tolist():
            (whole, left), known = self.on(row).free(need, models, at_ns, until_ns)
            room[GPUS, row], room[SHARE, row] = whole, 0
            if need.gpu_millis:
                room[SHARE, row] = sum(each - each % need.gpu_millis for each in left if each > 0)
            cost += DEVICES_AGAIN_ROWS if known else DEVICES_ROWS
        return cost


def _let_come(timeline: Timeline, hold: Hold) -> None:
    if hold.is_known:
        timeline.come(hold.parts(timeline.choose(hold.need, hold.models, hold.begin_ns, hold.until_ns)))
    else:
        timeline.wait(hold.begin_ns, hold.need, hold.models)


def amounts_of(holds: list[Hold]) -> Ints:
    """Return what is held, one row for each hold, as the table counts it; parts of devices are counted apart."""
    needs = [(hold.need.cpu_millis, hold.need.memory_mib, hold.need.gpus) for hold in holds]
    return np.array(needs, np.int64).reshape(-1, 3)
