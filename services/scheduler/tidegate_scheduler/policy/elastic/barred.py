"""Nodes that a job may not have: those that refused it, those that come to their maintenance before it has ended."""

from __future__ import annotations

from tidegate_events.spec import JobSpec

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.fit import could_hold
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import NodeTable
from tidegate_scheduler.policy.limits import time_limit_seconds
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters
from tidegate_scheduler.state import Job, Maintenance


def barred_rows(draft: Draft, job: Job, fit: Fit) -> frozenset[int]:
    """Return the rows that this job may not have; who was refused by all that could hold it tries them again."""
    refused = _refused(fit.table, job)
    if refused and not could_hold(fit, up_only=True, barred=refused):
        refused = frozenset()
    return refused | _closing(draft, fit.table, job)


def unwanted_rows(draft: Draft, table: NodeTable, job: Job) -> frozenset[int]:
    """Return the rows that a job is not moved to."""
    return _refused(table, job) | _closing(draft, table, job)


def _refused(table: NodeTable, job: Job) -> frozenset[int]:
    return frozenset(table.rows[name] for name in job.excluded_nodes if name in table.rows)


def closes(window: Maintenance, job: Job, spec: JobSpec, now_ns: int, parameters: Parameters) -> bool:
    """Say whether the window is so near that the job, placed now, might still run when it begins.

    Earlier nobody is kept from its nodes: who still runs then is asked to leave in time.
    """
    if not window.start_ns - parameters.maintenance_lead_seconds * SECOND_NS <= now_ns < window.end_ns:
        return False
    limit = time_limit_seconds(job, spec)
    return limit is None or now_ns + limit * SECOND_NS - job.ran_ns > window.start_ns


def _closing(draft: Draft, table: NodeTable, job: Job) -> frozenset[int]:
    """Return the rows that come to their maintenance before the job has certainly ended."""
    closing: set[int] = set()
    for window in draft.state.maintenance.values():
        if closes(window, job, draft.state.specs[job.id], draft.now_ns, draft.parameters):
            closing |= {table.rows[name] for name in window.nodes if name in table.rows}
            draft.wake_by(window.end_ns)
    return frozenset(closing)
