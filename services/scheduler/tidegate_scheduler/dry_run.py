"""What would become of a job if it were submitted now: a pass that decides on it, of which nothing is kept.

The job stands in the state while that pass is made and is taken out again, so state, digest and every later decision
are as if nobody had asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
from tidegate_events.events import (
    AnyEvent,
    HandBackRequested,
    JobPlaced,
    JobSubmitted,
    PreemptRequested,
    Reason,
    RoomReserved,
)
from tidegate_events.spec import JobSpec

from tidegate_scheduler.counting import DEFRAGMENTATION
from tidegate_scheduler.draft import Draft
from tidegate_scheduler.explain import FORECAST_MAX
from tidegate_scheduler.lifecycle import RULES
from tidegate_scheduler.policy import registry
from tidegate_scheduler.policy.outlook import Basis, Outlook, Start
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import LEAVING_STAGES, Job, State

TRIAL = "(dry run)"
"""The id of the job on trial: no job can have it, as ids have neither brackets nor spaces."""

DECISIONS_MAX = 1000
"""Decisions of the pass that is tried: more than a pass takes, so that those in front are asked before it."""


How = Literal["leaves", "moves", "hands_back"]


class Displaced(msgspec.Struct, frozen=True):
    """A job that would be asked to save and leave, to do so and go on elsewhere, or to hand back what is lent to it."""

    job: str
    tenant: str
    priority: int
    how: How = "leaves"


class DryRun(msgspec.Struct, frozen=True):
    """The verdict; `nodes` are those it would start on, or have kept for it; `position` is 0 where it does not wait."""

    verdict: Literal["starts_now", "displaces", "waits", "never"]
    nodes: tuple[str, ...] = ()
    starts_at_ns: int | None = None
    starts_basis: Basis | None = None
    displaces: tuple[Displaced, ...] = ()
    position: int = 0
    reasons: tuple[Reason, ...] = ()


def dry_run(state: State, spec: JobSpec, now_ns: int) -> DryRun:
    """Return what would become of a job with this specification; `state` is afterwards as it was."""
    now_ns = max(now_ns, state.header.now_ns)
    with _on_trial(state, spec, now_ns) as job:
        outlook = registry.outlook(state, now_ns)
        never = outlook.never(job)
        if never is not None:
            return DryRun("never", reasons=(never,))
        draft = _pass(state, now_ns)
        if (kept := _kept(draft)) is not None and not _asked(draft):
            # Others move only for a job that room is kept for already: that is what the next pass decides.
            RULES[RoomReserved](state, kept, "")
            draft = _pass(state, now_ns)
        found = _placed(draft.events, now_ns)
        if found is None:
            found = _waits(state, draft, registry.outlook(state, now_ns), job)
        return found


def _pass(state: State, now_ns: int) -> Draft:
    draft = Draft(state, now_ns, on_trial=TRIAL)
    draft.parameters = msgspec.structs.replace(draft.parameters, decisions_per_pass_max=DECISIONS_MAX)
    registry.find(state.header.policy).decide(draft)
    return draft


def _kept(draft: Draft) -> RoomReserved | None:
    """Return what was said last of room that is kept for the job."""
    said = [event for event in draft.events if isinstance(event, RoomReserved) and event.job == TRIAL]
    return said[-1] if said else None


def _asked(draft: Draft) -> list[PreemptRequested | HandBackRequested]:
    """Return who is asked for the job's room."""
    both = (event for event in draft.events if isinstance(event, PreemptRequested | HandBackRequested))
    return [event for event in both if event.for_job == TRIAL]


def _placed(events: list[AnyEvent], now_ns: int) -> DryRun | None:
    for event in events:
        if isinstance(event, JobPlaced) and event.job == TRIAL:
            nodes = tuple(sorted({member.node for member in event.members}))
            return DryRun("starts_now", nodes, now_ns, "now", reasons=event.reasons)
    return None


def _waits(state: State, draft: Draft, outlook: Outlook, job: Job) -> DryRun:
    """Return that the job waits: for room that others leave for it, or for whatever else."""
    asked, kept = _asked(draft), _kept(draft)
    names, start_by_ns = job.reserved_nodes, job.reserved_start_ns
    if kept is not None:
        names, start_by_ns = kept.nodes, kept.start_by_ns
    nodes = tuple(sorted(set(names)))
    reasons = outlook.reasons(job, draft.waiting)
    if asked:
        first = {event.job: event for event in reversed(asked)}  # each member of a gang may be asked to hand back
        displaced = tuple(
            Displaced(name, event.tenant, state.jobs[name].priority, _how(event))
            for name, event in sorted(first.items())
        )
        ends = [_left_by_ns(state, event) for event in asked] + _deadlines(state, nodes)
        return DryRun("displaces", nodes, max(ends), "deadline", displaced, reasons=reasons)
    position = outlook.position(job)
    start = outlook.starts(position).get(TRIAL) if position <= FORECAST_MAX else None
    # One that waits starts at no time that is now: others have what is kept for it, though they do not hold it.
    if (start is None or start.basis == "now") and start_by_ns:
        start = Start(start_by_ns, "limit")
    at_ns, basis = (start.at_ns, start.basis) if start is not None else (None, None)
    return DryRun("waits", nodes, at_ns, basis, (), position, reasons)


def _how(event: PreemptRequested | HandBackRequested) -> How:
    if isinstance(event, HandBackRequested):
        return "hands_back"
    return "moves" if event.reasons[0].code == DEFRAGMENTATION else "leaves"


def _left_by_ns(state: State, event: PreemptRequested | HandBackRequested) -> int:
    """Return by when the room is there: who does not hand back in time is asked to leave, with its grace for that."""
    if isinstance(event, PreemptRequested):
        return event.deadline_ns
    return event.deadline_ns + state.specs[event.job].preemption.grace_seconds * SECOND_NS


def _deadlines(state: State, nodes: tuple[str, ...]) -> list[int]:
    """Return until when those who leave these nodes already may take."""
    return [
        job.deadline_ns
        for job in state.jobs.values()
        if job.stage in LEAVING_STAGES and any(member.active and member.node in nodes for member in job.members)
    ]


@contextmanager
def _on_trial(state: State, spec: JobSpec, now_ns: int) -> Iterator[Job]:
    """Let a job with this specification wait in the state, and take it out again."""
    submitted = JobSubmitted(id="dry-run", at_ns=now_ns, tenant=spec.tenant, job=TRIAL, spec=spec)
    try:
        RULES[JobSubmitted](state, submitted, "")
        job = state.jobs[TRIAL]
        job.submitted_seq = state.seq + 1
        yield job
    finally:
        state.jobs.pop(TRIAL, None)
        state.touch(f"job/{TRIAL}")
        state.forget_spec(TRIAL)
