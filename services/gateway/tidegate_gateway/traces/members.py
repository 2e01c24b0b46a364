"""What nodes say of one member of an attempt: image, sandbox, restore, phases, resizes, and how it ended."""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_gateway.traces.moment import OK, PLAIN, Ending, Moment, of_attempt, quota_texts, reason_text
from tidegate_gateway.traces.span import NODE, Attributes, derived_id
from tidegate_gateway.traces.state import (
    PHASE_SPANS_PER_ATTEMPT_MAX,
    RESIZE_SPANS_PER_ATTEMPT_MAX,
    ROUTINE_SPANS_PER_TRACE_MAX,
    AttemptTrace,
    Current,
    JobTrace,
    LeftOut,
    MemberTrace,
)

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000
RESIZE = "resize"


def seat(moment: Moment, attempt: AttemptTrace, placement: e.MemberPlacement) -> None:
    """A member was placed: its sandbox is awaited from now on."""
    quotas = quota_texts(placement.quotas)
    about = of_attempt(attempt, node=placement.node, quotas=quotas, started=False)
    if placement.gpu_indices:
        about["tidegate.gpu_indices"] = tuple(str(index) for index in placement.gpu_indices)
    sandbox = moment.begin(
        "sandbox",
        NODE,
        parent_id=attempt.marker_id,
        rank=placement.rank,
        instance=placement.node,
        attributes=about,
    )
    attempt.members.append(MemberTrace(placement.rank, placement.node, sandbox))


def on_sandbox_started(moment: Moment, event: e.SandboxStarted) -> None:
    """The image was there and the processes run; an attempt that resumes restores its checkpoint from now on."""
    found = _found(moment.job, event.attempt, event.rank)
    if found is None:
        return
    attempt, member = found
    ordered_ns = min(moment.at_ns, max(attempt.placed_ns, moment.at_ns - event.start_ms * NS_PER_MS))
    ready_ns = max(ordered_ns, min(ordered_ns + event.prepare_ms * NS_PER_MS, moment.at_ns))
    image = moment.begin(
        "image",
        NODE,
        parent_id=attempt.marker_id,
        rank=event.rank,
        start_ns=ordered_ns,
        attributes=of_attempt(attempt, node=event.node, image_digest=event.image_digest),
    )
    moment.finish(image, OK, end_ns=ready_ns)
    member.started = True
    member.sandbox.start_ns = max(member.sandbox.start_ns, ready_ns)
    about = of_attempt(attempt, started=True, level=event.level, image_digest=event.image_digest)
    member.sandbox.attributes |= {**about, "tidegate.start_ms": event.start_ms}
    if attempt.resume_step is not None:
        member.restore = moment.begin(
            "restore",
            NODE,
            parent_id=attempt.marker_id,
            rank=event.rank,
            attributes=of_attempt(attempt, node=event.node, step=attempt.resume_step),
        )


def on_placement_rejected(moment: Moment, event: e.PlacementRejected) -> None:
    """The node did not take the member: infrastructure."""
    if (found := _found(moment.job, event.attempt, event.rank)) is not None:
        text = reason_text(event.reason)
        _gone(moment, *found, Ending("error", text, "infrastructure"), {"tidegate.outcome": "rejected"})


def on_sandbox_exited(moment: Moment, event: e.SandboxExited) -> None:
    """The sandbox is gone; only `lost` is infrastructure's fault, only `failed` the job's own."""
    found = _found(moment.job, event.attempt, event.rank)
    if found is None:
        return
    about: Attributes = {"tidegate.outcome": event.outcome, "tidegate.acknowledged": event.acknowledged}
    for name, value in (("exit_code", event.exit_code), ("signal", event.signal), ("last_step", event.last_step)):
        if value is not None:
            about[f"tidegate.{name}"] = value
    if event.oom:
        about["tidegate.oom"] = True
    _gone(moment, *found, _ending(event), about)


def lose(moment: Moment, member: MemberTrace, why: str) -> None:
    """The node went away with the member, or came back without it."""
    attempt = moment.job.attempt
    assert attempt is not None, "a member belongs to an attempt"
    _gone(moment, attempt, member, Ending("error", why, "infrastructure"), {"tidegate.outcome": "lost"})


def leave_with_attempt(moment: Moment, attempt: AttemptTrace) -> None:
    """The attempt is over: whoever was not seen to leave is gone with it."""
    for member in list(attempt.members):
        _gone(moment, attempt, member, PLAIN, {"tidegate.outcome": "not seen"})


def on_phase_changed(moment: Moment, event: e.PhaseChanged) -> None:
    """A phase ends the one before it, and the restore, since the job speaks."""
    found = _found(moment.job, event.attempt, event.rank)
    if found is None:
        return
    attempt, member = found
    close_restore(moment, member, seen=True)
    _end_phase(moment, attempt, member)
    member.phase = Current(event.phase, event.id, max(moment.at_ns, attempt.placed_ns))
    if attempt.phase_spans < PHASE_SPANS_PER_ATTEMPT_MAX and _may_show(moment.job):
        attempt.phase_spans += 1
        about = of_attempt(attempt, node=member.node, phase=event.phase)
        if event.step is not None:
            about["tidegate.step"] = event.step
        member.phase.shown = moment.begin(
            f"phase {event.phase}",
            NODE,
            parent_id=attempt.marker_id,
            role="phase",
            rank=event.rank,
            start_ns=member.phase.start_ns,
            attributes=about,
        )


def on_quota_changed(moment: Moment, event: e.QuotaChanged) -> None:
    """Other limits were decided: a resize begins, and one that is still under way is overtaken."""
    found = _found(moment.job, event.attempt, event.rank)
    if found is None:
        return
    attempt, member = found
    _end_resize(moment, member, "overtaken")
    member.resize = Current(RESIZE, event.id, moment.at_ns)
    if attempt.resize_spans < RESIZE_SPANS_PER_ATTEMPT_MAX and _may_show(moment.job):
        attempt.resize_spans += 1
        about = of_attempt(attempt, node=member.node, quotas=quota_texts(event.quotas))
        member.resize.shown = moment.begin(
            RESIZE,
            NODE,
            parent_id=attempt.marker_id,
            rank=event.rank,
            instance=member.node,
            attributes=about,
            by_pass=True,
        )


def on_quota_applied(moment: Moment, event: e.QuotaApplied) -> None:
    """The kernel enforces limits: a resize that was under way is done. Limits of the start are no resize."""
    if (found := _found(moment.job, event.attempt, event.rank)) is not None:
        _end_resize(moment, found[1], "enforced" if event.enforced else "not enforced on this node")


def close_restore(moment: Moment, member: MemberTrace, *, seen: bool) -> None:
    """End the restore at the job's first word after it; where none came, its length is unknown and left at nothing."""
    restore, member.restore = member.restore, None
    if restore is not None:
        end_ns = moment.at_ns if seen else restore.start_ns
        moment.finish(restore, OK if seen else PLAIN, end_ns=end_ns, attributes={"tidegate.seen": seen})


def _ending(event: e.SandboxExited) -> Ending:
    if event.outcome == "lost":
        return Ending("error", event.detail or "lost", "infrastructure")
    if event.outcome == "failed":
        told = f"exit code {event.exit_code}" if event.signal is None else f"signal {event.signal}"
        return Ending("error", event.detail or told, "job")
    return PLAIN if event.outcome == "stopped" else OK


def _found(job: JobTrace, number: int, rank: int) -> tuple[AttemptTrace, MemberTrace] | None:
    attempt = job.attempt
    if attempt is None or attempt.number != number:
        return None
    member = attempt.member(rank)
    return None if member is None else (attempt, member)


def _may_show(job: JobTrace) -> bool:
    """Take one of the trace's places for what repeats; say whether there was one."""
    if job.routine_spans >= ROUTINE_SPANS_PER_TRACE_MAX:
        return False
    job.routine_spans += 1
    return True


def _gone(moment: Moment, attempt: AttemptTrace, member: MemberTrace, ending: Ending, attributes: Attributes) -> None:
    """End everything of the member, what was summed up included."""
    close_restore(moment, member, seen=False)
    _end_phase(moment, attempt, member)
    _end_resize(moment, member, "the sandbox ended first")
    for name, left_out in (("phases", member.phases), ("resizes", member.resizes)):
        if left_out is not None:
            about = of_attempt(attempt, node=member.node, rank=member.rank)
            emit_totals(moment, name, left_out, (attempt.marker_id, member.node), about)
    moment.finish(member.sandbox, ending, attributes=attributes)
    attempt.members.remove(member)


def _end_phase(moment: Moment, attempt: AttemptTrace, member: MemberTrace) -> None:
    phase, member.phase = member.phase, None
    if phase is None:
        return
    if phase.shown is not None:
        moment.finish(phase.shown)
        return
    end_ns = max(moment.at_ns, phase.start_ns)
    if member.phases is None:
        member.phases = LeftOut(derived_id(phase.event_id, "phases", member.rank), phase.start_ns, end_ns)
    member.phases.add(phase.name, phase.start_ns, end_ns)


def _end_resize(moment: Moment, member: MemberTrace, how: str) -> None:
    resize, member.resize = member.resize, None
    if resize is None:
        return
    if resize.shown is not None:
        moment.finish(resize.shown, attributes={"tidegate.applied": how})
        return
    end_ns = max(moment.at_ns, resize.start_ns)
    if member.resizes is None:
        member.resizes = LeftOut(derived_id(resize.event_id, "resizes", member.rank), resize.start_ns, end_ns)
    member.resizes.add(RESIZE, resize.start_ns, end_ns)


def emit_totals(moment: Moment, name: str, left_out: LeftOut, under: tuple[str, str], attributes: Attributes) -> None:
    """Emit one span for all that a cap kept from having its own; `under` is its parent and its instance."""
    about = dict(attributes)
    for each, total in left_out.totals.items():
        about[f"tidegate.{name}.{each}.count"] = total.count
        about[f"tidegate.{name}.{each}.seconds"] = total.duration_ns / NS_PER_SECOND
    parent_id, instance = under
    begun = moment.begin(
        name, NODE, parent_id=parent_id, instance=instance, start_ns=left_out.start_ns, attributes=about
    )
    begun.id = left_out.id
    moment.finish(begun, end_ns=left_out.end_ns)
