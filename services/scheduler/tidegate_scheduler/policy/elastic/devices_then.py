"""Which devices of a node are free at a time to come, by who has what of them until when: where a number of them, and
which they are, are not the same, as they differ or parts of them were given away."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, Devices, accepts
from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import GPUS, SHARE, Flags, Ints, NodeTable


class Part(msgspec.Struct, frozen=True):
    """What somebody has of a device until `ends_ns`, and whether that is counted as gone already.

    Who comes has it from `begin_ns` on; of who has it now that is 0.
    """

    device: int
    millis: int
    ends_ns: int
    goes: bool = False
    begin_ns: int = 0


def millis_of(need: Resources) -> int:
    """Return how much a member with this need has of each of its devices, in thousandths."""
    return WHOLE_MILLIS if need.gpus else need.gpu_millis


def free_then(
    devices: Devices, used: Mapping[int, int], need: Resources, models: tuple[str, ...]
) -> tuple[int, list[int]]:
    """Return how many devices that suit are free as a whole beside what is kept, and what is left of each other one.

    Several may share one device. Nothing is left of any while more are kept than are free (`Devices.waits`).
    """
    whole = devices.left_of(used.keys(), need, models)
    if devices.waits(used.keys()):
        return whole, []
    return whole, [WHOLE_MILLIS - each for index, each in used.items() if accepts(devices.all[index], need, models)]


class DevicesThen:
    """The devices of some rows, as columns, with those who have them and those who come.

    What is used of them now is counted without those who are leaving where `without_leaving`; they are told as such.
    """

    def __init__(self, table: NodeTable, *, without_leaving: bool) -> None:
        self._table = table
        self._without_leaving = without_leaving
        self.rows: dict[int, int] = {}
        """The rows, each with the first of its columns."""

        self._kept: dict[int, None] = {}
        self._waits: dict[int, list[tuple[int, Resources, tuple[str, ...]]]] = {}
        self._parts: dict[int, list[Part]] = {}
        self._models: list[str] = []
        self._devices: Ints = np.zeros((3, 0), np.int64)
        self._devices_new: list[tuple[int, int, int]] = []
        self._held: Ints = np.zeros((5, 0), np.int64)
        self._held_new: list[tuple[int, int, int, int, int]] = []
        self._suits: dict[tuple[int, tuple[str, ...]], Flags] = {}

    def __len__(self) -> int:
        """Return how many devices are looked at."""
        return len(self._models)

    def add(self, row: int) -> None:
        """Look at the devices of this row too."""
        devices, number = self._table.devices[row], len(self.rows)
        self.rows[row], self._parts[row] = len(self._models), []
        used = self._used_now(devices)
        self._devices_new += [(number, used.get(gpu.index, 0), gpu.memory_mib) for gpu in devices.all.values()]
        self._models += [gpu.model for gpu in devices.all.values()]
        self._suits.clear()

    def hold(self, row: int, parts: list[Part]) -> None:
        """Let somebody have these parts of the devices of a row."""
        positions = {index: self.rows[row] + place for place, index in enumerate(self._table.devices[row].all)}
        self._parts[row] += parts
        self._held_new += [
            (positions[part.device], part.millis, part.ends_ns, part.goes, part.begin_ns)
            for part in parts
            if part.device in positions
        ]

    def keep(self, row: int) -> None:
        """Count what the table keeps of the devices of this row for others."""
        self._kept[row] = None

    def wait(self, row: int, begin_ns: int, need: Resources, models: tuple[str, ...]) -> None:
        """Keep devices for a member from then on, of which nobody knows which come free for it."""
        self._waits.setdefault(row, []).append((begin_ns, need, models))

    def put(self, fit: Fit, room: Ints, at_ns: int, until_ns: int = NEVER, *, largest: bool = False) -> None:
        """Put into `room` what suits a member on each of the rows from `at_ns` on, until others come at `until_ns`.

        As SHARE the largest part that is left of a device that others have parts of; or else what all of these hold
        together in whole shares of the size that it needs, so that each of a gang finds its own.
        """
        if not self.rows:
            return
        self._catch_up()
        need, models, rows = fit.shape.need, fit.shape.gpu_models, np.array(list(self.rows), np.int64)
        (number, used_now, _), (position, millis, ends_ns, goes, begin_ns) = self._devices, self._held
        comes = begin_ns > 0
        counts = np.where(comes, (ends_ns > at_ns) & (begin_ns < until_ns), goes - (ends_ns <= at_ns))
        used = used_now.copy()
        np.add.at(used, position, counts * millis)
        suits, shares = self._suiting(need, models), np.zeros(len(rows), np.int64)
        room[GPUS, rows] = np.bincount(number[suits & (used <= 0)], minlength=len(rows))
        if need.gpu_millis:
            begun = suits & (used > 0)
            left = WHOLE_MILLIS - used[begun]
            if largest:
                np.maximum.at(shares, number[begun], left)
            else:
                np.add.at(shares, number[begun], np.maximum(left, 0) // need.gpu_millis * need.gpu_millis)
        room[SHARE, rows] = shares
        for row in self._kept | self._waits:
            whole, parts = free_then(self._keeping(row, until_ns), self._used_on(row, at_ns, until_ns), need, models)
            room[GPUS, row], room[SHARE, row] = whole, 0
            if need.gpu_millis:
                together = sum(max(0, each) // need.gpu_millis * need.gpu_millis for each in parts)
                room[SHARE, row] = max(parts, default=0) if largest else together

    def choose(self, row: int, need: Resources, models: tuple[str, ...], at_ns: int, until_ns: int) -> tuple[int, ...]:
        """Return the devices that a member gets who comes then: those that waste least, of shared ones the fullest."""
        used = self._used_on(row, at_ns, until_ns)
        suit = [gpu.index for gpu in self._table.devices[row].order if accepts(gpu, need, models)]
        if need.gpu_millis:
            begun = [index for index in suit if 0 < used.get(index, 0) <= WHOLE_MILLIS - need.gpu_millis]
            if begun:
                return (min(begun, key=lambda index: (-used[index], index)),)
        return tuple([index for index in suit if index not in used][: need.gpus or 1])

    def _keeping(self, row: int, until_ns: int) -> Devices:
        """Return the devices of a row with what is kept of them until others come."""
        devices = self._table.devices[row]
        if row in self._kept:
            return devices
        devices = msgspec.structs.replace(devices, kept={}, promised=0)
        for begin_ns, need, models in self._waits[row]:
            if begin_ns < until_ns:
                devices.keep(need, models, 1)
        return devices

    def _used_now(self, devices: Devices) -> dict[int, int]:
        return devices.staying_millis if self._without_leaving else devices.used_millis

    def _used_on(self, row: int, at_ns: int, until_ns: int) -> dict[int, int]:
        """Return what is used of each device of a row then, of which anything is."""
        devices = self._table.devices[row]
        used = dict(self._used_now(devices))
        for part in self._parts[row]:
            if part.device not in devices.all:
                continue
            if part.begin_ns:
                counts = int(part.ends_ns > at_ns and part.begin_ns < until_ns)
            else:
                counts = part.goes - (part.ends_ns <= at_ns)
            used[part.device] = used.get(part.device, 0) + counts * part.millis
        return {index: each for index, each in used.items() if each > 0}

    def _catch_up(self) -> None:
        """Let the columns have what came since."""
        if self._devices_new:
            self._devices = np.concatenate([self._devices, np.array(self._devices_new, np.int64).T], axis=1)
            self._devices_new.clear()
        if self._held_new:
            self._held = np.concatenate([self._held, np.array(self._held_new, np.int64).T], axis=1)
            self._held_new.clear()

    def _suiting(self, need: Resources, models: tuple[str, ...]) -> Flags:
        """Return which of the devices suit: as `accepts` says of one."""
        key = (need.gpu_memory_mib, models)
        found = self._suits.get(key)
        if found is None:
            found = self._devices[2] >= need.gpu_memory_mib
            if models:
                found &= np.array([model in models for model in self._models], np.bool_)
            self._suits[key] = found
        return found
