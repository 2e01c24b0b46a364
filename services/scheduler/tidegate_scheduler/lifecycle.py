"""The life of one job as `evolve` folds it: what each fact and each decision changes, and when it is void."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from tidegate_events import events as e
from tidegate_events.spec import DEFAULT_PHASE

from tidegate_scheduler import leasing, raising, saving
from tidegate_scheduler.counting import blame, count_move, count_preemption, count_returning, forget_returned
from tidegate_scheduler.moves import count_rebalanced
from tidegate_scheduler.room_changes import count_change
from tidegate_scheduler.state import (
    Exit,
    Finished,
    Job,
    Member,
    State,
)
from tidegate_scheduler.strict import keep_model

PROGRESS_WHOLE = 1000

# ---- facts ----


def _on_submitted(state: State, event: e.JobSubmitted, at: str) -> None:
    if event.job in state.jobs or event.job in state.finished:
        return
    state.jobs[event.job] = Job(
        id=event.job,
        tenant=event.tenant,
        spec_digest=state.remember_spec(event.job, event.spec),
        traceparent=event.traceparent,
        priority=event.spec.priority,
        submitted_seq=state.seq,
        submitted_ns=event.at_ns,
        stage="pending",
        revision=0,
        attempt=0,
        members=[],
        checkpoints=[],
        resumed_from=None,
        result={},
        preemptions=0,
        failures=0,
        infrastructure_failures=0,
        excluded_nodes=[],
        reserved_nodes=(),
        not_before_ns=0,
        placed_ns=0,
        started_ns=0,
        ran_ns=0,
        deadline_ns=0,
        stop_reason="",
        cancel_requested=False,
        cause=at,
    )
    state.touch(f"job/{event.job}")


def _on_cancel_requested(state: State, event: e.CancelRequested, at: str) -> None:
    job = state.jobs.get(event.job)
    if job is not None and not job.cancel_requested:
        job.cancel_requested = True
        moved(state, job, at)


def _on_placement_rejected(state: State, event: e.PlacementRejected, at: str) -> None:
    _bury_zombie(state, event)
    found = _member(state, event, event.rank)
    if found is None or found[1].status != "ordered" or found[1].node != event.node:
        return
    job, member = found
    member.status = "rejected"
    member.exit = Exit(detail=f"{event.reason.code}: {event.reason.detail}")
    if event.node not in job.excluded_nodes:
        job.excluded_nodes.append(event.node)
    blame(state, event.node, job, event.at_ns)
    moved(state, job, at)


def _on_sandbox_started(state: State, event: e.SandboxStarted, at: str) -> None:
    found = _member(state, event, event.rank)
    if found is not None and found[1].status == "ordered" and found[1].node == event.node:
        found[1].status = "started"
        moved(state, found[0], at)


def _on_sandbox_exited(state: State, event: e.SandboxExited, at: str) -> None:
    _bury_zombie(state, event)
    found = _member(state, event, event.rank)
    if found is None or not found[1].active or found[1].node != event.node:
        return
    job, member = found
    member.status = event.outcome
    member.exit = Exit(event.exit_code, event.signal, event.oom, event.last_step, event.detail)
    if event.result and event.rank == 0:
        job.result = dict(event.result)
    if event.outcome == "lost" or (event.outcome == "failed" and _fell_first(job, member)):
        blame(state, event.node, job, event.at_ns)
    moved(state, job, at)


def _fell_first(job: Job, member: Member) -> bool:
    """Say whether nobody of the gang was gone before: where somebody was, the others' failures are its consequence."""
    return all(other is member or other.active or other.status == "completed" for other in job.members)


def _bury_zombie(state: State, event: e.SandboxExited | e.PlacementRejected) -> None:
    """Nothing of that attempt is on the node: it has ended, or its node refused it before it was told to end."""
    node = state.nodes.get(event.node)
    if node is None:
        return
    key = (event.job, event.attempt, event.rank)
    left = [zombie for zombie in node.zombies if (zombie.job, zombie.attempt, zombie.rank) != key]
    if len(left) != len(node.zombies):
        node.zombies = left
        state.touch(f"node/{node.name}")
        state.forget_spec(event.job)


def _on_progress_reported(state: State, event: e.ProgressReported, _at: str) -> None:
    """Take rank 0's word, which speaks for the job in all else too. It is no cause of anything, and moves no job on."""
    found = _member(state, event, event.rank)
    if found is None or event.rank != 0 or not found[1].active or not 0 <= event.progress_millis <= PROGRESS_WHOLE:
        return
    job = found[0]
    job.progress_millis = event.progress_millis
    job.progress_ns = max(event.at_ns, state.header.now_ns)
    state.touch(f"job/{job.id}")


def _nothing(_state: State, _event: e.Event, _at: str) -> None:
    """Facts that are for people and for other services."""


# ---- decisions ----


def _on_rejected(state: State, event: e.JobRejected, _at: str) -> None:
    if (job := _current(state, event)) is not None:
        _finish(state, job, "rejected")


def _on_placed(state: State, event: e.JobPlaced, at: str) -> None:
    job = _current(state, event)
    if job is None or not job.waiting:
        return
    for placement in event.members:
        node = state.nodes.get(placement.node)
        if node is None or node.incarnation != placement.incarnation or node.status != "up":
            return
    job.attempt = event.attempt
    job.members = [_placed(placement) for placement in event.members]
    job.resumed_from = event.resume
    job.backfills = event.backfills
    job.result = {}
    job.stage = "placed"
    job.placed_ns = event.at_ns
    job.started_ns = 0
    job.stop_reason = ""
    job.reserved_nodes = ()
    job.reserved_start_ns = 0
    keep_model(state, job)
    leasing.on_placed(state, job)
    if event.resume is None:
        job.progress_millis = job.progress_ns = 0
    moved(state, job, at)


def _placed(placement: e.MemberPlacement) -> Member:
    return Member(
        rank=placement.rank,
        node=placement.node,
        quotas=placement.quotas,
        gpu_indices=placement.gpu_indices,
        status="ordered",
        phase=DEFAULT_PHASE,
        exit=None,
    )


def _on_started(state: State, event: e.JobStarted | e.JobResumed, at: str) -> None:
    job = _current(state, event)
    if job is not None and job.stage == "placed":
        job.stage = "running"
        job.started_ns = event.at_ns
        moved(state, job, at)


def _on_quota_changed(state: State, event: e.QuotaChanged, _at: str) -> None:
    """Apply it to whichever member it names: the pass shared the whole node, and one void share would overfill it."""
    job = state.jobs.get(event.job)
    if job is None or job.attempt != event.attempt:
        return
    for member in job.members:
        if member.rank == event.rank and member.active:
            if state.elastic:
                count_returning(state, job, member, event)
                leasing.change_terms(state, job, member, event)
                member.resized_ns = event.at_ns
            member.quotas = event.quotas
            state.touch(f"job/{job.id}")


def _on_room_reserved(state: State, event: e.RoomReserved, at: str) -> None:
    job = _current(state, event)
    if job is not None and job.waiting:
        job.reserved_nodes = event.nodes
        job.reserved_start_ns = event.start_by_ns if event.nodes else 0
        if state.elastic and event.nodes:
            count_change(job, event.at_ns)
        moved(state, job, at)


def _on_preempt_requested(state: State, event: e.PreemptRequested, at: str) -> None:
    job = _current(state, event)
    if job is not None and job.stage in ("placed", "running"):
        job.stage = "preempting"
        job.stop_reason = _why_it_leaves(state, event)
        job.deadline_ns = event.deadline_ns
        forget_returned(job, event.at_ns)
        count_move(state, event)
        if job.stop_reason == "Rebalanced":
            count_rebalanced(job, event.at_ns)
        if event.hold:
            job.held = True
        elif event.for_job or not state.elastic:
            # Leaving for nobody (a drain, a requeue, a move) is no preemption: it would use up the budget of those.
            count_preemption(state, job, event)
        moved(state, job, at)


def _why_it_leaves(state: State, event: e.PreemptRequested) -> str:
    if event.for_job:
        return f"preempted for {event.for_job}"
    if state.elastic and event.reasons:
        return event.reasons[0].code
    return "its node became smaller"  # the only other reason there was for policy 1


def _on_stop_requested(state: State, event: e.StopRequested, at: str) -> None:
    job = _current(state, event)
    if job is not None and not job.waiting:
        job.stage = "stopping"
        forget_returned(job, event.at_ns)
        job.stop_reason = event.reasons[0].code if event.reasons else "Stopped"
        job.deadline_ns = event.deadline_ns
        moved(state, job, at)


def _on_suspended(state: State, event: e.JobSuspended, at: str) -> None:
    job = _current(state, event)
    if job is not None:
        _back_to_queue(state, job, "suspended", event.at_ns)
        moved(state, job, at)


def _on_requeued(state: State, event: e.JobRequeued, at: str) -> None:
    job = _current(state, event)
    if job is None:
        return
    if event.outcome == "failed":
        job.failures += 1
    elif event.outcome == "lost":
        job.infrastructure_failures += 1
    _back_to_queue(state, job, "suspended" if job.checkpoints else "pending", event.at_ns)
    job.not_before_ns = event.not_before_ns
    moved(state, job, at)


def _on_ended(state: State, event: e.JobCompleted | e.JobFailed | e.JobCancelled, _at: str) -> None:
    if (job := _current(state, event)) is not None:
        _finish(state, job, _END_STATES[type(event)])


_END_STATES: dict[type[e.Event], Literal["completed", "failed", "cancelled"]] = {
    e.JobCompleted: "completed",
    e.JobFailed: "failed",
    e.JobCancelled: "cancelled",
}


# ---- what the rules share ----


def _member(state: State, event: e.AttemptEvent, rank: int) -> tuple[Job, Member] | None:
    """Return the member a fact speaks of; None when it speaks of another attempt."""
    job = state.jobs.get(event.job)
    if job is None or job.attempt != event.attempt:
        return None
    for member in job.members:
        if member.rank == rank:
            return job, member
    return None


def _current(state: State, event: e.Decision) -> Job | None:
    """Return the job of a decision; None when the job moved on since it was taken."""
    job = state.jobs.get(event.job)
    return job if job is not None and job.revision == event.revision else None


def moved(state: State, job: Job, at: str) -> None:
    """Move the job on: decisions that were taken about it before are void."""
    job.revision += 1
    job.cause = at
    state.touch(f"job/{job.id}")


def _back_to_queue(state: State, job: Job, stage: Literal["pending", "suspended"], at_ns: int) -> None:
    if job.started_ns:
        job.ran_ns += max(0, at_ns - job.started_ns)
    if state.elastic and job.stage == "preempting":
        job.suspended_ns = at_ns
    job.held = job.held or job.suspend_requested
    job.suspend_requested = job.requeue_requested = False
    raising.forget(job)
    job.stage = stage
    job.backfills = ()
    job.members = []
    job.started_ns = 0
    job.deadline_ns = 0
    job.stop_reason = ""


def _finish(state: State, job: Job, end: Literal["completed", "failed", "cancelled", "rejected"]) -> None:
    del state.jobs[job.id]
    state.finished[job.id] = Finished(job.id, job.tenant, end, job.attempt)
    state.touch(f"job/{job.id}")
    state.touch(f"finished/{job.id}")
    state.forget_spec(job.id)


RULES: dict[type[e.Event], Callable[[State, Any, str], None]] = {
    e.JobSubmitted: _on_submitted,
    e.CancelRequested: _on_cancel_requested,
    e.PlacementRejected: _on_placement_rejected,
    e.SandboxStarted: _on_sandbox_started,
    e.SandboxExited: _on_sandbox_exited,
    e.PhaseChanged: leasing.on_phase_changed,
    e.PhaseRequested: leasing.on_phase_requested,
    e.ProgressReported: _on_progress_reported,
    e.QuotaApplied: leasing.on_quota_applied,
    e.ShrinkRefused: leasing.on_shrink_refused,
    e.HandBackFailed: leasing.on_hand_back_failed,
    e.CheckpointSaved: saving.on_checkpoint_saved,
    e.CheckpointFailed: saving.on_checkpoint_failed,
    e.CheckpointVerified: _nothing,
    e.CheckpointPartSaved: _nothing,
    e.CheckpointPartFailed: _nothing,
    e.CheckpointPartPromoted: _nothing,
    e.StepRateLow: raising.on_step_rate,
    e.StepRateRecovered: raising.on_step_rate,
    e.JobRejected: _on_rejected,
    e.JobPlaced: _on_placed,
    e.JobStarted: _on_started,
    e.JobResumed: _on_started,
    e.QuotaChanged: _on_quota_changed,
    e.HandBackRequested: leasing.on_hand_back_requested,
    e.RoomReserved: _on_room_reserved,
    e.PreemptRequested: _on_preempt_requested,
    e.StopRequested: _on_stop_requested,
    e.JobSuspended: _on_suspended,
    e.JobRequeued: _on_requeued,
    e.JobCompleted: _on_ended,
    e.JobFailed: _on_ended,
    e.JobCancelled: _on_ended,
}
