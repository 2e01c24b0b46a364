"""Why jobs wait, where they stand in line, and when they may start, from the last pass."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from tidegate_events.events import JobPlaced, JobRejected, Reason

from tidegate_scheduler.decide import Pass
from tidegate_scheduler.leasing import waits_for_phase
from tidegate_scheduler.policy import registry
from tidegate_scheduler.policy.elastic.reasons import Waiting
from tidegate_scheduler.policy.first.queue import BACK_OFF
from tidegate_scheduler.policy.outlook import Basis, Outlook, Start
from tidegate_scheduler.state import Job, State

QUEUE_MAX = 1000
FORECAST_MAX = 50
"""Jobs at the head of the line whose starts are worked out together."""


class Explanation(msgspec.Struct, frozen=True):
    """The answer to "why does it not run?", the dominant reason first; `position` counts from 1, 0 for not waiting.

    `starts_at_ns` is the earliest start that is known, None where none is.
    """

    job: str
    state: str
    position: int
    reasons: tuple[Reason, ...]
    starts_at_ns: int | None = None
    starts_basis: Basis | None = None


class Queue(msgspec.Struct, frozen=True):
    """All who wait, the first in line first; `total` counts those beyond QUEUE_MAX too."""

    total: int
    queue: tuple[Explanation, ...]


def carry_over(state: State, earlier: Mapping[str, Reason], result: Pass) -> Mapping[str, Reason]:
    """Return why each job waits after a pass on `state`: a job that a cut pass did not reach keeps its earlier reason.

    Not so one that the pass placed or rejected, nor an earlier back-off: every pass looks at all of those.
    """
    if not result.cut:
        return result.waiting
    if isinstance(result.waiting, Waiting):
        return result.waiting.over(earlier)
    settled = {event.job for event in result.events if isinstance(event, JobPlaced | JobRejected)}
    kept = {
        job_id: reason
        for job_id, reason in earlier.items()
        if job_id in state.jobs and state.jobs[job_id].waiting and job_id not in settled and reason.code != BACK_OFF
    }
    return kept | dict(result.waiting)


def explain(state: State, waiting: Mapping[str, Reason], job_id: str, now_ns: int | None = None) -> Explanation:
    """Return why `job_id` waits, by the reasons of the last pass; without `now_ns`, as of that pass."""
    if job_id in state.finished:
        return Explanation(job_id, state.finished[job_id].state, 0, ())
    job = state.jobs.get(job_id)
    if job is None:
        return Explanation(job_id, "unknown", 0, ())
    if not job.waiting:
        return Explanation(job_id, job.stage, 0, waits_for_phase(state, job))
    outlook = registry.outlook(state, _moment(state, now_ns))
    position = outlook.position(job)
    starts = outlook.starts(position) if position <= FORECAST_MAX else {}
    return _explained(outlook, job, position, waiting, starts)


def queue(state: State, waiting: Mapping[str, Reason], now_ns: int | None = None) -> Queue:
    """Return the whole line with its reasons and starts, as `explain` would one by one."""
    outlook = registry.outlook(state, _moment(state, now_ns))
    starts = outlook.starts(FORECAST_MAX)
    shown = enumerate(outlook.in_line(QUEUE_MAX), start=1)
    explained = tuple(_explained(outlook, job, position, waiting, starts) for position, job in shown)
    return Queue(outlook.total, explained)


class WaitingCount(msgspec.Struct, frozen=True):
    """How many jobs of a tenant wait for one reason."""

    tenant: str
    reason: str
    jobs: int


def count_waiting(state: State, waiting: Mapping[str, Reason], now_ns: int | None = None) -> tuple[WaitingCount, ...]:
    """Return how many jobs wait, by tenant and by the code of why; the whole queue in a small answer."""
    counts = registry.outlook(state, _moment(state, now_ns)).counts(waiting)
    return tuple(WaitingCount(tenant, reason, jobs) for (tenant, reason), jobs in sorted(counts.items()) if jobs)


def _moment(state: State, now_ns: int | None) -> int:
    return state.header.now_ns if now_ns is None else max(now_ns, state.header.now_ns)


def _explained(
    outlook: Outlook, job: Job, position: int, waiting: Mapping[str, Reason], starts: Mapping[str, Start]
) -> Explanation:
    reasons = outlook.reasons(job, waiting)
    start = starts.get(job.id) or outlook.start(job)
    at_ns, basis = (start.at_ns, start.basis) if start is not None else (None, None)
    return Explanation(job.id, job.stage, position, reasons, at_ns, basis)
