"""Settle: what was seen of running attempts becomes what it means for their jobs.

Infrastructure dominates: where one member of a gang was lost, the others' failures are its consequence, so the attempt
counts as lost and not as the job's own failure.
"""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.spec import JobSpec

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.limits import time_limit_seconds
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import ACTIVE_STATUSES, Job, MemberStatus, Node

SOUND_STATUSES = ACTIVE_STATUSES | {"completed"}
"""How members are while nothing is wrong with an attempt."""


def settle(draft: Draft) -> None:
    """Decide node losses, starts, stops and ends for every job that the facts since the last pass changed."""
    for node in draft.state.nodes.values():
        if draft.full:
            return
        settle_node(draft, node)
    for job in draft.state.jobs.values():
        if draft.full:
            return
        settle_job(draft, job)


def settle_job(draft: Draft, job: Job) -> None:
    """Decide what was seen of the job; where only time has to pass for that, ask to be woken then."""
    if job.waiting:
        if job.cancel_requested:
            draft.add(e.JobCancelled, job, e.Reason(code="Cancelled"), attempt=job.attempt)
            draft.leaving.add(job.id)
        return
    statuses = {member.status for member in job.members}
    if statuses.isdisjoint(ACTIVE_STATUSES):
        _end_attempt(draft, job)
        draft.leaving.add(job.id)
    else:
        _watch_attempt(draft, job, statuses)


def settle_node(draft: Draft, node: Node) -> None:
    """Decide that a node is lost which was unreachable for too long."""
    if node.status != "unreachable":
        return
    lost_ns = node.unreachable_since_ns + draft.parameters.node_lost_seconds * SECOND_NS
    if draft.now_ns >= lost_ns:
        draft.add_node_lost(node)
    else:
        draft.wake_by(lost_ns)


def _watch_attempt(draft: Draft, job: Job, statuses: set[MemberStatus]) -> None:
    """Start, time or stop an attempt of which at least one member is there."""
    if job.stage == "stopping":
        return
    reason = _reason_to_stop(draft, job, statuses)
    if reason is not None:
        spec = draft.state.specs[job.id]
        grace = min(spec.preemption.grace_seconds, draft.parameters.stop_grace_seconds_max)
        deadline_ns = draft.now_ns + grace * SECOND_NS
        draft.add(e.StopRequested, job, reason, attempt=job.attempt, grace_seconds=grace, deadline_ns=deadline_ns)
        draft.leaving.add(job.id)
    elif job.stage == "placed" and "ordered" not in statuses:
        if job.resumed_from is None:
            draft.add(e.JobStarted, job, attempt=job.attempt)
        else:
            checkpoint = job.resumed_from
            draft.add(e.JobResumed, job, attempt=job.attempt, checkpoint_id=checkpoint.id, step=checkpoint.step)


def _reason_to_stop(draft: Draft, job: Job, statuses: set[MemberStatus]) -> e.Reason | None:
    if job.cancel_requested:
        return e.Reason(code="Cancelled")
    if job.stage == "preempting":
        return None  # it is leaving already; its node ends it at the deadline
    if not statuses <= SOUND_STATUSES:
        gone = next(member for member in job.members if member.status not in SOUND_STATUSES)
        return e.Reason(code="MemberGone", detail=f"rank {gone.rank} on {gone.node}: {gone.status}")
    if job.stage == "placed":
        return _overdue(draft, job.placed_ns, draft.parameters.start_timeout_seconds, "StartTimeout")
    limit = time_limit_seconds(job, draft.state.specs[job.id])
    return None if limit is None else _overdue(draft, job.started_ns - job.ran_ns, limit, "TimeLimit")


def _overdue(draft: Draft, since_ns: int, bound_seconds: int, code: str) -> e.Reason | None:
    due_ns = since_ns + bound_seconds * SECOND_NS
    if draft.now_ns >= due_ns:
        return e.Reason(code=code, numbers={"bound_seconds": bound_seconds})
    draft.wake_by(due_ns)
    return None


def _end_attempt(draft: Draft, job: Job) -> None:
    """Say what it means that every member is gone."""
    statuses = {member.status for member in job.members}
    if job.cancel_requested:
        reason = e.Reason(code="Cancelled")
        draft.add(e.JobCancelled, job, reason, attempt=job.attempt, lost_steps=_lost_steps(job))
    elif statuses == {"completed"}:
        draft.add(e.JobCompleted, job, attempt=job.attempt, result=job.result)
    elif job.stage == "stopping" and job.stop_reason == "TimeLimit":
        _fail(draft, job, e.Reason(code="TimeLimit", detail="it ran longer than it asked for"))
    elif statuses & {"lost", "rejected"} or job.stop_reason == "StartTimeout":
        _retry_infrastructure(draft, job)
    elif "failed" in statuses:
        _retry_own_failure(draft, job)
    elif job.stage == "preempting" or "suspended" in statuses:
        _suspend(draft, job)
    else:
        _retry_infrastructure(draft, job)


def _suspend(draft: Draft, job: Job) -> None:
    acknowledged = all(member.status in ("suspended", "completed") for member in job.members)
    checkpoint = job.newest_checkpoint
    reason = e.Reason(code="Preempted", detail=job.stop_reason) if job.stop_reason else e.Reason(code="LeftByItself")
    draft.add(
        e.JobSuspended,
        job,
        reason,
        attempt=job.attempt,
        acknowledged=acknowledged,
        checkpoint_id=checkpoint.id if checkpoint else "",
        step=checkpoint.step if checkpoint else None,
        lost_steps=_lost_steps(job),
    )


def _retry_own_failure(draft: Draft, job: Job) -> None:
    spec = draft.state.specs[job.id]
    if job.failures + 1 >= spec.restart.max_attempts:
        _fail(draft, job, _own_fault(job, spec))
        return
    not_before_ns = draft.now_ns + spec.restart.backoff_seconds * SECOND_NS
    draft.add(
        e.JobRequeued,
        job,
        _own_fault(job, spec),
        attempt=job.attempt,
        outcome="failed",
        not_before_ns=not_before_ns,
        lost_steps=_lost_steps(job),
    )


def _own_fault(job: Job, spec: JobSpec) -> e.Reason:
    failed = next(member for member in job.members if member.status == "failed")
    detail = failed.exit.detail if failed.exit else ""
    code = "OutOfMemory" if failed.exit and failed.exit.oom else "JobError"
    numbers = {"rank": failed.rank, "failures": job.failures + 1, "attempts_max": spec.restart.max_attempts}
    return e.Reason(code=code, detail=detail, numbers=numbers)


def _retry_infrastructure(draft: Draft, job: Job) -> None:
    gone = next((m for m in job.members if m.status in ("lost", "rejected", "stopped")), job.members[0])
    detail = f"rank {gone.rank} on {gone.node}: {gone.exit.detail if gone.exit else gone.status}"
    count = job.infrastructure_failures + 1
    reason = e.Reason(code="Infrastructure", detail=detail, numbers={"failures": count})
    if count > draft.parameters.infrastructure_failures_max:
        _fail(draft, job, reason)
        return
    wait_seconds = min(
        draft.parameters.retry_backoff_seconds << min(count - 1, 16), draft.parameters.retry_backoff_seconds_max
    )
    draft.add(
        e.JobRequeued,
        job,
        reason,
        attempt=job.attempt,
        outcome="lost",
        not_before_ns=draft.now_ns + wait_seconds * SECOND_NS,
        lost_steps=_lost_steps(job),
    )


def _fail(draft: Draft, job: Job, reason: e.Reason) -> None:
    failed = next((m.exit for m in job.members if m.status == "failed" and m.exit is not None), None)
    draft.add(
        e.JobFailed,
        job,
        reason,
        attempt=job.attempt,
        exit_code=failed.exit_code if failed else None,
        signal=failed.signal if failed else None,
        oom=failed.oom if failed else False,
        lost_steps=_lost_steps(job),
    )


def _lost_steps(job: Job) -> int:
    """Return how many steps of the attempt that ended lie after the newest checkpoint, which is all that is left."""
    last = job.last_step
    if last is None:
        return 0
    saved = job.newest_checkpoint
    return max(0, last - (saved.step if saved else 0))
