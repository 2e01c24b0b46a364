"""What borrowers will ask for on each row beyond what they hold, so that they are placed by it.

A job that borrows holds its default phase, which is little. Placed by that alone, borrowers would gather on the
tightest node and wait there for each other, while others stand idle. So what their phases need at most is counted here:
it keeps nobody out, but where all of it fits a borrower goes before anywhere else, and then where there is most of it.

Devices are counted in thousandths, whole ones and shares together. Of what there is of them the largest part of a
begun device counts beside the whole ones, for a share is one part of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE, JobSpec, phase_need

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, Devices

if TYPE_CHECKING:
    from tidegate_scheduler.policy.elastic.entries import Seat

Ints = npt.NDArray[np.int64]
Peak = tuple[int, int, int]
"""CPU in thousandths, MiB of memory, devices in thousandths."""

NONE: Peak = (0, 0, 0)
CPU, MEMORY, DEVICES = 0, 1, 2

LOAD_BITS = 16
"""How finely loads are told apart: in parts of 2**16 of what the node has."""

LOAD_WHOLE = 1 << LOAD_BITS
"""The load of a row of which all that it has is asked for, and no more."""

DEVICE_BITS, CPU_BITS = 16, 24
"""What a score packs below whether the peak fits, and whether a whole device is broken up: devices, then CPU left."""

DEVICES_MOST, CPU_MOST, LOAD_MOST = (1 << DEVICE_BITS) - 1, (1 << CPU_BITS) - 1, (1 << (DEVICE_BITS + CPU_BITS)) - 1
CROWDED = 1 << (DEVICE_BITS + CPU_BITS + 1)

SPECS_KNOWN_MAX = 1 << 16
_known: dict[int, tuple[JobSpec, Peak]] = {}
"""By specification, which is one object while its job lives: a job is entered again whenever it changes."""


def phases_of(spec: JobSpec) -> tuple[Resources, ...]:
    """Return what one member of a borrower needs in the phases other than the default; of other jobs nothing."""
    if not spec.borrows:
        return ()
    return tuple(dict.fromkeys(phase_need(spec, phase) for phase in spec.phases if phase != DEFAULT_PHASE))


def peak_of(needs: tuple[Resources, ...]) -> Peak:
    """Return the most of each amount that any of them needs."""
    return (
        max((need.cpu_millis for need in needs), default=0),
        max((need.memory_mib for need in needs), default=0),
        max((_device_millis(need) for need in needs), default=0),
    )


def beyond(spec: JobSpec, floor: Resources, extra: Resources | None) -> Peak:
    """Return what a member of a borrower may ask for yet, beyond its floor and what it has of that already."""
    known = _known.get(id(spec))
    if known is None or known[0] is not spec:
        if len(_known) >= SPECS_KNOWN_MAX:
            _known.clear()
        known = _known[id(spec)] = (spec, peak_of(phases_of(spec)))
    cpu_millis, memory_mib, device_millis = known[1]
    has = floor if extra is None else floor.plus(extra)
    return (
        max(0, cpu_millis - has.cpu_millis),
        max(0, memory_mib - has.memory_mib),
        max(0, device_millis - _device_millis(has)),
    )


def _device_millis(need: Resources) -> int:
    return need.gpus * WHOLE_MILLIS + need.gpu_millis


# ---- who asks ----


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What one member may ask for on its row yet; of the `device` that it has a share of, where it has (else -1)."""

    row: int
    more: Peak
    device: int = -1


def asked_on(spec: JobSpec, floor: Resources, seats: Sequence[Seat]) -> list[Asked]:
    """Return what the members of a borrower may ask for on their seats."""
    found: list[Asked] = []
    for seat in seats:
        shares = bool(seat.holds(floor).gpu_millis) and seat.gpu_indices
        found.append(Asked(seat.row, beyond(spec, floor, seat.extra), seat.gpu_indices[0] if shares else -1))
    return found


class Peaks:
    """By row what its borrowers may ask for yet, and what those will whom a pass has placed until it ends."""

    def __init__(self) -> None:
        self._on: dict[int, Peak] = {}
        self._of_device: dict[tuple[int, int], int] = {}
        self._columns: Ints = np.zeros((3, 0), np.int64)
        self._behind: dict[int, None] = {}
        self._tried: list[Asked] = []

    def on(self, row: int) -> Peak:
        """Return what may be asked for on the row."""
        return self._on.get(row, NONE)

    def of_device(self, row: int, device: int) -> int:
        """Return how much of a device may be asked for by those who have a share of it."""
        return self._of_device.get((row, device), 0)

    def columns(self, rows: int) -> Ints:
        """Return what may be asked for on each of so many rows at least, to be looked at only."""
        known = self._columns.shape[1]
        if known < rows:
            more = np.zeros((3, max(rows, 2 * known)), np.int64)
            more[:, :known] = self._columns
            self._columns = more
        if self._behind:
            there = list(self._behind)
            self._columns[:, there] = np.array([self.on(row) for row in there], np.int64).T
            self._behind.clear()
        return self._columns

    def add(self, asked: Asked, sign: int = 1) -> None:
        """Count that so much more may be asked for, or with `sign` -1 so much less."""
        row, more = asked.row, asked.more
        cpu_millis, memory_mib, device_millis = self.on(row)
        found = (cpu_millis + sign * more[CPU], memory_mib + sign * more[MEMORY], device_millis + sign * more[DEVICES])
        self._behind[row] = None
        if found == NONE:
            self._on.pop(row, None)
        else:
            self._on[row] = found
        if asked.device >= 0 and more[DEVICES]:
            key = (row, asked.device)
            self._of_device[key] = self._of_device.get(key, 0) + sign * more[DEVICES]
            if not self._of_device[key]:
                del self._of_device[key]

    def best_device(self, row: int, devices: Devices, able: list[int], peak_millis: int) -> int:
        """Return which of the devices one gets a share of who may want so much of it, and gets that of no other.

        Where that much is left beside what others may ask for, a begun one, then the tightest; else where most is left.
        """

        def order(device: int) -> tuple[bool, bool, int, int]:
            left = devices.here_of(device) - self.of_device(row, device) - peak_millis
            return left < 0, device not in devices.used_millis, abs(left), device

        return min(able, key=order)

    def expect(self, spec: JobSpec, floor: Resources, seats: tuple[Seat, ...]) -> None:
        """Count what a job may ask for that a pass places."""
        for asked in asked_on(spec, floor, seats) if spec.borrows else ():
            self._tried.append(asked)
            self.add(asked)

    def end_pass(self) -> None:
        """Take back what was expected: it is there when the placements are folded."""
        for asked in self._tried:
            self.add(asked, -1)
        self._tried.clear()


# ---- where that suits ----


class Wants(msgspec.Struct, frozen=True):
    """What so many members of a borrower want at most on one row, and the share of a device that each of them does."""

    peak: Peak
    gpu_millis: int
    members: int = 1

    def times(self, members: int) -> Wants:
        """Return what so many of them want."""
        cpu_millis, memory_mib, device_millis = self.peak
        peak = (cpu_millis * members, memory_mib * members, device_millis * members)
        return Wants(peak, self.gpu_millis, members)

    def left(self, room: Sequence[int], asked: Peak) -> Peak:
        """Return what is left of the table's amounts `room` when all ask for all, these too."""
        cpu_millis, memory_mib, gpus, share = room
        return (
            cpu_millis - asked[CPU] - self.peak[CPU],
            memory_mib - asked[MEMORY] - self.peak[MEMORY],
            gpus * WHOLE_MILLIS + share - asked[DEVICES] - self.peak[DEVICES],
        )


def wants_of(needs: tuple[Resources, ...]) -> Wants:
    """Return what a member wants that has these needs in turn."""
    return Wants(peak_of(needs), max((need.gpu_millis for need in needs), default=0))


def tightness(wants: Wants, room: Sequence[int], asked: Peak, whole: Peak, broken: int) -> int:
    """Return how a row suits who may want so much, smaller is better; `broken`: a whole device would be begun for it.

    Where all of it fits beside all that others may ask for, the tightest row is best, as for every job; else the row of
    which least would be asked for, of whatever is asked for most, in parts of what it has. Amounts that are not wanted
    do not count.
    """
    left = wants.left(room, asked)
    if all(each >= 0 or not want for each, want in zip(left, wants.peak, strict=True)) and _parts(wants, room):
        packed = (broken << DEVICE_BITS) | min(max(0, left[DEVICES]), DEVICES_MOST)
        return (packed << CPU_BITS) | min(max(0, left[CPU]), CPU_MOST)
    return CROWDED | (min(load(wants, left, whole), LOAD_MOST) << 1) | broken


def load(wants: Wants, left: Peak, whole: Peak) -> int:
    """Return the part of a row that is asked for, of whatever of what is wanted is asked for most, in 2**16 parts."""
    each_of = zip(whole, left, wants.peak, strict=True)
    return max((((has - each) << LOAD_BITS) // has for has, each, want in each_of if want and has), default=0)


def _parts(wants: Wants, room: Sequence[int]) -> bool:
    """Say whether there are as many parts of devices as these want, each of one device."""
    *_, gpus, share = room
    each = wants.gpu_millis
    return not each or max(0, gpus) * (WHOLE_MILLIS // each) + share // each >= wants.members


def tightnesses(wants: Wants, room: Ints, asked: Ints, whole: Ints, broken: Ints) -> Ints:
    """Return the same as `tightness` for many rows."""
    wanted = np.array(wants.peak, np.int64) > 0
    left = _amounts(room) - asked - np.array(wants.peak, np.int64)[:, None]
    fits = (left[wanted] >= 0).all(axis=0)
    if wants.gpu_millis:
        fits &= _all_parts(wants, room) >= wants.members
    packed = (broken << DEVICE_BITS) | np.clip(left[DEVICES], 0, DEVICES_MOST)
    packed = (packed << CPU_BITS) | np.clip(left[CPU], 0, CPU_MOST)
    loads = np.where(whole > 0, ((whole - left) << LOAD_BITS) // np.maximum(whole, 1), 0)[wanted].max(axis=0, initial=0)
    found: Ints = np.where(fits, packed, CROWDED | (np.minimum(loads, LOAD_MOST) << 1) | broken)
    return found


def members_beside(wants: Wants, room: Ints, asked: Ints, most: Ints) -> Ints:
    """Return how many members, `most` of them on each row, have all that they want beside what others may ask for."""
    count, left = most, _amounts(room) - asked
    for amount, want in enumerate(wants.peak):
        if want:
            count = np.minimum(count, left[amount] // want)
    if wants.gpu_millis:
        count = np.minimum(count, _all_parts(wants, room))
    return np.maximum(count, 0)


def _amounts(room: Ints) -> Ints:
    cpu_millis, memory_mib, gpus, share = room
    return np.stack((cpu_millis, memory_mib, gpus * WHOLE_MILLIS + share))


def _all_parts(wants: Wants, room: Ints) -> Ints:
    *_, gpus, share = room
    found: Ints = np.maximum(gpus, 0) * (WHOLE_MILLIS // wants.gpu_millis) + share // wants.gpu_millis
    return found
