"""Stage 2, queue: who is asked first. Priority, then the order of submission; a total order without ties."""

from __future__ import annotations

from tidegate_events.events import Reason

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.state import Job

BACK_OFF = "BackOff"


def in_order(draft: Draft) -> list[Job]:
    """Return the jobs that may be placed now, first in line first; those in back-off get their reason."""
    ready: list[Job] = []
    for job in draft.state.jobs.values():
        if not job.waiting or job.cancel_requested:
            continue
        if job.not_before_ns > draft.now_ns:
            wait_ms = (job.not_before_ns - draft.now_ns) // 1_000_000
            draft.waiting[job.id] = Reason(code=BACK_OFF, numbers={"wait_ms": wait_ms})
            draft.wake_by(job.not_before_ns)
        else:
            ready.append(job)
    ready.sort(key=rank)
    return ready


def rank(job: Job) -> tuple[int, int, str]:
    """Return the job's place in line: smaller comes first."""
    return (-job.priority, job.submitted_seq, job.id)
