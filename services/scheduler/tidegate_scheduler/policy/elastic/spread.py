"""How the members of a gang are spread over nodes that hold them: the tightest first, and how close they stay together.

An intensive gang that is too large for a switch is on as few switches as may be. A loose one may go anywhere, but it is
below one switch, else in one rack, else in few racks, wherever that begins no more whole nodes than the tightest nodes
would: whole nodes are for those who need them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tidegate_scheduler.policy.elastic.domains import Domains, domains_of
from tidegate_scheduler.policy.elastic.shapes import CPU_BITS, GPU_BITS, PLACE_BITS, Fit
from tidegate_scheduler.policy.elastic.sites import Domain, Level
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, Flags, Ints

Rows = tuple[int, ...]
"""One row for each member, in the order of ranks."""


class Locality(msgspec.Struct, frozen=True):
    """How close together a gang has to be for now, and the row that its checkpoint is on (-1: on none)."""

    within: Level | None = None
    near: int = -1


ANYWHERE = Locality()
DOMAINS: tuple[Domain, ...] = ("switch", "rack")


class Ground:
    """Where a gang may go: on these rows, each of which holds so many members in this room.

    `is_now`: that is what every row of the table holds now, so that what they hold together is known.
    """

    def __init__(self, fit: Fit, room: Ints, rows: Ints, holds: Ints, near: int, *, is_now: bool = False) -> None:
        self.fit = fit
        self.room = room
        self.rows = rows
        self.holds = holds
        self.near = near
        self._is_now = is_now

    def among(self, inside: Flags) -> Ground:
        """Return the part of it on which the flag stands."""
        return Ground(self.fit, self.room, self.rows[inside], self.holds[inside], self.near)

    def tightest_domain(self, level: Level) -> Ground | None:
        """Return that part of it, within one thing of the level, that holds the gang and least beside it."""
        fit = self.fit
        if level == "cluster" and not fit.shape.alike:
            return self
        domains = domains_of(fit.shape, fit.table, self.rows, level)
        known = self._is_now and not fit.shape.alike
        sums = fit.holds_together(level) if known and level in DOMAINS else domains.sums(self.holds)
        able = np.flatnonzero(sums >= fit.shape.gang_size).tolist()
        if not able:
            return None
        here = set(domains.numbers[self.rows == self.near].tolist())
        best = min(able, key=lambda number: (int(sums[number]), number not in here, domains.names[number]))
        return self.among(domains.numbers == best)

    def filled(self) -> Rows:
        """Return the rows that the members fill one after the other, the tightest first."""
        size, chosen = self.fit.shape.gang_size, list[int]()
        able = np.flatnonzero(self.holds > 0)
        tight = _tightness(self.fit, self.room, self.rows[able], self.near)
        if len(able) > size:  # no more nodes than members are filled
            first = np.argpartition(tight, size)[:size]
            able, tight = able[first], tight[first]
        for position in able[np.argsort(tight)].tolist():
            chosen.extend([int(self.rows[position])] * min(int(self.holds[position]), size - len(chosen)))
            if len(chosen) == size:
                break
        return tuple(sorted(chosen, key=lambda row: row != self.near))  # rank 0 is who wrote the checkpoint

    def begun(self, rows: Rows) -> int:
        """Return how many of these nodes are whole until then: all of their devices are free, or all that they have."""
        table, need = self.fit.table, self.fit.shape.need
        found = 0
        for row in set(rows):
            kind, room = table.kinds[row], self.room[:, row]
            if need.gpus or need.gpu_millis:
                found += int(room[GPUS]) >= len(kind.devices)
            else:
                found += int(room[CPU]) >= kind.cpu_millis and int(room[MEMORY]) >= kind.memory_mib
        return found


def tightest(fit: Fit, room: Ints, rows: Ints, near: int) -> int:
    """Return which of the rows has least left."""
    return int(rows[_tightness(fit, room, rows, near).argmin()])


def close_by(ground: Ground) -> Rows:
    """Return where a gang goes that may go anywhere on the ground."""
    anywhere = ground.filled()
    if len(set(anywhere)) == 1 or not ground.fit.table.sites.named:
        return anywhere
    begun = ground.begun(anywhere)
    for level in DOMAINS:
        inside = ground.tightest_domain(level)
        if inside is not None and ground.begun(rows := inside.filled()) <= begun:
            return rows
    rows = _in_few(ground, "rack").filled()
    return rows if ground.begun(rows) <= begun else anywhere


def few_switches(ground: Ground) -> Rows:
    """Return where a gang goes that may go anywhere on the ground, for which all is better than one more switch."""
    return _in_few(ground, "switch").filled()


def _in_few(ground: Ground, level: Domain) -> Ground:
    """Return the part of the ground that is in the fewest things of the level: the roomiest, and the tightest last."""
    table, size = ground.fit.table, ground.fit.shape.gang_size
    numbers, names = table.sites.numbers(level)[ground.rows], table.sites.names(level)
    sums = Domains(numbers, names).sums(ground.holds)
    held, chosen = 0, list[int]()
    left = sorted(np.flatnonzero(sums).tolist(), key=lambda number: (-int(sums[number]), names[number]))
    for position, number in enumerate(left):
        if int(sums[number]) >= size - held:
            last = [each for each in left[position:] if int(sums[each]) >= size - held]
            chosen.append(min(last, key=lambda each: (int(sums[each]), names[each])))
            break
        chosen.append(number)
        held += int(sums[number])
    return ground.among(np.isin(numbers, chosen))


def _tightness(fit: Fit, room: Ints, rows: Ints, near: int) -> Ints:
    """Return how little is left on each row, smaller is less: devices, then CPU; then if it is near; then the place."""
    devices = np.minimum(np.maximum(room[GPUS, rows], 0), (1 << GPU_BITS) - 1)
    packed = (devices << CPU_BITS) | np.minimum(np.maximum(room[CPU, rows], 0), (1 << CPU_BITS) - 1)
    packed = (packed << 1) | (rows != near)
    found: Ints = (packed << PLACE_BITS) | fit.table.place[rows]
    return found
