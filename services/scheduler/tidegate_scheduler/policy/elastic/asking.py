"""Where the members are that ask for their phases, and what of devices is lent and leased: kept up with the index."""

from __future__ import annotations

import msgspec

from tidegate_scheduler.policy.elastic.devices import Devices
from tidegate_scheduler.policy.elastic.entries import Seat
from tidegate_scheduler.policy.elastic.parts import Part, device_of, leased_to, lent_by
from tidegate_scheduler.policy.elastic.peaks import Asked, asked_on
from tidegate_scheduler.policy.elastic.table import NodeTable
from tidegate_scheduler.policy.elastic.terms import missing_share
from tidegate_scheduler.state import LEAVING_STAGES, Job, State


class _Parts(msgspec.Struct, frozen=True):
    """What a member of a job has leased, lends, and waits for of that, of the devices as they were when it came."""

    devices: Devices
    leased: tuple[Part, ...]
    lent: tuple[Part, ...]
    claimed: tuple[Part, ...]


class Asking:
    """Jobs whose members ask: `on_row` names them by row, `recalled` are those with leases to return.

    A member of those that are `waiting` has asked for a phase and was not granted it.
    """

    def __init__(self, state: State) -> None:
        self.on_row: dict[int, dict[str, None]] = {}
        self.recalled: dict[str, None] = {}
        self.waiting: dict[str, None] = {}
        self._state = state
        self._parts: dict[str, list[_Parts]] = {}
        self._rows: dict[str, list[int]] = {}
        self._peaks: dict[str, list[Asked]] = {}

    def enter(self, job: Job, seats: tuple[Seat, ...], table: NodeTable) -> None:
        """Enter a job that has its `seats`."""
        rows = self._rows[job.id] = list(dict.fromkeys(seat.row for seat in seats))
        for row in rows:
            self.on_row.setdefault(row, {})[job.id] = None
        spec, floor, stays = self._state.specs[job.id], self._state.floors[job.id], may_stay(job)
        if spec.borrows and job.stage not in LEAVING_STAGES:  # who leaves asks for nothing any more
            self._peaks[job.id] = asked_on(spec, floor, seats)
            for asked in self._peaks[job.id]:
                table.peaks.add(asked)
        there = [member for member in job.members if member.active and member.node in table.rows]
        parts = [
            _Parts(
                table.devices[table.rows[each.node]],
                leased_to(each),
                lent_by(each),
                tuple((index, missing_share(spec, floor, each)) for index in device_of(each) if stays),
            )
            for each in there
            if each.leased is not None or each.lent_gpus or each.lent_millis
        ]
        if parts:
            self._parts[job.id] = parts
            _count(parts, 1)
        if any(member.hand_back_ns for member in there):
            self.recalled[job.id] = None
        if any(member.wanted and not member.granted for member in there):
            self.waiting[job.id] = None

    def leave(self, name: str, table: NodeTable) -> None:
        """Take out what was entered of a job."""
        rows = self._rows.pop(name, None)
        if rows is None:
            return  # most jobs ask for nothing
        for row in rows:
            self.on_row[row].pop(name, None)
            if not self.on_row[row]:
                del self.on_row[row]
        for asked in self._peaks.pop(name, ()):
            table.peaks.add(asked, -1)
        _count(self._parts.pop(name, []), -1)
        self.recalled.pop(name, None)
        self.waiting.pop(name, None)


def may_stay(job: Job) -> bool:
    """Say whether nobody asked the job to leave."""
    return not (job.stage in LEAVING_STAGES or job.cancel_requested or job.suspend_requested)


def _count(parts: list[_Parts], sign: int) -> None:
    """Count in what there is of the parts of devices, or with `sign` -1 out."""
    for each in parts:
        devices = each.devices
        pairs = ((devices.leased, each.leased), (devices.lent, each.lent), (devices.claimed, each.claimed))
        for counted, those in pairs:
            for index, millis in those:
                left = counted.get(index, 0) + sign * millis
                if left:
                    counted[index] = left
                else:
                    counted.pop(index, None)
