"""Where the members are that ask for their phases, and which devices are leased to them: kept up with the index."""

from __future__ import annotations

from tidegate_scheduler.policy.elastic.entries import Seat, parted
from tidegate_scheduler.policy.elastic.peaks import Peak, beyond
from tidegate_scheduler.policy.elastic.table import NodeTable
from tidegate_scheduler.state import Job, State


class Asking:
    """Jobs whose members ask: `on_row` names them by row, `recalled` are those with leases to return.

    A member of those that are `waiting` has asked for a phase and was not granted it.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.on_row: dict[int, dict[str, None]] = {}
        self.recalled: dict[str, None] = {}
        self.waiting: dict[str, None] = {}
        self._leased: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
        self._rows: dict[str, list[int]] = {}
        self._peaks: dict[str, list[tuple[int, Peak]]] = {}

    def enter(self, job: Job, seats: tuple[Seat, ...], table: NodeTable) -> None:
        """Enter a job that has its `seats`."""
        rows = self._rows[job.id] = list(dict.fromkeys(seat.row for seat in seats))
        for row in rows:
            self.on_row.setdefault(row, {})[job.id] = None
        if (spec := self._state.specs[job.id]).borrows:
            floor = self._state.floors[job.id]
            self._peaks[job.id] = [(seat.row, beyond(spec, floor, seat.extra)) for seat in seats]
            for row, more in self._peaks[job.id]:
                table.peaks.add(row, more)
        there = [member for member in job.members if member.active and member.node in table.rows]
        leased = [(table.rows[each.node], parted(each)[1]) for each in there if each.leased is not None]
        if leased:
            self._leased[job.id] = leased
        for row, indices in leased:
            table.lease(row, indices)
        if any(member.hand_back_ns for member in there):
            self.recalled[job.id] = None
        if any(member.wanted and not member.granted for member in there):
            self.waiting[job.id] = None

    def leave(self, name: str, table: NodeTable) -> None:
        """Take out what was entered of a job."""
        for row in self._rows.pop(name, ()):
            self.on_row[row].pop(name, None)
            if not self.on_row[row]:
                del self.on_row[row]
        for row, more in self._peaks.pop(name, ()):
            table.peaks.add(row, more, -1)
        for row, indices in self._leased.pop(name, ()):
            table.unlease(row, indices)
        self.recalled.pop(name, None)
        self.waiting.pop(name, None)
