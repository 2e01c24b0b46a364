"""Who waits in which line, and who stands aside: held, in back-off until some time, or about to be cancelled."""

from __future__ import annotations

from heapq import heappop, heappush

from tidegate_scheduler.policy.elastic.aside import Aside
from tidegate_scheduler.policy.elastic.lines import line_key
from tidegate_scheduler.policy.elastic.queue import Line, LineKey, Waiter
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.table import NodeTable
from tidegate_scheduler.state import Job, State

FITS_MAX = 4096
"""Shapes that are remembered without a line; beyond, those are forgotten."""


class Standing:
    """The lines of the jobs that wait, and where their shapes fit."""

    def __init__(self, state: State, table: NodeTable) -> None:
        self._state = state
        self._table = table
        self.lines: dict[LineKey, Line] = {}
        self.aside = Aside()
        self._places: dict[str, tuple[Line, Waiter]] = {}
        self._resting: list[tuple[int, str]] = []
        self._woken: list[tuple[int, str]] = []
        self._fits: dict[Shape, Fit] = {}

    def enter(self, job: Job) -> None:
        """Let a waiting job stand in its line, or aside."""
        if _may_stand(job) and job.not_before_ns <= self._state.header.now_ns:
            self._stand(job)
            return
        self.aside.add(job)
        if _may_stand(job):
            heappush(self._resting, (job.not_before_ns, job.id))

    def leave(self, name: str) -> None:
        """Take a job out, wherever it stands."""
        self.aside.discard(name)
        self._step_out(name)

    def of(self, job: str) -> tuple[Line, Waiter] | None:
        """Return the line that the job stands in and its part of it, None where it stands aside."""
        return self._places.get(job)

    def refresh(self, now_ns: int) -> None:
        """Let those stand in line whose back-off has ended by now, and nobody else: explanations ask about any time."""
        woken, self._woken = self._woken, []
        for at_ns, name in woken:
            job = self._state.jobs.get(name)
            if job is None or job.not_before_ns != at_ns or at_ns <= self._state.header.now_ns:
                continue
            if name not in self._places:
                continue  # it stands aside again: what was decided of it was not folded
            if at_ns <= now_ns:
                self._woken.append((at_ns, name))
            else:
                self._step_out(name)
                self.aside.add(job)
                heappush(self._resting, (at_ns, name))
        while self._resting and self._resting[0][0] <= now_ns:
            at_ns, name = heappop(self._resting)
            if self._rests(name, at_ns):
                self._stand(self._state.jobs[name])
                self._woken.append((at_ns, name))

    @property
    def next_ns(self) -> int | None:
        """Return when the next back-off ends, None where nobody is in one."""
        while self._resting and not self._rests(self._resting[0][1], self._resting[0][0]):
            heappop(self._resting)
        return self._resting[0][0] if self._resting else None

    def key(self, job: Job) -> LineKey:
        """Return which line the job stands in while it waits."""
        return line_key(job, self._state.specs[job.id], self._state.floors[job.id])

    def fit(self, shape: Shape) -> Fit:
        """Return where the shape fits."""
        found = self._fits.get(shape)
        if found is None:
            if len(self._fits) >= max(FITS_MAX, 2 * len(self.lines)):
                standing = {line.key.shape for line in self.lines.values()}
                self._fits = {each: fit for each, fit in self._fits.items() if each in standing}
            found = self._fits[shape] = Fit(shape, self._table)
        return found

    def _rests(self, name: str, until_ns: int) -> bool:
        """Say whether the job is in back-off until then and will stand in line after that."""
        job = self._state.jobs.get(name)
        return job is not None and _may_stand(job) and job.not_before_ns == until_ns and name not in self._places

    def _stand(self, job: Job) -> None:
        key = self.key(job)
        line = self.lines.get(key)
        if line is None:
            line = self.lines[key] = Line(key, self.fit(key.shape))
        since_ns = max(job.submitted_ns, job.suspended_ns)
        waiter = Waiter(submitted_seq=job.submitted_seq, job=job.id, since_ns=since_ns)
        self._places[job.id] = (line, waiter)
        line.waiters.add(waiter)
        self.aside.discard(job.id)

    def _step_out(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is not None:
            line, waiter = place
            line.waiters.remove(waiter)
            if not line.waiters:
                del self.lines[line.key]


def _may_stand(job: Job) -> bool:
    return job.waiting and not (job.held or job.cancel_requested)
