"""Who is not placed although there may be room: a tenant at its ceiling, a job that the cluster can never hold."""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.offers import CHANGES_FOR_MAX
from tidegate_scheduler.policy.elastic.fit import could_hold
from tidegate_scheduler.policy.elastic.lacking import missing
from tidegate_scheduler.policy.elastic.offered import may_come, too_large
from tidegate_scheduler.policy.elastic.queue import Line, Share, amounts
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job


def ceiling_reached(share: Share, line: Line) -> e.Reason | None:
    """Return why a line's tenant may not hold one job more of it, None where it may."""
    if share.ceiling is None or share.within(amounts(line.key.shape.need, line.key.shape.gang_size), share.ceiling):
        return None
    names = ("cpu_millis", "memory_mib", "gpu_millis")
    numbers = {f"{name}_used": used for name, used in zip(names, share.used, strict=True)}
    numbers |= {f"{name}_ceiling": most for name, most in zip(names, share.ceiling, strict=True) if most}
    return e.Reason(code="QuotaReached", detail=f"the ceiling of {line.key.tenant}", numbers=numbers)


def reject(draft: Draft, job: Job, fit: Fit) -> bool:
    """Reject a job that the cluster cannot hold, once that may not change any more; say whether it was.

    Where nodes join, as they all do when a cluster starts, others may be on their way, and what a node offers no more
    may come back; else a job that is too large is rejected at once. Images and levels of isolation may come to nodes
    that are there: from its submission on a job waits for those, and for an image as long as nodes may still get it
    that could hold the job then. A time of a change that lies ahead is the word of a wrong clock: nothing is counted
    from it.
    """
    if not draft.state.nodes or job.attempt > 0 or could_hold(fit, up_only=False) or may_come(fit):
        return False
    after_ns, header = draft.parameters.inadmissible_after_seconds * SECOND_NS, draft.state.header
    asked_ns = 0 if too_large(fit) else job.submitted_ns
    last_ns, first_ns = (
        max(asked_ns, each if each <= draft.now_ns + after_ns else 0)
        for each in (header.offers_changed_ns, header.offers_changing_ns)
    )
    due_ns = min(last_ns + after_ns, first_ns + CHANGES_FOR_MAX * after_ns)
    if draft.now_ns < due_ns:
        draft.wake_by(due_ns)
        return False
    need = fit.shape.need
    numbers = {
        "cpu_millis": need.cpu_millis,
        "memory_mib": need.memory_mib,
        "gpus": need.gpus,
        "members_needed": fit.shape.gang_size,
        "members_most": int(fit.holds_empty().sum()),
    }
    lacks = missing(fit)
    draft.add(e.JobRejected, job, e.Reason(code="Inadmissible", detail=lacks.detail, numbers=numbers | lacks.numbers))
    return True
