"""Says why nothing is placed on a node, in the terms by which the scheduler passes it over."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate_events.events import Reason

from tidegate_gateway.view.model import Job, Node


def unavailable(node: Node, jobs: Mapping[str, Job]) -> Reason | None:
    """Return why the node takes no job, None where it takes them."""
    if node.state == "lost":
        detail = "no heartbeat for so long that what ran there counts as lost; it is back when its agent joins again"
        return Reason(code="NodeLost", detail=detail)
    if node.state == "unreachable":
        return Reason(
            code="NoHeartbeat", detail="its agent, or the way to it, is down; what runs there is not lost yet"
        )
    if not node.levels:
        return Reason(
            code="NoLevel", detail="no sandbox can be set up there; the log of its agent says what is missing"
        )
    leftovers = sum(not _is_current(jobs.get(job), attempt) for job, attempt, _ in node.holds)
    if leftovers:
        detail = "sandboxes of ended attempts still run there and must end first"
        return Reason(code="Leftovers", detail=detail, numbers={"sandboxes": leftovers})
    return None


def _is_current(job: Job | None, attempt: int) -> bool:
    return job is not None and not job.ended and not job.waiting and job.attempt == attempt
