"""How long an attempt may run at most, as far as that is declared."""

from __future__ import annotations

from tidegate_events.spec import JobSpec

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import LEAVING_STAGES, NO_LIMIT, Job


def time_limit_seconds(job: Job, spec: JobSpec) -> int | None:
    """Return the job's time limit: what an operator set (NO_LIMIT: none), else what the job asked for."""
    if job.time_limit_seconds is None:
        return spec.time_limit_seconds
    return None if job.time_limit_seconds == NO_LIMIT else job.time_limit_seconds


def ends_by_ns(job: Job, spec: JobSpec) -> int | None:
    """Return when an attempt that holds room has given it back at the latest, None where nothing bounds it."""
    if job.stage in LEAVING_STAGES:
        return job.deadline_ns
    limit = time_limit_seconds(job, spec)
    if limit is None:
        return None
    began_ns = job.started_ns or job.placed_ns
    return began_ns - job.ran_ns + limit * SECOND_NS
