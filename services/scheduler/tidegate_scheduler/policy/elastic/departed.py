"""The room that there will be once certain jobs have left too, for those who plan to ask them.

Plans try who leaves and who stays after all one by one, so what one step costs does not grow with how many have left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import numpy as np
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.entries import Seat
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, Ints, NodeTable
from tidegate_scheduler.state import Job

Held = tuple[int, Resources, tuple[int, ...]]
"""What somebody has on one row, with the devices."""


class Freed:
    """What is given back, by who gives it; the table's `later` is what there will be then."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._given: dict[object, list[Held]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for who in list(self._given):
            self.keep(who)

    @property
    def room(self) -> Ints:
        """Return the room, as it is while this is given back."""
        return self._table.later

    def give(self, who: object, held: list[Held]) -> None:
        """Let them give this back; each gives once."""
        self._given[who] = held
        for each in held:
            self._table.leave(*each)

    def keep(self, who: object) -> None:
        """Let them keep it after all."""
        for each in self._given.pop(who):
            self._table.stay(*each)


class Departed(Freed):
    """Who has left too."""

    def __init__(self, index: Index, gone: Iterable[Job] = ()) -> None:
        super().__init__(index.table)
        self._index = index
        for job in gone:
            self.leave(job)

    def leave(self, job: Job) -> None:
        """Let the job leave."""
        floor = self._index.state.floors[job.id]
        self.give(job.id, [(seat.row, seat.holds(floor), seat.gpu_indices) for seat in self._index.seats_of(job.id)])

    def stay(self, job: Job) -> None:
        """Let the job stay after all."""
        self.keep(job.id)


class Cleared:
    """How many members one row holds as one job after the other leaves it; they are on it for as long as the block."""

    def __init__(self, index: Index, fit: Fit, row: int) -> None:
        self._index = index
        self._fit = fit
        self._row = row
        self._most = int(fit.holds_empty(np.array([row], np.int64))[0])
        # Which devices are free then, or what parts of them, only the table knows.
        self._on_table = bool(fit.shape.need.gpu_millis) or row in index.table.mixed or row in index.table.parted
        self._freed = [0, 0, 0]
        self._gone: dict[str, Job] = {}

    def __enter__(self) -> Cleared:
        return self

    def __exit__(self, *exc: object) -> None:
        self.all_stay()

    def leave(self, job: Job) -> None:
        """Let the job leave the row."""
        self._gone[job.id] = job
        for seat in self._seats(job):
            self._move(job, seat, 1)

    def stay(self, job: Job) -> None:
        """Let the job stay after all."""
        del self._gone[job.id]
        for seat in self._seats(job):
            self._move(job, seat, -1)

    def all_stay(self) -> None:
        """Let all who have left stay after all."""
        for job in list(self._gone.values()):
            self.stay(job)

    @property
    def members(self) -> int:
        """Return how many members the row holds now."""
        need, table = self._fit.shape.need, self._index.table
        if self._on_table:
            return int(self._fit.members(table.later, np.array([self._row], np.int64), "later")[0])
        later, members = table.later_on(self._row), self._most
        for amount, one in ((CPU, need.cpu_millis), (MEMORY, need.memory_mib), (GPUS, need.gpus)):
            if one:
                members = min(members, max(0, later[amount] + self._freed[amount]) // one)
        return members

    def _seats(self, job: Job) -> list[Seat]:
        return [seat for seat in self._index.seats_of(job.id) if seat.row == self._row]

    def _move(self, job: Job, seat: Seat, sign: int) -> None:
        need = seat.holds(self._index.state.floors[job.id])
        if self._on_table:
            move = self._index.table.leave if sign > 0 else self._index.table.stay
            move(self._row, need, seat.gpu_indices)
            return
        self._freed[CPU] += sign * need.cpu_millis
        self._freed[MEMORY] += sign * need.memory_mib
        self._freed[GPUS] += sign * need.gpus
