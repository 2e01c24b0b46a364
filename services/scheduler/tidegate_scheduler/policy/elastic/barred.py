"""Nodes that a job may not have: those that refused it, those that come to their maintenance before it has ended."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from tidegate_events.spec import JobSpec

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.fit import could_hold
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import NodeTable
from tidegate_scheduler.policy.limits import time_limit_seconds
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters
from tidegate_scheduler.state import Job, Maintenance

NONE: frozenset[int] = frozenset()

RowsFor = Callable[[Job], frozenset[int]]
"""The rows that a job may not have, or is not moved to."""


class Barred:
    """The rows that jobs may not have in one pass; windows are looked at once, and not for each job that is asked."""

    def __init__(self, draft: Draft, table: NodeTable) -> None:
        self._draft = draft
        self._table = table
        self._near: list[Maintenance] | None = None
        self._closed: dict[int, frozenset[int]] = {}
        """By number of windows, of those that begin first, the rows that all of them close."""

    def rows(self, job: Job, fit: Fit) -> frozenset[int]:
        """Return the rows that this job may not have; who was refused by all that could hold it tries them again."""
        if not job.excluded_nodes and not self._draft.state.maintenance:
            return NONE
        refused = _refused(self._table, job)
        if refused and not could_hold(fit, up_only=True, barred=refused):
            refused = NONE
        return refused | self._closing(job) if refused else self._closing(job)

    def unwanted(self, job: Job) -> frozenset[int]:
        """Return the rows that a job is not moved to."""
        refused = _refused(self._table, job)
        return refused | self._closing(job) if refused else self._closing(job)

    def _closing(self, job: Job) -> frozenset[int]:
        """Return the rows that come to their maintenance before the job has certainly ended."""
        if not self._draft.state.maintenance:
            return NONE
        if self._near is None:
            self._near = self._find_near()
        spec, now_ns, parameters = self._draft.state.specs[job.id], self._draft.now_ns, self._draft.parameters
        # Who might still run when a window begins, might when an earlier one does.
        count = bisect_left(self._near, True, key=lambda window: not closes(window, job, spec, now_ns, parameters))
        for window in self._near[:count]:
            self._draft.wake_by(window.end_ns)
        found = self._closed.get(count)
        if found is None:
            names = {name for window in self._near[:count] for name in window.nodes}
            found = self._closed[count] = frozenset(
                self._table.rows[name] for name in names if name in self._table.rows
            )
        return found

    def _find_near(self) -> list[Maintenance]:
        near = [
            each
            for each in self._draft.state.maintenance.values()
            if _is_near(each, self._draft.now_ns, self._draft.parameters)
        ]
        return sorted(near, key=lambda window: (window.start_ns, window.name))


def _is_near(window: Maintenance, now_ns: int, parameters: Parameters) -> bool:
    return window.start_ns - parameters.maintenance_lead_seconds * SECOND_NS <= now_ns < window.end_ns


def _refused(table: NodeTable, job: Job) -> frozenset[int]:
    if not job.excluded_nodes:
        return NONE
    return frozenset(table.rows[name] for name in job.excluded_nodes if name in table.rows)


def closes(window: Maintenance, job: Job, spec: JobSpec, now_ns: int, parameters: Parameters) -> bool:
    """Say whether the window is so near that the job, placed now, might still run when it begins.

    Earlier nobody is kept from its nodes: who still runs then is asked to leave in time, and so is who starts late.
    """
    if not _is_near(window, now_ns, parameters):
        return False
    limit = time_limit_seconds(job, spec)
    return limit is None or now_ns + (limit - job.ran_ns // SECOND_NS) * SECOND_NS > window.start_ns
