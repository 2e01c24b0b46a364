"""Who holds room now and until when, and who will: what a forecast seats the jobs in line beside."""

from __future__ import annotations

import msgspec
import numpy as np
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.devices_then import DevicesThen, Part, millis_of
from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import Ints
from tidegate_scheduler.policy.outlook import Start

DEVICE_FIRST_ROWS, DEVICES_PER_ROW = 2, 16
"""As how many rows one device counts that is looked at for the first time, and how many count as one after that."""


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
        self._there = there
        self._came: dict[int, list[Hold]] = {}
        self._devices = DevicesThen(index.table, without_leaving=False)
        self._missing = index.table.mixed | index.table.parted
        """The rows that are not looked at yet, as nobody has needed a device."""

    def come(self, hold: Hold) -> None:
        """Let a member come."""
        row, need = hold.row, hold.need
        if not (need.gpus or need.gpu_millis):
            return
        self._came.setdefault(row, []).append(hold)
        if row in self._devices.rows:
            self._seat(hold)
        elif need.gpu_millis:
            self._look_at(row)

    def tell(self, fit: Fit, room: Ints, at_ns: int, until_ns: int) -> int:
        """Put into `room` what devices suit there from `at_ns` on until others come then; return the cost, in rows."""
        if not (fit.shape.need.gpus or fit.shape.need.gpu_millis):
            return 0
        cost, before = 0, len(self._devices)
        for row in self._missing:
            if row not in self._devices.rows:
                self._look_at(row)
        self._missing = {}
        cost += (len(self._devices) - before) * DEVICE_FIRST_ROWS
        self._devices.put(fit, room, at_ns, until_ns)
        return cost + len(self._devices) // DEVICES_PER_ROW

    def _look_at(self, row: int) -> None:
        self._devices.add(row)
        self._devices.hold(row, self._there.parts_on(row))
        for hold in self._came.get(row, ()):
            self._seat(hold)

    def _seat(self, hold: Hold) -> None:
        """Give devices to a member that comes; if nobody knows when it finds them, keep some for it."""
        row, need, models = hold.row, hold.need, hold.models
        if hold.is_known:
            chosen = self._devices.choose(row, need, models, hold.begin_ns, hold.until_ns)
            self._devices.hold(row, hold.parts(chosen))
            return
        self._devices.wait(row, hold.begin_ns, need, models)


def amounts_of(holds: list[Hold]) -> Ints:
    """Return what is held, one row for each hold, as the table counts it; parts of devices are counted apart."""
    needs = [(hold.need.cpu_millis, hold.need.memory_mib, hold.need.gpus) for hold in holds]
    return np.array(needs, np.int64).reshape(-1, 3)
