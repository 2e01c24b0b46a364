"""Folds the life of one job: what each fact and each decision changes, and when it is void."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tidegate_events import events as e

from tidegate_gateway.view import lending
from tidegate_gateway.view.model import (
    ATTEMPTS_MAX,
    CHECKPOINTS_MAX,
    Act,
    Attempt,
    Checkpoint,
    Exit,
    Job,
    JobState,
    Member,
)

RESUMABLE_KEPT = 3
"""As many checkpoints as the scheduler keeps to resume from."""


def on_event(job: Job, event: e.JobEvent, seq: int) -> bool:
    """Change `job` by an event about it; say whether the event counted."""
    if isinstance(event, e.Decision):
        return _on_decision(job, event)
    if isinstance(event, e.CheckpointSaved):
        return _on_checkpoint_saved(job, event, seq)
    rule = _FACTS.get(type(event))
    return rule is not None and bool(rule(job, event))


# ---- facts ----


def _on_cancel_requested(job: Job, _event: e.CancelRequested) -> bool:
    if job.ended or job.cancel_requested:
        return False
    job.cancel_requested = True
    job.revision += 1
    return True


def _on_asked(job: Job, event: _Asking) -> bool:
    """Fold what an operator asked: it names no revision, and means nothing where it is so already."""
    if job.ended or not _ASKED[type(event)](job):
        return False
    job.asked = Act(type(event).__name__, event.actor, event.note, event.at_ns, job.attempt)
    if not isinstance(event, e.ReleaseRequested):  # which undoes nothing that is under way
        job.revision += 1
    return True


def _hold(job: Job) -> bool:
    counts = not job.held
    job.held = True
    return counts


def _release(job: Job) -> bool:
    counts = job.held
    job.held = False
    return counts


def _suspend(job: Job) -> bool:
    if job.suspend_requested or (job.waiting and job.held):
        return False
    if job.waiting:
        job.held = True
    else:
        job.suspend_requested = True
    return True


def _resume(job: Job) -> bool:
    counts = job.held or job.suspend_requested
    job.held = job.suspend_requested = False
    return counts


def _requeue(job: Job) -> bool:
    if job.waiting or job.requeue_requested:
        return False
    job.requeue_requested = True
    return True


def _on_priority_changed(job: Job, event: e.JobPriorityChanged) -> bool:
    if job.ended or job.priority == event.priority:
        return False
    job.priority = event.priority
    return True


def _on_limit_changed(job: Job, event: e.JobLimitChanged) -> bool:
    if not job.ended:
        job.time_limit_seconds = event.time_limit_seconds
    return not job.ended


def _on_progress(job: Job, event: e.ProgressReported) -> bool:
    member = job.member(event.attempt, event.rank)
    if member is None or not member.active:
        return False
    member.progress_millis = event.progress_millis
    if event.step is not None:
        member.step = event.step
    return True


def _on_placement_rejected(job: Job, event: e.PlacementRejected) -> bool:
    member = job.member(event.attempt, event.rank)
    if member is None or member.sandbox != "starting" or member.placement.node != event.node:
        return False
    member.sandbox = "rejected"
    member.exit = Exit("lost", detail=f"{event.reason.code}: {event.reason.detail}")
    job.revision += 1
    return True


def _on_sandbox_started(job: Job, event: e.SandboxStarted) -> bool:
    member = job.member(event.attempt, event.rank)
    if member is None or member.sandbox != "starting" or member.placement.node != event.node:
        return False
    member.sandbox = "running"
    member.level, member.image_digest, member.start_ms = event.level, event.image_digest, event.start_ms
    job.revision += 1
    return True


def _on_sandbox_exited(job: Job, event: e.SandboxExited) -> bool:
    member = job.member(event.attempt, event.rank)
    if member is None or not member.active or member.placement.node != event.node:
        return False
    member.sandbox = "lost" if event.outcome == "lost" else "exited"
    member.exit = Exit(
        event.outcome, event.exit_code, event.signal, event.oom, event.acknowledged, event.last_step, event.detail
    )
    if event.last_step is not None:
        member.step = event.last_step
    job.revision += 1
    return True


def _on_phase_changed(job: Job, event: e.PhaseChanged) -> bool:
    member = job.member(event.attempt, event.rank)
    if member is None or not member.active:
        return False
    member.phase = event.phase
    if event.step is not None:
        member.step = event.step
    return True


def _on_quota_applied(job: Job, event: e.QuotaApplied) -> bool:
    member = job.member(event.attempt, event.rank)
    if member is None or not member.active or member.placement.node != event.node:
        return False
    member.observed = {**member.observed, **{quota.component: quota for quota in event.quotas}}
    member.enforced = event.enforced
    return True


def _on_checkpoint_saved(job: Job, event: e.CheckpointSaved, seq: int) -> bool:
    if job.ended or any(known.ref.id == event.checkpoint.id and known.rank == event.rank for known in job.checkpoints):
        return False
    job.checkpoints.append(Checkpoint(event.checkpoint, event.rank, event.node, event.tier, event.at_ns, seq))
    if len(job.checkpoints) > CHECKPOINTS_MAX:
        job.checkpoints.pop(0)
        job.checkpoints_dropped += 1
    if event.rank == 0:
        kept = [*job.resumable, (event.checkpoint.attempt, event.checkpoint.step, event.checkpoint.id)]
        job.resumable = sorted(kept)[-RESUMABLE_KEPT:]
    member = job.member(event.attempt, event.rank)
    if member is not None:
        member.step = max(member.step or 0, event.checkpoint.step)
    return True


def _on_checkpoint_failed(job: Job, event: e.CheckpointFailed) -> bool:
    if job.ended:
        return False
    if event.checkpoint_id:
        job.resumable = [known for known in job.resumable if known[2] != event.checkpoint_id]
    for checkpoint in job.checkpoints:
        if checkpoint.ref.id == event.checkpoint_id:
            checkpoint.status, checkpoint.failure = "failed", event.reason
    return True


def _on_checkpoint_verified(job: Job, event: e.CheckpointVerified) -> bool:
    # Also after the job's end: what it says is true of the bytes, and the last checkpoint is verified about then.
    for checkpoint in job.checkpoints:
        if checkpoint.ref.id == event.checkpoint_id:
            checkpoint.status = "verified"
    return not job.ended


def _on_checkpoint_part(
    job: Job, _event: e.CheckpointPartSaved | e.CheckpointPartFailed | e.CheckpointPartPromoted
) -> bool:
    # What becomes of the parts is said by CheckpointSaved or CheckpointFailed.
    return not job.ended


def _on_step_rate(job: Job, event: e.StepRateLow | e.StepRateRecovered) -> bool:
    """Nothing here changes by it; it counts where it speaks of the attempt that is there."""
    return event.attempt == job.attempt and not job.waiting and not job.ended


# ---- decisions ----


def _on_decision(job: Job, event: e.Decision) -> bool:
    if isinstance(event, e.QuotaChanged):
        return _on_quota_changed(job, event)
    if isinstance(event, e.HandBackRequested):
        return lending.on_hand_back_requested(job, event)
    # A revision that is higher than the one counted here cannot be stale; one that is lower is.
    if job.ended or event.revision < job.revision or not _DECISIONS[type(event)](job, event):
        return False
    job.revision = event.revision + 1
    if event.reasons:
        job.reasons = event.reasons
    return True


def _on_rejected(job: Job, event: e.JobRejected) -> bool:
    _end(job, "rejected", event.at_ns)
    return True


def _on_placed(job: Job, event: e.JobPlaced) -> bool:
    if not job.waiting:
        return False
    job.state = "placed"
    job.attempt = event.attempt
    job.result = {}
    members = [Member(placement, {quota.component: quota for quota in placement.quotas}) for placement in event.members]
    job.attempts.append(Attempt(event.attempt, event.at_ns, members, event.resume))
    if len(job.attempts) > ATTEMPTS_MAX:
        job.attempts.pop(0)
        job.attempts_dropped += 1
    return True


def _on_started(job: Job, event: e.JobStarted | e.JobResumed) -> bool:
    if job.state != "placed" or job.latest is None:
        return False
    job.state = job.latest.state = "running"
    job.latest.started_at_ns = event.at_ns
    if job.started_at_ns is None:
        job.started_at_ns = event.at_ns
    if isinstance(event, e.JobResumed):
        job.resumed_step = event.step
        for member in job.latest.members:
            member.step = event.step if member.step is None else member.step
    return True


def _on_quota_changed(job: Job, event: e.QuotaChanged) -> bool:
    # Bound to the attempt alone: a pass shares out a whole node, and one void share would overfill it.
    member = job.member(event.attempt, event.rank)
    if member is None or not member.active:
        return False
    member.desired = {quota.component: quota for quota in event.quotas}
    return True


def _on_room_reserved(job: Job, _event: e.RoomReserved) -> bool:
    return job.waiting


def _on_preempt_requested(job: Job, event: e.PreemptRequested) -> bool:
    if job.state not in ("placed", "running") or job.latest is None:
        return False
    job.state = job.latest.state = "suspending"
    if event.hold:
        job.held = True
    else:
        job.preemptions += 1
    return True


def _on_stop_requested(job: Job, _event: e.StopRequested) -> bool:
    if job.waiting or job.latest is None:
        return False
    job.state = job.latest.state = "stopping"
    return True


def _on_suspended(job: Job, event: e.JobSuspended) -> bool:
    job.state = "suspended"
    _leave(job)
    job.lost_steps += event.lost_steps
    if (latest := _close(job, event.at_ns, "suspended")) is not None:
        latest.state, latest.lost_steps = "suspended", event.lost_steps
    return True


def _on_requeued(job: Job, event: e.JobRequeued) -> bool:
    job.state = "suspended" if job.resumable else "pending"
    _leave(job)
    job.lost_steps += event.lost_steps
    if (latest := _close(job, event.at_ns, event.outcome)) is not None:
        latest.state, latest.lost_steps = "requeued", event.lost_steps
    return True


def _on_completed(job: Job, event: e.JobCompleted) -> bool:
    job.result = dict(event.result)
    if (latest := _close(job, event.at_ns, "completed")) is not None:
        latest.state = "completed"
    _end(job, "completed", event.at_ns)
    return True


def _on_failed(job: Job, event: e.JobFailed) -> bool:
    job.lost_steps += event.lost_steps
    if (latest := _close(job, event.at_ns, "failed")) is not None:
        latest.state, latest.lost_steps = "failed", event.lost_steps
    _end(job, "failed", event.at_ns)
    return True


def _on_cancelled(job: Job, event: e.JobCancelled) -> bool:
    job.lost_steps += event.lost_steps
    if (latest := _close(job, event.at_ns, "stopped")) is not None:
        latest.state, latest.lost_steps = "cancelled", event.lost_steps
    _end(job, "cancelled", event.at_ns)
    return True


def _leave(job: Job) -> None:
    """Take note that it left: who was asked to and suspended is held from here on."""
    job.held = job.held or job.suspend_requested
    job.suspend_requested = job.requeue_requested = False


def _close(job: Job, at_ns: int, outcome: str) -> Attempt | None:
    """End the newest attempt, unless it ended before; return it if it ends now."""
    latest = job.latest
    if latest is None or latest.ended_at_ns is not None:
        return None
    latest.ended_at_ns, latest.outcome = at_ns, outcome
    return latest


def _end(job: Job, state: JobState, at_ns: int) -> None:
    job.state, job.ended_at_ns = state, at_ns


_Asking = e.HoldRequested | e.ReleaseRequested | e.SuspendRequested | e.ResumeRequested | e.RequeueRequested
_ASKED: dict[type[msgspec.Struct], Callable[[Job], bool]] = {
    e.HoldRequested: _hold,
    e.ReleaseRequested: _release,
    e.SuspendRequested: _suspend,
    e.ResumeRequested: _resume,
    e.RequeueRequested: _requeue,
}
_FACTS: dict[type[msgspec.Struct], Callable[[Job, Any], bool]] = {
    e.CancelRequested: _on_cancel_requested,
    **dict.fromkeys(_ASKED, _on_asked),
    e.JobPriorityChanged: _on_priority_changed,
    e.JobLimitChanged: _on_limit_changed,
    e.ProgressReported: _on_progress,
    e.PlacementRejected: _on_placement_rejected,
    e.SandboxStarted: _on_sandbox_started,
    e.SandboxExited: _on_sandbox_exited,
    e.PhaseChanged: _on_phase_changed,
    e.PhaseRequested: lending.on_phase_requested,
    e.QuotaApplied: _on_quota_applied,
    e.ShrinkRefused: lending.on_shrink_refused,
    e.HandBackFailed: lending.on_hand_back_failed,
    e.CheckpointFailed: _on_checkpoint_failed,
    e.CheckpointVerified: _on_checkpoint_verified,
    **dict.fromkeys((e.CheckpointPartSaved, e.CheckpointPartFailed, e.CheckpointPartPromoted), _on_checkpoint_part),
    e.StepRateLow: _on_step_rate,
    e.StepRateRecovered: _on_step_rate,
}
_DECISIONS: dict[type[msgspec.Struct], Callable[[Job, Any], bool]] = {
    e.JobRejected: _on_rejected,
    e.JobPlaced: _on_placed,
    e.JobStarted: _on_started,
    e.JobResumed: _on_started,
    e.RoomReserved: _on_room_reserved,
    e.PreemptRequested: _on_preempt_requested,
    e.StopRequested: _on_stop_requested,
    e.JobSuspended: _on_suspended,
    e.JobRequeued: _on_requeued,
    e.JobCompleted: _on_completed,
    e.JobFailed: _on_failed,
    e.JobCancelled: _on_cancelled,
}
