"""What may be asked of a job: hold, release, suspend, resume, requeue, another priority, another time limit."""

from __future__ import annotations

from functools import partial

from tidegate_events import events as e
from tidegate_events import trace

from tidegate_gateway.acts.base import AlreadyEndedError, Asked, CannotError, EventMaker, UnknownJobError
from tidegate_gateway.view.model import Job
from tidegate_gateway.view.projection import View


def live_job(view: View, job_id: str) -> Job:
    """Return a job that has not ended. Raises UnknownJobError and AlreadyEndedError."""
    job = view.jobs.get(job_id)
    if job is None:
        if (forgotten := view.forgotten.get(job_id)) is not None:
            raise AlreadyEndedError(forgotten.tenant, forgotten.state)
        raise UnknownJobError(job_id)
    if job.ended:
        raise AlreadyEndedError(job.tenant, job.state)
    return job


def cancel(view: View, job_id: str, actor: str) -> EventMaker | None:
    """Ask for the job to end."""
    job = live_job(view, job_id)
    return None if job.cancel_requested else _made(e.CancelRequested, job, actor=actor)


def hold(view: View, job_id: str, asked: Asked) -> EventMaker | None:
    """Ask that the job is not placed (again)."""
    job = live_job(view, job_id)
    return None if job.held else _asked(e.HoldRequested, job, asked)


def release(view: View, job_id: str, asked: Asked) -> EventMaker | None:
    """Take a hold back."""
    job = live_job(view, job_id)
    if job.held:
        return _asked(e.ReleaseRequested, job, asked)
    if _is_repeated(job, e.ReleaseRequested):
        return None
    raise _cannot(job, "not_held", "is not held", "a job that is held")


def suspend(view: View, job_id: str, asked: Asked) -> EventMaker | None:
    """Ask the job to save, to leave, and to stay away until it is resumed."""
    job = _not_ending(live_job(view, job_id))
    if job.suspend_requested or _is_repeated(job, e.SuspendRequested):
        return None
    if job.waiting:
        raise _cannot(job, "not_running", "does not run", "hold, which keeps a job that waits from being placed")
    return _asked(e.SuspendRequested, job, asked)


def resume(view: View, job_id: str, asked: Asked) -> EventMaker | None:
    """Let a held or suspended job run again."""
    job = live_job(view, job_id)
    if job.held or job.suspend_requested:
        return _asked(e.ResumeRequested, job, asked)
    if _is_repeated(job, e.ResumeRequested):
        return None
    raise _cannot(job, "not_suspended", "is neither held nor suspended by anybody", "a job that is held or suspended")


def requeue(view: View, job_id: str, asked: Asked) -> EventMaker | None:
    """Ask the job to save, to leave, and to wait for another attempt."""
    job = _not_ending(live_job(view, job_id))
    if job.requeue_requested or _is_repeated(job, e.RequeueRequested):
        return None
    if job.waiting:
        raise _cannot(job, "not_running", "waits in the queue already", "a job that holds its places")
    return _asked(e.RequeueRequested, job, asked)


def set_priority(view: View, job_id: str, asked: Asked, priority: int) -> EventMaker | None:
    """Give the job another priority."""
    job = live_job(view, job_id)
    if job.priority == priority:
        return None
    return _asked(partial(e.JobPriorityChanged, priority=priority), job, asked)


def set_limit(view: View, job_id: str, asked: Asked, seconds: int | None) -> EventMaker | None:
    """Give the job another time limit, or none."""
    job = live_job(view, job_id)
    if job.time_limit_seconds == seconds:
        return None
    return _asked(partial(e.JobLimitChanged, time_limit_seconds=seconds), job, asked)


def _is_repeated(job: Job, kind: type[e.Event]) -> bool:
    """Say whether this was the last thing that was asked of the job, and of the attempt that it is at still."""
    last = job.asked
    return last is not None and last.kind == kind.__name__ and last.attempt == job.attempt


def _not_ending(job: Job) -> Job:
    if job.cancel_requested or job.state == "stopping":
        raise _cannot(job, "ending", "was told to end", "a job that goes on")
    return job


def _cannot(job: Job, code: str, problem: str, accepted: str) -> CannotError:
    return CannotError(code, f"the job ({job.state}) {problem}", accepted, job_id=job.id, state=job.state)


def _asked(kind: EventMaker, job: Job, asked: Asked) -> EventMaker:
    return _made(kind, job, actor=asked.actor, note=asked.note)


def _made(kind: EventMaker, job: Job, **fields: str) -> EventMaker:
    return partial(kind, tenant=job.tenant, job=job.id, traceparent=trace.traceparent(job.id), **fields)
