"""Until when who holds how much: columns over all who hold room, row by row, and on each in the order of their ends.

Ends are those that were declared: time limits, the deadlines of those who are leaving. What a pass tries is laid over
that, and taken back by the next. The columns follow what changed; what one call costs beside that are a few copies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, use
from tidegate_scheduler.policy.elastic.entries import Seat
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, SHARE, Flags, Ints
from tidegate_scheduler.policy.limits import ends_by_ns
from tidegate_scheduler.policy.parameters import SECOND_NS

if TYPE_CHECKING:
    from tidegate_scheduler.policy.elastic.index import Index
    from tidegate_scheduler.policy.elastic.trial import Trial
    from tidegate_scheduler.state import Job

NEVER = 1 << 62
"""The end of who declared none."""

CHANGED_MAX = 1024
"""Jobs that may have changed before they are entered though nobody asks, so that no call has to enter very many."""

ROW, ENDS, GOES, JOB = 4, 5, 6, 7
COLUMNS = 8
"""What a member gives back when it ends (by CPU, MEMORY, GPUS) and the largest part of a device that is free then
(SHARE); its row, its end, 1 if it is leaving, so that `later` counts it as gone already, and the number of its job."""


class Until(msgspec.Struct, frozen=True):
    """When a job has certainly left, and whether it is leaving now."""

    ends_ns: int
    goes: bool


def until(index: Index, name: str) -> Until:
    """Return what is declared of a job that holds room; the time may be over."""
    job = index.state.jobs[name]
    ends_ns = ends_by_ns(job, index.state.specs[name])
    return Until(NEVER if ends_ns is None else ends_ns, index.leaving(name))


def untils_tried(trial: Trial, now_ns: int, for_job: Job) -> dict[str, Until]:
    """Return for whom another end counts in this pass, and for that job: who is asked to leave, who was let in for it.

    Whoever was let in until it comes leaves for it.
    """
    index, found = trial.index, dict[str, Until]()
    for name in trial.asked:
        if not index.leaving(name):
            grace_ns = index.state.specs[name].preemption.grace_seconds * SECOND_NS
            found[name] = Until(now_ns + grace_ns, goes=True)
    start_ns = for_job.reserved_start_ns
    if start_ns:
        for name in index.backfilling:
            if name not in found and for_job.id in index.state.jobs[name].backfills and not index.leaving(name):
                known = until(index, name)
                if known.ends_ns > start_ns:
                    found[name] = Until(start_ns, goes=False)
    return found


class Steps(msgspec.Struct, frozen=True):
    """The moments at which somebody leaves a row: row by row, in their order, those of one moment together.

    `gained` is what all who have left the row by then gave back, by CPU, MEMORY, GPUS; `shares` the largest part of a
    device that is free then; `is_first` where a row begins. An eighth of all who hold room end by `early_ns`.
    """

    rows: Ints
    ends_ns: Ints
    gained: Ints
    shares: Ints
    is_first: Flags
    early_ns: int


def _steps_of(columns: Ints) -> Steps:
    """Return the steps of columns whose rows are in order, and on each row the ends."""
    rows, ends_ns, given = columns[ROW], columns[ENDS], columns[:SHARE]
    if not len(rows):
        return Steps(rows, ends_ns, given, columns[SHARE], np.zeros(0, np.bool_), NEVER)
    other_row = rows[1:] != rows[:-1]
    begins = np.concatenate([[True], other_row])
    last = np.flatnonzero(np.concatenate([other_row | (ends_ns[1:] != ends_ns[:-1]), [True]]))
    of_row = np.cumsum(begins)[last] - 1
    total = np.cumsum(given, axis=1)
    before = total[:, begins] - given[:, begins]
    gained = total[:, last] - before[:, of_row]
    is_first = np.concatenate([[True], of_row[1:] != of_row[:-1]])
    early_ns = int(np.partition(ends_ns, len(ends_ns) // 8)[len(ends_ns) // 8])
    return Steps(rows[last], ends_ns[last], gained, columns[SHARE, last], is_first, early_ns)


class Holders:
    """The columns; `still` is by row what those hold who are leaving, as `later` counts that as free already."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.changed: dict[str, None] = {}
        self._tried: Mapping[str, Until] = {}
        self._parted: dict[int, None] = {}
        """Rows on which a pass may have given parts of devices away, which is taken back after it."""

        self._by_parts: dict[int, None] = {}
        """Rows on which parts of devices were given away before."""

        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._spare: list[int] = []
        self.columns: Ints = np.zeros((COLUMNS, 0), np.int64)
        self.steps = _steps_of(self.columns)
        self.still: Ints = np.zeros((SHARE, 0), np.int64)
        self.shares: Ints = np.zeros(0, np.int64)
        """By row the largest part of a device that is free before anybody leaves."""

    def note(self, jobs: Mapping[str, None]) -> None:
        """Note that these jobs changed."""
        self.changed.update(jobs)
        if len(self.changed) >= CHANGED_MAX:
            self._enter({}, ())

    def refresh(self, trial: Trial, tried: Mapping[str, Until]) -> None:
        """Bring the columns up to date with the state, and with what was tried since."""
        devices, before = self._index.table.devices, self._parted
        self._parted = {row: None for row in trial.touched if devices[row].parts}
        self._enter(tried, before | self._parted)

    def _enter(self, tried: Mapping[str, Until], rows: Collection[int]) -> None:
        """Enter those who changed, and whom it is tried with or was before; look again at the rows."""
        self._grow(len(self._index.table))
        for name in [*self._tried, *tried]:
            if self._tried.get(name) != tried.get(name):
                self.changed[name] = None
        self._tried = tried
        if not self.changed and not rows:
            return
        leave = self._taken_out()[self.columns[JOB]]
        entered = self._entries()
        touched = np.zeros(len(self.shares), np.bool_)
        touched[self.columns[ROW, leave]] = touched[entered[ROW]] = touched[list(rows)] = True
        again = touched[self.columns[ROW]]
        anew = np.concatenate([self.columns[:, again & ~leave], entered], axis=1)
        anew = anew[:, np.lexsort((anew[ENDS], anew[ROW]))]
        self._weigh(anew, np.flatnonzero(touched))
        kept = self.columns[:, ~again]
        self.columns = np.insert(kept, np.searchsorted(kept[ROW], anew[ROW]), anew, axis=1)
        self.steps = _steps_of(self.columns)
        self.changed.clear()

    def _grow(self, rows: int) -> None:
        more = rows - len(self.shares)
        if more > 0:
            self.still = np.concatenate([self.still, np.zeros((SHARE, more), np.int64)], axis=1)
            self.shares = np.concatenate([self.shares, np.zeros(more, np.int64)])

    def _taken_out(self) -> Flags:
        """Return, by number, who changed; they have numbers no more."""
        found = np.zeros(len(self._names) + len(self._spare), np.bool_)
        for name in self.changed:
            number = self._numbers.pop(name, None)
            if number is not None:
                found[number] = True
                del self._names[number]
                self._spare.append(number)
        return found

    def _entries(self) -> Ints:
        """Return what those who changed hold now."""
        index, found = self._index, list[tuple[int, ...]]()
        for name in self.changed:
            seats = index.seats_of(name)
            if not seats:
                continue
            number = self._numbers[name] = self._spare.pop() if self._spare else len(self._names)
            self._names[number] = name
            end, floor = self._tried.get(name) or until(index, name), index.state.floors[name]
            for seat in seats:
                need = seat.holds(floor)
                gpus = need.gpus or (1 if need.gpu_millis else 0)
                found.append((need.cpu_millis, need.memory_mib, gpus, 0, seat.row, end.ends_ns, int(end.goes), number))
        return np.array(found, np.int64).reshape(-1, COLUMNS).T

    def _weigh(self, anew: Ints, rows: Ints) -> None:
        """Find out what is still held on the rows, all of whose holders are given, and where devices come free."""
        self.still[:, rows] = 0
        self.shares[rows] = 0
        for amount in (CPU, MEMORY, GPUS):
            np.add.at(self.still[amount], anew[ROW], anew[amount] * anew[GOES])
        for row in rows.tolist():
            if self._index.table.devices[row].parts or row in self._by_parts:
                self._by_parts[row] = None  # those who are left there are entered as that has it
                self._weigh_parts(anew, row)

    def _weigh_parts(self, anew: Ints, row: int) -> None:
        """A device of which parts were given away is free as a whole once the last of those who share it has left."""
        index, devices = self._index, self._index.table.devices[row]
        there = range(*np.searchsorted(anew[ROW], (row, row + 1)).tolist())
        used, left = dict(devices.staying_millis), dict[int, list[Seat]]()
        parts = list[tuple[Resources, tuple[int, ...]]]()
        for position in there:
            number = int(anew[JOB, position])
            name = self._names[number]
            if number not in left:
                left[number] = [seat for seat in index.seats_of(name) if seat.row == row]
            seat = left[number].pop()
            parts.append((seat.holds(index.state.floors[name]), seat.gpu_indices))
            if anew[GOES, position]:
                use(used, devices, *parts[-1], 1)
        whole = len(devices.all) - len(used)
        self.still[GPUS, row] = len(devices.all) - len(devices.staying_millis) - whole
        self.shares[row] = _largest(used)
        for position, part in zip(there, parts, strict=True):
            use(used, devices, *part, -1)
            anew[GPUS, position] = len(devices.all) - len(used) - whole
            anew[SHARE, position] = _largest(used)
            whole = len(devices.all) - len(used)


def _largest(used: dict[int, int]) -> int:
    """Return the largest part that is free of a device, parts of which are used."""
    return max((WHOLE_MILLIS - each for each in used.values()), default=0)
