"""Folds what is said of phases that are asked for: it counts as it does for the scheduler, and moves no job on."""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_gateway.view.model import Job


def on_phase_requested(job: Job, event: e.PhaseRequested) -> bool:
    """Take the step that the member has got to; that it waits counts where phases are asked for at all."""
    member = job.member(event.attempt, event.rank)
    if member is None or not member.active or job.spec.phase_entry != "asked":
        return False
    if event.step is not None:
        member.step = event.step
    return True


def on_shrink_refused(job: Job, event: e.ShrinkRefused) -> bool:
    """Note the limits that hold still."""
    member = job.member(event.attempt, event.rank)
    if member is None or not member.active or member.placement.node != event.node:
        return False
    member.observed = {**member.observed, **{quota.component: quota for quota in event.quotas}}
    return True


def on_hand_back_failed(job: Job, event: e.HandBackFailed) -> bool:
    """Say whether the member is there, in a job whose phases are asked for."""
    member = job.member(event.attempt, event.rank)
    return member is not None and member.active and job.spec.phase_entry == "asked"


def on_hand_back_requested(job: Job, event: e.HandBackRequested) -> bool:
    """Say whether the member is there: bound to the attempt alone, as a change of quotas is."""
    member = job.member(event.attempt, event.rank)
    return member is not None and member.active
