"""When waiting jobs may start, as far as that is known: a forecast for people, never an input of a decision.

It walks the line and seats each job at the first moment at which it fits, given when those who hold room end: at the
end of their grace period (those that leave), after the time they expected, or at their time limit. Room that is kept
is its owner's until that has left again; who has certainly left before may use it. What rests on nothing declared is
unknown, and whoever needs it is unknown too. A job that fits somewhere later fits at every later moment, as room is
only ever taken here by those in front, so the first moment is found without looking at each.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec
import numpy as np
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.causes import closing
from tidegate_scheduler.policy.elastic.fit import Rows, rows_in, rows_now
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import amounts
from tidegate_scheduler.policy.elastic.reasons import kept_rows
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, Ints
from tidegate_scheduler.policy.limits import time_limit_seconds
from tidegate_scheduler.policy.outlook import BASES, Basis, Start
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import LEAVING_STAGES, Job

HOLDERS_MAX = 1000
"""Running members that are looked at; on a larger cluster those on its emptiest nodes."""

ROWS_MAX = 150_000
LOOK_ROWS_LEAST = 500
"""Rows that are looked at in one forecast, each look counted as so many at least: it must not delay decisions."""

NEVER = 1 << 62


class _Hold(msgspec.Struct):
    """Room of one member on a row from `begin_ns` until `end` (None: nobody knows)."""

    row: int
    need: Resources
    begin_ns: int
    end: Start | None

    @property
    def end_ns(self) -> int:
        """Return when the room is free again."""
        return NEVER if self.end is None else self.end.at_ns


class _ExhaustedError(Exception):
    """The bound on work is reached."""


def forecast(index: Index, in_line: list[Job], now_ns: int) -> dict[str, Start]:
    """Return the known starts of the jobs in line, by job; who is not in it is unknown."""
    plan = _Plan(index, now_ns)
    starts: dict[str, Start] = {}
    jobs = index.state.jobs
    kept = sorted((jobs[name] for name in index.reserving), key=lambda job: (-job.priority, job.submitted_seq))
    others = [job for job in in_line if job.id not in index.reserving]
    try:
        for job in [*kept, *others]:
            start = plan.seat(job) if _asked(index, job) else None
            if start is not None:
                starts[job.id] = start
    except _ExhaustedError:
        pass  # those further behind stay unknown
    return starts


def _asked(index: Index, job: Job) -> bool:
    """Say whether the job starts as soon as there is room for it, as far as that is known."""
    if job.held or job.cancel_requested or index.share(job.tenant).stopped:
        return False
    share, shape = index.share(job.tenant), index.line_key(job).shape
    return share.within(amounts(shape.need, shape.gang_size), share.ceiling)


class _There:
    """Who holds room now and when it is free again, as columns in the order of their ends."""

    def __init__(self, holds: list[_Hold]) -> None:
        holds.sort(key=lambda hold: hold.end_ns)
        self.ends = np.array([hold.end_ns for hold in holds], np.int64)
        self._rows = np.array([hold.row for hold in holds], np.int64)
        self._needs = _amounts(holds)
        self.rows = set(self._rows.tolist())
        self.moments = {hold.end for hold in holds if hold.end is not None}

    def free(self, room: Ints, at_ns: int) -> None:
        """Add to `room` what is free again at that time."""
        count = int(np.searchsorted(self.ends, at_ns, side="right"))
        for amount in range(3):
            np.add.at(room[amount], self._rows[:count], self._needs[:count, amount])


class _Plan:
    """The future of every row: who holds what until when."""

    def __init__(self, index: Index, now_ns: int) -> None:
        self._index = index
        self._now_ns = now_ns
        self._looked_at = 0
        self._taken: list[_Hold] = []
        """What those in front will hold."""

        self._there = _There(self._holders())
        self._soonest: dict[Fit, int] = {}
        self._base = index.table.free
        self._kept = kept_rows(index)

    def _holders(self) -> list[_Hold]:
        index, table = self._index, self._index.table
        rows = np.fromiter(index.on_row, np.int64, len(index.on_row))
        order = rows[np.lexsort((table.place[rows], -table.later[CPU, rows], -table.later[GPUS, rows]))]
        found: list[_Hold] = []
        for row in order.tolist():
            for name in index.on_row[row]:
                end = self._end_of(index.state.jobs[name])
                if end is not None:
                    floor, seats = index.state.floors[name], index.seats_of(name)
                    found.extend(_Hold(row, seat.holds(floor), 0, end) for seat in seats if seat.row == row)
            if len(found) >= HOLDERS_MAX:
                break
        return found

    def seat(self, job: Job) -> Start | None:
        """Return when `job` fits first, and hold its room from then on; None where that is not known."""
        fit = self._index.fit(self._index.line_key(job).shape)
        earliest = Start(self._now_ns, "now")
        if job.not_before_ns > self._now_ns:
            earliest = Start(job.not_before_ns, "backoff")
        limited = time_limit_seconds(job, self._index.state.specs[job.id]) is not None
        if limited or self._soonest.get(fit, 0) <= earliest.at_ns:
            rows = self._rows(job, fit, earliest.at_ns, self._could_now(job, fit, earliest), before_others=limited)
            if rows is not None:
                return self._hold(job, rows, earliest)
        moments = self._moments(job, earliest)
        first = self._first(job, fit, moments)
        if first is None:
            if job.reserved_nodes:
                self._close(job)
            return None
        start = moments[first[0]]
        basis: Basis = max((moment.basis for moment in moments[: first[0] + 1]), key=BASES.index)
        return self._hold(job, first[1], Start(start.at_ns, basis))

    def _first(self, job: Job, fit: Fit, moments: list[Start]) -> tuple[int, Rows] | None:
        """Return the first moment at which the job fits, and where: in strides from where its like began, then halved.

        The moments begin with one at which it does not fit.
        """
        soonest, among = self._soonest.get(fit, 0), self._could_later(fit)
        low = max(0, bisect_left(moments, soonest, key=lambda moment: moment.at_ns) - 1)
        high, stride = low + 1, 1
        while high < len(moments) and (found := self._rows(job, fit, moments[high].at_ns, among)) is None:
            low, stride = high, stride * 2
            high = high + stride
        if high >= len(moments):
            high = len(moments) - 1
            if high <= low or (found := self._rows(job, fit, moments[high].at_ns, among)) is None:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            rows = self._rows(job, fit, moments[middle].at_ns, among)
            if rows is None:
                low = middle
            else:
                high, found = middle, rows
        assert found is not None, "it fits at the moment that is left"
        if not job.excluded_nodes and not job.reserved_nodes:
            self._soonest[fit] = moments[high].at_ns
        return high, found

    def _moments(self, job: Job, earliest: Start) -> list[Start]:
        """Return every known moment from `earliest` on at which room comes free, in order."""
        ends = self._there.moments | {hold.end for hold in self._taken if hold.end is not None}
        ends |= {Start(window.end_ns, "maintenance") for window in closing(self._index, job, self._now_ns)}
        later = [end for end in ends if end.at_ns > earliest.at_ns]
        return [earliest, *sorted(later, key=lambda end: (end.at_ns, BASES.index(end.basis)))]

    def _rows(
        self, job: Job, fit: Fit, at_ns: int, among: set[int] | None, *, before_others: bool = False
    ) -> Rows | None:
        """Return where the job fits from `at_ns` on for good; or, if it has left `before_others` come, until then."""
        table = self._index.table
        names = table.rows
        windows = closing(self._index, job, at_ns)
        self._looked_at += max(LOOK_ROWS_LEAST, len(table) if among is None else len(among))
        if self._looked_at > ROWS_MAX:
            raise _ExhaustedError
        ends_ns = NEVER
        if before_others and (limit := time_limit_seconds(job, self._index.state.specs[job.id])) is not None:
            ends_ns = at_ns + limit * SECOND_NS - job.ran_ns
        room = self._base.copy()
        self._there.free(room, at_ns)
        taken = [hold for hold in self._taken if hold.end_ns > at_ns and hold.begin_ns < ends_ns]
        for hold, need in zip(taken, _amounts(taken), strict=True):
            room[:3, hold.row] -= need
        barred = {names[name] for name in job.excluded_nodes if name in names}
        barred |= {names[name] for window in windows for name in window.nodes if name in names}
        return rows_in(fit, room, barred, among=among)

    def _could_now(self, job: Job, fit: Fit, earliest: Start) -> set[int] | None:
        """Return the rows on which the job could fit at once, None for every row."""
        if fit.shape.gang_size > 1 or earliest.basis != "now" or job.excluded_nodes or self._index.state.maintenance:
            return None
        return None if rows_now(fit, frozenset()) is not None else set(self._kept)

    def _could_later(self, fit: Fit) -> set[int] | None:
        """Return the rows on which a job could fit that fits nowhere at once, None for every row."""
        if fit.shape.gang_size > 1 or self._index.state.maintenance:
            return None
        return self._there.rows | {hold.row for hold in self._taken}  # elsewhere nothing comes free

    def _hold(self, job: Job, rows: Rows, start: Start) -> Start:
        length = self._length_of(job)
        end = None
        if length is not None:
            end = Start(start.at_ns + length.at_ns, max(start.basis, length.basis, key=BASES.index))
        need = self._index.state.floors[job.id]
        self._taken.extend(_Hold(row, need, start.at_ns, end) for row in rows)
        return start

    def _close(self, job: Job) -> None:
        """Keep what is kept for a job of which nobody knows when it starts."""
        names, need = self._index.table.rows, self._index.state.floors[job.id]
        begin_ns = job.reserved_start_ns or self._now_ns
        self._taken.extend(_Hold(names[node], need, begin_ns, None) for node in job.reserved_nodes if node in names)

    # ---- ends ----

    def _end_of(self, job: Job) -> Start | None:
        """Return when a job that holds room gives it back, None where that is not known."""
        if job.stage in LEAVING_STAGES:
            return Start(max(job.deadline_ns, self._now_ns), "deadline")
        began_ns = job.started_ns if job.stage == "running" else max(job.placed_ns, self._now_ns)
        length = self._length_of(job, overdue_ns=self._now_ns - began_ns)
        return None if length is None else Start(began_ns + length.at_ns, length.basis)

    def _length_of(self, job: Job, overdue_ns: int = 0) -> Start | None:
        """Return how long an attempt still takes from its start (as a Start from 0), by what the job declared.

        What it reported of its progress shortens or lengthens that by half at most. A job that has run for longer than
        it expected is only bounded by its limit.
        """
        spec = self._index.state.specs[job.id]
        if spec.expected_seconds is not None:
            expected_ns = spec.expected_seconds * SECOND_NS - job.ran_ns
            if expected_ns > overdue_ns:
                return Start(self._refined(job, expected_ns, overdue_ns), "expected")
        limit = time_limit_seconds(job, spec)
        return None if limit is None else Start(max(limit * SECOND_NS - job.ran_ns, overdue_ns), "limit")

    @staticmethod
    def _refined(job: Job, expected_ns: int, ran_ns: int) -> int:
        """Return the expected length of a running attempt, given how far it got until it last said so."""
        if not job.progress_millis or job.stage != "running" or job.progress_ns <= job.started_ns:
            return expected_ns
        took_ns = job.ran_ns + job.progress_ns - job.started_ns
        whole_ns = took_ns * 1000 // job.progress_millis - job.ran_ns
        left_ns = expected_ns - ran_ns
        return ran_ns + min(max(whole_ns - ran_ns, left_ns // 2), left_ns * 3 // 2)


def _amounts(holds: list[_Hold]) -> Ints:
    """Return what is held, one row for each hold, as the table counts it."""
    needs = [(h.need.cpu_millis, h.need.memory_mib, h.need.gpus or (1 if h.need.gpu_millis else 0)) for h in holds]
    return np.array(needs, np.int64).reshape(-1, 3)
