"""Checkpoints in a job's trace: each save, and its verification, which may come after the job has ended."""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_gateway.traces.members import close_restore, emit_totals
from tidegate_gateway.traces.moment import OK, Ending, Moment, of_attempt, reason_text
from tidegate_gateway.traces.span import CHECKPOINT, NODE, Attributes, derived_id, root_id
from tidegate_gateway.traces.state import (
    ROUTINE_SPANS_PER_TRACE_MAX,
    SAVE_SPANS_PER_ATTEMPT_MAX,
    UNVERIFIED_MAX,
    AttemptTrace,
    JobTrace,
    LeftOut,
    Unverified,
)

SAVE = "save"


def on_checkpoint_saved(moment: Moment, event: e.CheckpointSaved) -> None:
    """A checkpoint became durable; when its writing began is not journaled, so the span is a point in time."""
    job, attempt = moment.job, _attempt(moment.job, event.attempt)
    if attempt is not None and (member := attempt.member(event.rank)) is not None:
        close_restore(moment, member, seen=True)
    shown = _may_show(job, attempt)
    if shown:
        size = sum(layer.size_bytes for layer in event.checkpoint.layers)
        about = _about(event, event.checkpoint.id, event.checkpoint.step)
        about |= {"tidegate.node": event.node, "tidegate.rank": event.rank, "tidegate.tier": event.tier}
        about |= {"tidegate.bytes": size, "tidegate.layers": tuple(layer.name for layer in event.checkpoint.layers)}
        saved = moment.begin(SAVE, NODE, parent_id=_parent(job, attempt), attributes=about)
        moment.finish(saved, OK, end_ns=saved.start_ns)
    elif attempt is not None:
        _leave_out(moment, attempt, event.id)
    if shown:
        awaited = Unverified(
            event.checkpoint.id, _parent(job, attempt), event.attempt, event.checkpoint.step, _at(moment, attempt)
        )
        job.unverified = [*job.unverified, awaited][-UNVERIFIED_MAX:]


def on_checkpoint_failed(moment: Moment, event: e.CheckpointFailed) -> None:
    """A save failed, in the job's own process; or a saved one did not verify, which is infrastructure's fault."""
    job, attempt = moment.job, _attempt(moment.job, event.attempt)
    verified = event.stage == "verify"
    if verified and event.checkpoint_id and (awaited := _take(job, event.checkpoint_id)) is not None:
        _verdict(moment, awaited, Ending("error", reason_text(event.reason), "infrastructure"), {})
        return
    if not _may_show(job, attempt):
        return
    about = _about(event, event.checkpoint_id, event.step)
    service = CHECKPOINT if verified else NODE
    ending = Ending("error", reason_text(event.reason), "infrastructure" if verified else "job")
    name, parent_id = "verify" if verified else SAVE, _parent(job, attempt)
    failed = moment.begin(name, service, parent_id=parent_id, attributes=about)
    moment.finish(failed, ending, end_ns=failed.start_ns)


def on_checkpoint_verified(moment: Moment, event: e.CheckpointVerified) -> None:
    """Every byte of a saved checkpoint was read back."""
    if (awaited := _take(moment.job, event.checkpoint_id)) is not None:
        _verdict(moment, awaited, OK, {"tidegate.bytes": event.size_bytes})


def end_saves(moment: Moment, attempt: AttemptTrace) -> None:
    """Emit the sum of the attempt's saves that have no span of their own."""
    if attempt.saves is not None:
        about = of_attempt(attempt)
        emit_totals(moment, "saves", attempt.saves, (attempt.marker_id, ""), about)


def _verdict(moment: Moment, awaited: Unverified, ending: Ending, attributes: Attributes) -> None:
    about: Attributes = {"tidegate.attempt": awaited.attempt, "tidegate.step": awaited.step}
    about |= {"tidegate.checkpoint": awaited.checkpoint, **attributes}
    verify = moment.begin(
        "verify", CHECKPOINT, parent_id=awaited.parent_id, start_ns=awaited.saved_ns, attributes=about
    )
    moment.finish(verify, ending)


def _take(job: JobTrace, checkpoint: str) -> Unverified | None:
    awaited = next((each for each in job.unverified if each.checkpoint == checkpoint), None)
    # Ranks of a gang may commit the same checkpoint: one verdict speaks for all of them.
    job.unverified = [each for each in job.unverified if each.checkpoint != checkpoint]
    return awaited


def _about(event: e.AttemptEvent, checkpoint: str, step: int | None) -> Attributes:
    about: Attributes = {"tidegate.attempt": event.attempt}
    if checkpoint:
        about["tidegate.checkpoint"] = checkpoint
    if step is not None:
        about["tidegate.step"] = step
    return about


def _attempt(job: JobTrace, number: int) -> AttemptTrace | None:
    return job.attempt if job.attempt is not None and job.attempt.number == number else None


def _parent(job: JobTrace, attempt: AttemptTrace | None) -> str:
    return root_id(job.job) if attempt is None else attempt.marker_id


def _at(moment: Moment, attempt: AttemptTrace | None) -> int:
    return moment.at_ns if attempt is None else max(moment.at_ns, attempt.placed_ns)


def _may_show(job: JobTrace, attempt: AttemptTrace | None) -> bool:
    if job.routine_spans >= ROUTINE_SPANS_PER_TRACE_MAX:
        return False
    if attempt is not None:
        if attempt.save_spans >= SAVE_SPANS_PER_ATTEMPT_MAX:
            return False
        attempt.save_spans += 1
    job.routine_spans += 1
    return True


def _leave_out(moment: Moment, attempt: AttemptTrace, event_id: str) -> None:
    at_ns = _at(moment, attempt)
    if attempt.saves is None:
        attempt.saves = LeftOut(derived_id(event_id, "saves"), at_ns, at_ns)
    attempt.saves.add(SAVE, at_ns, at_ns)
