"""The facts of an attempt as events. Their ids are given by the spool."""

from __future__ import annotations

from typing import Any

from tidegate_events.events import (
    CheckpointFailed,
    CheckpointPartFailed,
    CheckpointPartSaved,
    CheckpointRef,
    CheckpointSaved,
    HandBackFailed,
    PhaseChanged,
    PhaseRequested,
    PlacementRejected,
    ProgressReported,
    Quota,
    QuotaApplied,
    Reason,
    SandboxExited,
    SandboxStarted,
    ShrinkRefused,
)
from tidegate_events.orders import SandboxOrder

from tidegate_executor.attempts.outcome import Ending
from tidegate_executor.attempts.state import AttemptState
from tidegate_executor.attempts.wording import plain
from tidegate_executor.channel import messages


def _base(of: AttemptState | SandboxOrder, now_ns: int) -> dict[str, Any]:
    return {
        "id": "",
        "at_ns": now_ns,
        "tenant": of.tenant,
        "job": of.job,
        "traceparent": of.traceparent,
        "attempt": of.attempt,
    }


def rejected(order: SandboxOrder, node: str, reason: Reason, now_ns: int) -> PlacementRejected:
    """The node does not take the member."""
    return PlacementRejected(**_base(order, now_ns), rank=order.rank, node=node, reason=reason)


def started(state: AttemptState, node: str, now_ns: int) -> SandboxStarted:
    """All processes run."""
    return SandboxStarted(
        **_base(state, now_ns),
        rank=state.rank,
        node=node,
        level=state.level,
        image_digest=state.image_digest,
        start_ms=max(0, (now_ns - state.ordered_ns) // 1_000_000),
        prepare_ms=max(0, (state.prepared_ns - state.ordered_ns) // 1_000_000) if state.prepared_ns else 0,
    )


def exited(state: AttemptState, node: str, ending: Ending, now_ns: int) -> SandboxExited:
    """The sandbox is gone."""
    return SandboxExited(
        **_base(state, now_ns),
        rank=state.rank,
        node=node,
        outcome=ending.outcome,
        exit_code=ending.exit_code,
        signal=ending.signal,
        oom=ending.oom,
        acknowledged=ending.acknowledged,
        last_step=state.last_step,
        detail=ending.detail,
        result=state.result if ending.outcome == "completed" else {},
    )


def phase_changed(state: AttemptState, now_ns: int) -> PhaseChanged:
    """The member is in its current phase."""
    return PhaseChanged(**_base(state, now_ns), rank=state.rank, phase=state.phase.current, step=state.phase.step)


def phase_requested(state: AttemptState, phase: str, now_ns: int) -> PhaseRequested:
    """The member waits for the phase; empty: it does not any more."""
    step = next((each.step for each in state.asks.waiting if each.phase == phase), None)
    return PhaseRequested(**_base(state, now_ns), rank=state.rank, phase=phase, step=step)


def progress_reported(state: AttemptState, now_ns: int) -> ProgressReported:
    """The job is as far as its newest report said."""
    return ProgressReported(
        **_base(state, now_ns), rank=state.rank, progress_millis=state.progress.millis, step=state.last_step
    )


def quota_applied(
    state: AttemptState, node: str, quotas: tuple[Quota, ...], now_ns: int, *, enforced: bool
) -> QuotaApplied:
    """These limits hold."""
    return QuotaApplied(**_base(state, now_ns), rank=state.rank, node=node, quotas=quotas, enforced=enforced)


def shrink_refused(state: AttemptState, node: str, kept: tuple[Quota, ...], now_ns: int) -> ShrinkRefused:
    """The kernel keeps these limits, and not the lower ones that were asked of it."""
    return ShrinkRefused(**_base(state, now_ns), rank=state.rank, node=node, quotas=kept)


def hand_back_failed(state: AttemptState, phase: str, detail: str, now_ns: int) -> HandBackFailed:
    """The recall of what the phase was lent will not be answered."""
    reason = Reason(code="DevicesNotFreed", detail=plain(detail))
    return HandBackFailed(**_base(state, now_ns), rank=state.rank, phase=phase, reason=reason)


def checkpoint_saved(state: AttemptState, node: str, checkpoint: CheckpointRef, now_ns: int) -> CheckpointSaved:
    """A checkpoint is durable in the hot directory."""
    return CheckpointSaved(**_base(state, now_ns), rank=state.rank, node=node, checkpoint=checkpoint)


def checkpoint_failed(state: AttemptState, step: int | None, detail: str, now_ns: int) -> CheckpointFailed:
    """A save did not become durable."""
    reason = Reason(code="SaveFailed", detail=plain(detail))
    return CheckpointFailed(**_base(state, now_ns), stage="save", reason=reason, step=step)


def part_saved(
    order: SandboxOrder, node: str, said: messages.PartSaved, part: CheckpointRef, now_ns: int
) -> CheckpointPartSaved:
    """The ranks of this node stored their part of a checkpoint of several nodes."""
    return CheckpointPartSaved(
        **_base(order, now_ns),
        rank=order.rank,
        node=node,
        save=said.save,
        nodes=order.gang.nodes if order.gang is not None else (node,),
        ranks=tuple(said.ranks),
        part=part,
    )


def part_failed(order: SandboxOrder, node: str, said: messages.PartFailed, now_ns: int) -> CheckpointPartFailed:
    """A rank of this node could not store what it holds."""
    return CheckpointPartFailed(
        **_base(order, now_ns),
        rank=said.rank,
        node=node,
        save=said.save,
        nodes=order.gang.nodes if order.gang is not None else (node,),
        reason=Reason(code="SaveFailed", detail=plain(said.error)),
        step=said.step,
    )


def checkpoint_unusable(state: AttemptState, checkpoint: CheckpointRef, detail: str, now_ns: int) -> CheckpointFailed:
    """A checkpoint that was to be resumed from did not verify where the job runs."""
    return CheckpointFailed(
        **_base(state, now_ns),
        stage="verify",
        reason=Reason(code="NotRestored", detail=plain(detail)),
        checkpoint_id=checkpoint.id,
        step=checkpoint.step,
    )
