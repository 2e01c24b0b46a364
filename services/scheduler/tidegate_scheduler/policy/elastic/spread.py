"""How the members of a gang are spread over nodes that hold them: the tightest first, and how close they stay together.

An intensive gang that is too large for a switch is on as few switches as may be. A loose one may go anywhere, but it is
below one switch, else in one rack, else in few racks, wherever that begins no more whole nodes than the tightest nodes
would: whole nodes are for those who need them.

Borrowers go where all of them could have their phases at once, if there is such room; else as many members as can have
theirs do, and each of the others goes where least is asked for.
"""

from __future__ import annotations

import heapq

import msgspec
import numpy as np

from tidegate_scheduler.policy.elastic.domains import Domains, domains_of
from tidegate_scheduler.policy.elastic.shapes import PLACE_BITS, Fit
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

    `is_now`: that is what every row of the table holds now, so that what they hold together is known. `at_ease` is how
    many of them could have their phases there at once, where that is not all of them.
    """

    def __init__(self, fit: Fit, room: Ints, rows: Ints, holds: Ints, near: int, *, is_now: bool = False) -> None:
        self.fit = fit
        self.room = room
        self.rows = rows
        self.holds = holds
        self.near = near
        self._is_now = is_now
        self._at_ease: Ints | None = None

    def by_peaks(self) -> list[Ground]:
        """Return the ground on which the gang goes if it can: as far as all have their phases at once; then all."""
        if self.fit.wants is None:
            return [self]
        self._at_ease = self.fit.members_beside(self.room, self.rows, self.holds)
        if int(self._at_ease.sum()) < self.fit.shape.gang_size:
            return [self]
        return [Ground(self.fit, self.room, self.rows, self._at_ease, self.near), self]

    def among(self, inside: Flags) -> Ground:
        """Return the part of it on which the flag stands."""
        part = Ground(self.fit, self.room, self.rows[inside], self.holds[inside], self.near)
        part._at_ease = self._at_ease[inside] if self._at_ease is not None else None
        return part

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
        eased = domains.sums(self._at_ease) if self._at_ease is not None else np.zeros_like(sums)
        best = min(
            able,
            key=lambda number: (-int(eased[number]), int(sums[number]), number not in here, domains.names[number]),
        )
        return self.among(domains.numbers == best)

    def filled(self) -> Rows:
        """Return the rows that the members fill one after the other, the tightest first."""
        size, counts = self.fit.shape.gang_size, dict[int, int]()
        able = np.flatnonzero(self.holds > 0)
        order = _in_order(self.fit, self.room, self.rows[able], self.near)
        if len(able) > size:  # no more nodes than members are filled
            first = np.argpartition(order, size)[:size]
            able, order = able[first], order[first]
        left, filled = size, able[np.argsort(order)].tolist()
        holds = self.holds if self._at_ease is None else self._at_ease
        for position in filled:
            counts[position] = min(int(holds[position]), left)
            left -= counts[position]
            if not left:
                break
        if left:
            self._crowd(filled, counts, left)
        chosen = [int(self.rows[position]) for position, count in counts.items() for _ in range(count)]
        return tuple(sorted(chosen, key=lambda row: row != self.near))  # rank 0 is who wrote the checkpoint

    def _crowd(self, filled: list[int], counts: dict[int, int], left: int) -> None:
        """Let the members who are left go one by one where least is asked for; there is room for all of them."""

        def load(turn: int) -> tuple[int, int]:
            position, row = filled[turn], int(self.rows[filled[turn]])
            return self.fit.load(self.room[:, row].tolist(), row, counts[position] + 1), turn

        heap = [load(turn) for turn, position in enumerate(filled) if counts[position] < self.holds[position]]
        heapq.heapify(heap)
        for _ in range(left):
            turn = heap[0][1]
            counts[filled[turn]] += 1
            if counts[filled[turn]] < self.holds[filled[turn]]:
                heapq.heapreplace(heap, load(turn))
            else:
                heapq.heappop(heap)

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
    """Return which of the rows suits the whole gang best."""
    return int(rows[_in_order(fit, room, rows, near, fit.shape.gang_size).argmin()])


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


def _in_order(fit: Fit, room: Ints, rows: Ints, near: int, members: int = 1) -> Ints:
    """Return what puts the rows in order: how well each suits so many members, then if it is near, then its place."""
    places = np.where(rows == near, 0, fit.table.place[rows] + 1)
    found: Ints = (fit.tightness(room, rows, members) << PLACE_BITS) | places
    return found
