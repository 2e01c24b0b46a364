"""When waiting jobs may start, as far as that is known: a forecast for people, never an input of a decision.

It walks the line and seats each job at the first moment at which it fits, given when those who hold room end (see
`ends`). Room that is kept is its owner's until that has left again; who has certainly left before may use it. What
rests on nothing declared is unknown, and whoever needs it is unknown too. Between two moments at which windows of
maintenance close or open nodes, or a gang may go wider, a job that fits somewhere fits at every later moment, as room
is only ever taken here by those in front: so the first moment is found without looking at each.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from tidegate_scheduler.policy.elastic.causes import closing
from tidegate_scheduler.policy.elastic.domains import narrowest
from tidegate_scheduler.policy.elastic.ends import Ends
from tidegate_scheduler.policy.elastic.fit import rows_in, rows_now
from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.occupants import Apart, Hold, There, amounts_of
from tidegate_scheduler.policy.elastic.queue import NONE, Amounts, amounts, plus
from tidegate_scheduler.policy.elastic.reasons import kept_rows
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.spread import Locality, Rows
from tidegate_scheduler.policy.elastic.table import CPU, GPUS
from tidegate_scheduler.policy.limits import time_limit_seconds
from tidegate_scheduler.policy.outlook import BASES, Basis, Start
from tidegate_scheduler.policy.parameters import SECOND_NS, as_parameters
from tidegate_scheduler.state import Job

HOLDERS_MAX = 1000
"""Running members that are looked at; on a larger cluster those on its emptiest nodes."""

ROWS_MAX = 150_000
LOOK_ROWS_LEAST = 500
"""Rows that are looked at in one forecast, each look counted as so many at least: it must not delay decisions."""


class _ExhaustedError(Exception):
    """The bound on work is reached."""


def forecast(index: Index, in_line: list[Job], now_ns: int) -> dict[str, Start]:
    """Return the known starts of the jobs in line, by job; who is not in it is unknown."""
    plan = _Plan(index, now_ns)
    asked: dict[str, Amounts] = {}
    starts: dict[str, Start] = {}
    jobs = index.state.jobs
    kept = sorted((jobs[name] for name in index.reserving), key=lambda job: (-job.priority, job.submitted_seq))
    others = [job for job in in_line if job.id not in index.reserving]
    try:
        for job in [*kept, *others]:
            start = plan.seat(job) if _asked(index, job, asked) else None
            if start is not None:
                starts[job.id] = start
                asked[job.tenant] = plus(asked.get(job.tenant, NONE), _whole(index, job))
    except _ExhaustedError:
        pass  # those further behind stay unknown
    return starts


def _asked(index: Index, job: Job, asked: dict[str, Amounts]) -> bool:
    """Say whether the job starts as soon as there is room, as far as that is known; `asked` is what those in front get.

    When its tenant gives back what it holds, so that more lies within its ceiling, is not worked out.
    """
    share = index.share(job.tenant)
    if job.held or job.cancel_requested or share.stopped:
        return False
    return share.within(plus(asked.get(job.tenant, NONE), _whole(index, job)), share.ceiling)


def _whole(index: Index, job: Job) -> Amounts:
    return amounts(index.state.floors[job.id], index.state.specs[job.id].gang_size)


class _Plan:
    """The future of every row: who holds what until when."""

    def __init__(self, index: Index, now_ns: int) -> None:
        self._index = index
        self._now_ns = now_ns
        self._looked_at = 0
        self._taken: list[Hold] = []
        """What those in front will hold."""

        self._ends = Ends(index, now_ns)
        self._there = There(self._holders())
        self._apart = Apart(index, self._there)
        self._soonest: dict[Fit, int] = {}
        self._lead_ns = as_parameters(index.state.header.parameters).maintenance_lead_seconds * SECOND_NS
        self._widens_ns = 0
        """Until when the job that is seated waits for a narrower place than it may take."""

        self._base = index.table.free
        self._kept = kept_rows(index)

    def _holders(self) -> list[Hold]:
        index, table = self._index, self._index.table
        rows = np.fromiter(index.on_row, np.int64, len(index.on_row))
        order = rows[np.lexsort((table.place[rows], -table.later[CPU, rows], -table.later[GPUS, rows]))]
        found: list[Hold] = []
        for row in order.tolist():
            for name in index.on_row[row]:
                end = self._ends.of(index.state.jobs[name])
                floor, seats = index.state.floors[name], index.seats_of(name)
                for seat in seats:
                    if seat.row == row and end is not None:
                        found.append(Hold(row, seat.holds(floor), 0, end, indices=seat.gpu_indices))
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
        self._widens_ns = self._widens(job, fit)
        if limited or self._soonest.get(fit, 0) <= earliest.at_ns:
            rows = self._rows(job, fit, earliest.at_ns, self._could_now(job, fit, earliest), before_others=limited)
            if rows is not None:
                return self._hold(job, rows, earliest, self._until_ns(job, earliest.at_ns))
        moments = self._moments(job, earliest)
        first = self._first(job, fit, moments)
        if first is None:
            if job.reserved_nodes:
                self._close(job)
            return None
        start = moments[first[0]]
        rests_on = (moment.basis for moment in moments if moment.at_ns <= start.at_ns)
        basis: Basis = max(rests_on, key=BASES.index)
        return self._hold(job, first[1], Start(start.at_ns, basis))

    def _first(self, job: Job, fit: Fit, moments: list[Start]) -> tuple[int, Rows] | None:
        """Return the first moment at which the job fits, and where; the moments begin with one at which it does not."""
        soonest = self._soonest.get(fit, 0)
        low = max(0, bisect_left(moments, soonest, key=lambda moment: moment.at_ns) - 1)
        for border in (*self._borders(job, moments), len(moments)):
            if border > low + 1:
                if (found := self._within(job, fit, moments[:border], low)) is not None:
                    if not job.excluded_nodes and not job.reserved_nodes and not self._widens_ns:
                        self._soonest[fit] = moments[found[0]].at_ns
                    return found
                low = border - 1
        return None

    def _within(self, job: Job, fit: Fit, moments: list[Start], low: int) -> tuple[int, Rows] | None:
        """Return the first moment after `low` at which the job fits: in strides, then halved."""
        among = self._could_later(fit)
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
        return high, found

    def _borders(self, job: Job, moments: list[Start]) -> list[int]:
        """Return the places in `moments` before which nodes are closed or opened, or a wider place will do."""
        at = {self._widens_ns}
        limit = time_limit_seconds(job, self._index.state.specs[job.id])
        for window in self._ends.windows:
            at |= {window.start_ns - self._lead_ns, window.end_ns}
            if limit is not None:
                at.add(window.start_ns - limit * SECOND_NS + job.ran_ns)
        places = {bisect_left(moments, each, key=lambda moment: moment.at_ns) for each in at}
        return sorted(place for place in places if place)

    def _widens(self, job: Job, fit: Fit) -> int:
        """Return until when an intensive gang waits for the narrowest place that could hold it, 0 where it does not."""
        if not fit.shape.intensive or narrowest(fit) is None:
            return 0
        wait_ns = self._index.state.specs[job.id].locality_wait_seconds * SECOND_NS
        until_ns = max(job.submitted_ns, job.suspended_ns) + wait_ns
        return until_ns if until_ns > self._now_ns else 0

    def _moments(self, job: Job, earliest: Start) -> list[Start]:
        """Return every known moment from `earliest` on at which room comes free, in order."""
        ends = self._there.moments | {hold.end for hold in self._taken if hold.end is not None}
        ends |= {Start(window.end_ns, "maintenance") for window in self._ends.windows}
        if self._widens_ns:
            ends.add(Start(self._widens_ns, "locality"))
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
        ends_ns = self._until_ns(job, at_ns) if before_others else NEVER
        room = self._base.copy()
        self._there.free(room, at_ns)
        taken = [hold for hold in self._taken if hold.end_ns > at_ns and hold.begin_ns < ends_ns]
        for hold, need in zip(taken, amounts_of(taken), strict=True):
            room[:3, hold.row] -= need
        self._looked_at += self._apart.tell(fit, room, at_ns, ends_ns)
        barred = {names[name] for name in job.excluded_nodes if name in names}
        barred |= {names[name] for window in windows for name in window.nodes if name in names}
        within = narrowest(fit) if at_ns < self._widens_ns else None
        return rows_in(fit, room, barred, among=among, locality=Locality(within), which="counted")

    def _until_ns(self, job: Job, from_ns: int) -> int:
        """Return when the job has certainly ended, placed then."""
        limit = time_limit_seconds(job, self._index.state.specs[job.id])
        return NEVER if limit is None else from_ns + limit * SECOND_NS - job.ran_ns

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

    def _hold(self, job: Job, rows: Rows, start: Start, until_ns: int = NEVER) -> Start:
        length = self._ends.length_of(job)
        end = None
        if length is not None:
            end = Start(start.at_ns + length.at_ns, max(start.basis, length.basis, key=BASES.index))
        names = self._index.table.names
        clears_ns = self._ends.cleared_ns({names[row] for row in rows}, start.at_ns)
        if clears_ns is not None and (end is None or clears_ns < end.at_ns):
            end = Start(clears_ns, max(start.basis, "maintenance", key=BASES.index))
        need, models = self._index.state.floors[job.id], self._index.state.specs[job.id].gpu_models
        self._come([Hold(row, need, start.at_ns, end, models, until_ns) for row in rows])
        return start

    def _come(self, holds: list[Hold]) -> None:
        self._taken += holds
        for hold in holds:
            self._apart.come(hold)

    def _close(self, job: Job) -> None:
        """Keep what is kept for a job of which nobody knows when it starts."""
        names, need = self._index.table.rows, self._index.state.floors[job.id]
        begin_ns, models = job.reserved_start_ns or self._now_ns, self._index.state.specs[job.id].gpu_models
        rows = [names[node] for node in job.reserved_nodes if node in names]
        self._come([Hold(row, need, begin_ns, None, models, is_known=False) for row in rows])
