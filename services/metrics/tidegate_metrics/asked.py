"""What operators asked of jobs, as far as it moves them on: decisions that were taken before it are void then."""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_metrics.job_track import JobTrack

Asking = e.HoldRequested | e.ReleaseRequested | e.SuspendRequested | e.ResumeRequested | e.RequeueRequested


def apply(job: JobTrack, event: Asking) -> None:
    """Fold it; what is so already changes nothing."""
    if isinstance(event, e.ReleaseRequested):
        job.held = False  # which undoes nothing that is under way
    elif _changes(job, event):
        job.revision += 1


def back_in_queue(job: JobTrack) -> None:
    """Keep of what was asked what holds for a job that waits again."""
    job.held = job.held or job.suspend_requested
    job.suspend_requested = job.requeue_requested = False


def _changes(job: JobTrack, event: Asking) -> bool:
    waits = job.stage == "waiting"
    if isinstance(event, e.HoldRequested):
        before, job.held = job.held, True
        return not before
    if isinstance(event, e.ResumeRequested):
        before = job.held or job.suspend_requested
        job.held = job.suspend_requested = False
        return before
    if isinstance(event, e.RequeueRequested):
        if waits or job.requeue_requested:
            return False
        job.requeue_requested = True
        return True
    if job.suspend_requested or (waits and job.held):
        return False
    if waits:
        job.held = True
    else:
        job.suspend_requested = True
    return True
