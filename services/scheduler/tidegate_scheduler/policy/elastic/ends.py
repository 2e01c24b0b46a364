"""When those who hold room give it back, as far as that is known: for forecasts, never an input of a decision.

By what they declared; and earlier where the policy asks them to leave: who was let into room that is kept, in time for
those it is kept for; who is on a node that is drained or comes to its maintenance, in time for that.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate_scheduler.policy.elastic.backfill import in_the_way
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.limits import time_limit_seconds
from tidegate_scheduler.policy.outlook import Start
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import LEAVING_STAGES, Job, Maintenance


class Ends:
    """The ends of attempts, as of one time."""

    def __init__(self, index: Index, now_ns: int) -> None:
        self._index = index
        self._now_ns = now_ns
        self._trial = Trial(index)
        windows = index.state.maintenance.values()
        self._windows = sorted(
            (window for window in windows if window.end_ns > now_ns), key=lambda window: (window.start_ns, window.name)
        )

    @property
    def windows(self) -> list[Maintenance]:
        """Return the maintenance that is not over, the first to begin first."""
        return self._windows

    def of(self, job: Job) -> Start | None:
        """Return when a job that holds room gives it back, None where that is not known."""
        if job.stage in LEAVING_STAGES:
            return Start(max(job.deadline_ns, self._now_ns), "deadline")
        began_ns = job.started_ns if job.stage == "running" else max(job.placed_ns, self._now_ns)
        length = self.length_of(job, overdue_ns=self._now_ns - began_ns)
        known = list(self._asked_by(job))
        if length is not None:
            known.append(Start(began_ns + length.at_ns, length.basis))
        return min(known, key=lambda end: end.at_ns, default=None)

    def length_of(self, job: Job, overdue_ns: int = 0) -> Start | None:
        """Return how long an attempt still takes from its start (as a Start from 0), by what the job declared.

        What it reported of its progress shortens or lengthens that by half at most. A job that has run for longer than
        it expected is only bounded by its limit.
        """
        spec = self._index.state.specs[job.id]
        if spec.expected_seconds is not None:
            expected_ns = spec.expected_seconds * SECOND_NS - job.ran_ns
            if expected_ns > overdue_ns:
                return Start(_refined(job, expected_ns, overdue_ns), "expected")
        limit = time_limit_seconds(job, spec)
        return None if limit is None else Start(max(limit * SECOND_NS - job.ran_ns, overdue_ns), "limit")

    def cleared_ns(self, nodes: set[str], from_ns: int) -> int | None:
        """Return when the first maintenance of the nodes begins that is still ahead then, None where none is."""
        return next(
            (each.start_ns for each in self._windows if each.start_ns > from_ns and not nodes.isdisjoint(each.nodes)),
            None,
        )

    def _asked_by(self, job: Job) -> Iterator[Start]:
        """Yield by when the job has left that nobody has asked yet: asked now, it takes its grace period."""
        state = self._index.state
        soonest_ns = self._now_ns + state.specs[job.id].preemption.grace_seconds * SECOND_NS
        nodes = {member.node for member in job.members if member.active}
        for name in job.backfills:
            owner = state.jobs.get(name)
            if owner is not None and owner.waiting and owner.reserved_start_ns and self._is_in_the_way(job, owner):
                yield Start(max(owner.reserved_start_ns, soonest_ns), "limit")
        for name in nodes:
            if name in state.nodes and state.nodes[name].drain_deadline_ns:
                yield Start(max(state.nodes[name].drain_deadline_ns, soonest_ns), "deadline")
        for window in self._windows:
            if not nodes.isdisjoint(window.nodes):
                yield Start(max(window.start_ns, soonest_ns), "maintenance")

    def _is_in_the_way(self, job: Job, owner: Job) -> bool:
        there = {seat.row for seat in self._index.seats_of(job.id)}
        rows = sorted(there.intersection(self._trial.promises.get(owner.id, ())))
        return any(in_the_way(self._trial, row, job, owner) for row in rows)


def _refined(job: Job, expected_ns: int, ran_ns: int) -> int:
    """Return the expected length of a running attempt, given how far it got until it last said so."""
    if not job.progress_millis or job.stage != "running" or job.progress_ns <= job.started_ns:
        return expected_ns
    took_ns = job.ran_ns + job.progress_ns - job.started_ns
    whole_ns = took_ns * 1000 // job.progress_millis - job.ran_ns
    left_ns = expected_ns - ran_ns
    return ran_ns + min(max(whole_ns - ran_ns, left_ns // 2), left_ns * 3 // 2)
