"""Says why nothing is placed on a node, in the terms by which the scheduler passes it over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidegate_events.events import Reason

from tidegate_gateway.view.model import Job, Maintenance, Node

NS_PER_SECOND = 1_000_000_000


def unavailable(
    node: Node, jobs: Mapping[str, Job], windows: Sequence[Maintenance] = (), now_ns: int = 0
) -> Reason | None:
    """Return why the node takes no job, None where it takes them; `windows` are its maintenance."""
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
    if (kept_free := _kept_free(node, windows, now_ns)) is not None:
        return kept_free
    leftovers = sum(not _is_current(jobs.get(job), attempt) for job, attempt, _ in node.holds)
    if leftovers:
        detail = "sandboxes of ended attempts still run there and must end first"
        return Reason(code="Leftovers", detail=detail, numbers={"sandboxes": leftovers})
    return None


def windows_of(node: str, windows: Iterable[Maintenance], now_ns: int) -> list[Maintenance]:
    """Return the maintenance of a node that lies ahead or goes on, the first to start first."""
    found = [window for window in windows if node in window.nodes and not window.is_over(now_ns)]
    return sorted(found, key=lambda window: (window.start_ns, window.name))


def _kept_free(node: Node, windows: Sequence[Maintenance], now_ns: int) -> Reason | None:
    """Return what an operator, or the scheduler for its failures, keeps jobs away for."""
    if node.drain is not None:
        left_seconds = max(0, (node.drain.deadline_ns - now_ns) // NS_PER_SECOND)
        why = f": {node.drain.note}" if node.drain.note else ""
        return Reason(
            code="NodeDrained", detail=f"by {node.drain.actor}{why}", numbers={"deadline_seconds": left_seconds}
        )
    if node.cordoned:
        first = node.cordoned[0]
        return Reason(code="NodeCordoned", detail=f"{first.code}: {first.detail}".rstrip(": "), numbers=first.numbers)
    for window in windows:
        if window.start_ns <= now_ns:
            left_seconds = (window.end_ns - now_ns) // NS_PER_SECOND
            why = f"{window.name}, planned by {window.actor}"
            return Reason(code="Maintenance", detail=why, numbers={"ends_seconds": left_seconds})
    return None


def _is_current(job: Job | None, attempt: int) -> bool:
    return job is not None and not job.ended and not job.waiting and job.attempt == attempt
