"""Why a job waits, and where it stands in line, from the last pass."""

from __future__ import annotations

import msgspec
from tidegate_events.events import Reason

from tidegate_scheduler.policy.queue import rank
from tidegate_scheduler.state import State


class Explanation(msgspec.Struct, frozen=True):
    """The answer to "why does it not run?"; `position` counts from 1 in line, 0 for not waiting."""

    job: str
    state: str
    position: int
    reasons: tuple[Reason, ...]


def explain(state: State, waiting: dict[str, Reason], job_id: str) -> Explanation:
    """Return why `job_id` waits, by the reasons of the last pass."""
    if job_id in state.finished:
        return Explanation(job_id, state.finished[job_id].state, 0, ())
    job = state.jobs.get(job_id)
    if job is None:
        return Explanation(job_id, "unknown", 0, ())
    if not job.waiting:
        return Explanation(job_id, job.stage, 0, ())
    in_line = sorted((other for other in state.jobs.values() if other.waiting), key=rank)
    reason = waiting.get(job_id, Reason(code="NotConsidered", detail="no pass has looked at it yet"))
    return Explanation(job_id, job.stage, in_line.index(job) + 1, (reason,))
