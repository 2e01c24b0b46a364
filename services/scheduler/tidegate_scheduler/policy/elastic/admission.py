"""Who is not placed although there may be room: a tenant at its ceiling, a job that the cluster can never hold."""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.offers import CHANGES_FOR_MAX
from tidegate_scheduler.policy.elastic.fit import could_hold
from tidegate_scheduler.policy.elastic.lacking import missing
from tidegate_scheduler.policy.elastic.offered import may_come, too_large
from tidegate_scheduler.policy.elastic.queue import Amounts, Line, Share, amounts
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job

_NAMES = ("cpu_millis", "memory_mib", "gpu_millis")


def ceiling_reached(share: Share, line: Line) -> e.Reason | None:
    """Return why a line's tenant may not hold one job more of it, None where it may."""
    whole = amounts(line.key.shape.need, line.key.shape.gang_size)
    if share.ceiling is None or share.within(whole, share.ceiling):
        return None
    if (larger := larger_than_ceiling(share, line.key.tenant, whole)) is not None:
        return larger
    numbers = {f"{name}_used": used for name, used in zip(_NAMES, share.used, strict=True)}
    numbers |= {f"{name}_ceiling": most for name, most in zip(_NAMES, share.ceiling, strict=True) if most}
    return e.Reason(code="QuotaReached", detail=f"the ceiling of {line.key.tenant}", numbers=numbers)


def larger_than_ceiling(share: Share, tenant: str, whole: Amounts) -> e.Reason | None:
    """Return that a job which needs so much is larger than its tenant's ceiling, were it alone; None where it is not.

    It waits all the same, and says so: an operator may raise the ceiling at any time, while a cluster seldom grows.
    """
    if share.ceiling is None or Share().within(whole, share.ceiling):
        return None
    over = [(name, needed, most) for name, needed, most in zip(_NAMES, whole, share.ceiling, strict=True)]
    over = [(name, needed, most) for name, needed, most in over if most and needed > most]
    detail = ", ".join(f"{needed} {name} of {most}" for name, needed, most in over)
    numbers = {f"{name}_needed": needed for name, needed, _ in over}
    numbers |= {f"{name}_ceiling": most for name, _, most in over}
    detail = f"larger than the ceiling of {tenant} by itself ({detail}): it can never run under this ceiling"
    return e.Reason(code="QuotaReached", detail=detail, numbers=numbers)


def reject(draft: Draft, job: Job, fit: Fit) -> bool:
    """Reject a job that the cluster cannot hold, once that may not change any more; say whether it was."""
    if not draft.state.nodes or job.attempt > 0 or may_hold(fit):
        return False
    due_ns = may_change_until_ns(draft, 0 if too_large(fit) else job.submitted_ns)
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


def may_hold(fit: Fit) -> bool:
    """Say whether the nodes there are could hold the job when empty, or could if they got its image."""
    return could_hold(fit, up_only=False) or may_come(fit)


def may_change_until_ns(draft: Draft, asked_ns: int = 0) -> int:
    """Return until when it may change what the nodes could hold, for a job that asks since then.

    Where nodes join, as they all do when a cluster starts, others may be on their way, and what a node offers no more
    may come back; else a job that is too large is rejected at once. Images and levels of isolation may come to nodes
    that are there: from its submission on a job waits for those, and for an image as long as nodes may still get it
    that could hold the job then. A time of a change that lies ahead is the word of a wrong clock: nothing is counted
    from it.
    """
    after_ns, header = draft.parameters.inadmissible_after_seconds * SECOND_NS, draft.state.header
    last_ns, first_ns = (
        max(asked_ns, each if each <= draft.now_ns + after_ns else 0)
        for each in (header.offers_changed_ns, header.offers_changing_ns)
    )
    return min(last_ns + after_ns, first_ns + CHANGES_FOR_MAX * after_ns)
