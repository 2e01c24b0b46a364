"""Why jobs wait, where they stand in line, and when they may start, from the last pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
from tidegate_events.events import JobPlaced, JobRejected, Reason

from tidegate_scheduler.decide import Pass
from tidegate_scheduler.forecast import Basis, Start, forecast
from tidegate_scheduler.policy.elastic.reasons import Waiting
from tidegate_scheduler.policy.first.queue import BACK_OFF, rank
from tidegate_scheduler.state import Job, State

QUEUE_MAX = 1000
NOT_CONSIDERED = "NotConsidered"


class Explanation(msgspec.Struct, frozen=True):
    """The answer to "why does it not run?"; `position` counts from 1 in line, 0 for not waiting.

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
        return Explanation(job_id, job.stage, 0, ())
    in_line = _in_line(state)
    position = in_line.index(job) + 1
    starts = forecast(state, in_line[:position], _moment(state, now_ns))
    return _explained(job, position, waiting, starts.get(job_id))


def queue(state: State, waiting: Mapping[str, Reason], now_ns: int | None = None) -> Queue:
    """Return the whole line with its reasons and starts, as `explain` would one by one."""
    in_line = _in_line(state)
    starts = forecast(state, in_line, _moment(state, now_ns))
    shown = enumerate(in_line[:QUEUE_MAX], start=1)
    explained = tuple(_explained(job, position, waiting, starts.get(job.id)) for position, job in shown)
    return Queue(len(in_line), explained)


class WaitingCount(msgspec.Struct, frozen=True):
    """How many jobs of a tenant wait for one reason."""

    tenant: str
    reason: str
    jobs: int


def count_waiting(state: State, waiting: Mapping[str, Reason]) -> tuple[WaitingCount, ...]:
    """Return how many jobs wait, by tenant and by the code of why; the whole queue in a small answer."""
    counts = Counter(
        (job.tenant, waiting[job.id].code if job.id in waiting else NOT_CONSIDERED)
        for job in state.jobs.values()
        if job.waiting
    )
    return tuple(WaitingCount(tenant, reason, jobs) for (tenant, reason), jobs in sorted(counts.items()))


def _in_line(state: State) -> list[Job]:
    return sorted((job for job in state.jobs.values() if job.waiting), key=rank)


def _moment(state: State, now_ns: int | None) -> int:
    return state.header.now_ns if now_ns is None else max(now_ns, state.header.now_ns)


def _explained(job: Job, position: int, waiting: Mapping[str, Reason], start: Start | None) -> Explanation:
    reason = waiting.get(job.id, Reason(code=NOT_CONSIDERED, detail="no pass has looked at it yet"))
    at_ns, basis = (start.at_ns, start.basis) if start is not None else (None, None)
    return Explanation(job.id, job.stage, position, (reason,), at_ns, basis)
