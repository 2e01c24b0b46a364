"""How a node's CPU is shared at a point of history, and what made it be shared anew: why a job was resized."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded

from tidegate_scheduler.history.cluster import holds
from tidegate_scheduler.history.listing import Document, document
from tidegate_scheduler.history.source import Source
from tidegate_scheduler.policy.sharing import quota_millis
from tidegate_scheduler.raising import steps_at
from tidegate_scheduler.state import Job, State

FRAMES_BACK_MAX = 500
TRIGGERS_MAX = 20
_TRIGGERS = (
    e.PhaseChanged,
    e.PhaseRequested,
    e.ShrinkRefused,
    e.StepRateLow,
    e.StepRateRecovered,
    e.SandboxExited,
    e.PlacementRejected,
    e.NodeJoined,
    e.JobPlaced,
)


class Share(msgspec.Struct, frozen=True):
    """One member's part of a node: what its phase is guaranteed, what it may have at most, and what it has.

    The guaranteed parts come first; what is left is lent in this order.
    """

    node: str
    node_cpu_millis: int
    job: str
    rank: int
    priority: int
    phase: str
    minimum_millis: int
    maximum_millis: int
    has_millis: int


def shares(state: State, nodes: set[str]) -> tuple[Share, ...]:
    """Return who shares these nodes, in the order in which what is left is lent."""
    found = []
    for name in sorted(nodes & set(state.nodes)):
        members = sorted(holds(state, name), key=lambda pair: (_order(state, pair[0]), pair[1].rank))
        for job, member in members:
            spec = state.specs[job.id]
            ranges = [(component.range_in(member.phase), component.replicas) for component in spec.components]
            found.append(
                Share(
                    node=name,
                    node_cpu_millis=state.nodes[name].capacity.cpu_millis,
                    job=job.id,
                    rank=member.rank,
                    priority=job.priority,
                    phase=member.phase,
                    minimum_millis=sum(each.minimum.cpu_millis * replicas for each, replicas in ranges),
                    maximum_millis=sum(each.ceiling.cpu_millis * replicas for each, replicas in ranges),
                    has_millis=quota_millis(spec, member.quotas),
                )
            )
    return tuple(found)


def _order(state: State, job: Job) -> tuple[int, int, int, str]:
    """Return in which order jobs are lent to, under every policy: policy 1 raises no shares."""
    return (0 if steps_at(job, state.header.now_ns) else 1, -job.priority, job.submitted_seq, job.id)


async def triggers(source: Source, state: State, recorded: Recorded, nodes: set[str]) -> tuple[Document, ...]:
    """Return what happened on `nodes` since the pass before the one in `recorded`, or in it, that moved CPU.

    `state` is what that pass was decided on, or a later one.
    """
    there = {job.id for name in nodes for job, _ in holds(state, name)}
    frames: list[Recorded] = []
    after = max(source.first - 1, recorded.seq - FRAMES_BACK_MAX)
    async with aclosing(source.read(after, recorded.seq)) as read:
        async for frame in read:
            if isinstance(frame.frame.events[0], e.DecisionPass) and frame.seq != recorded.seq:
                frames.clear()
            frames.append(frame)
    found = [
        document(frame, index)
        for frame in frames
        for index, event in enumerate(frame.frame.events)
        if isinstance(event, _TRIGGERS) and _touches(event, nodes, there)
    ]
    return tuple(found[-TRIGGERS_MAX:])


def _touches(event: e.Event, nodes: set[str], there: set[str]) -> bool:
    if isinstance(event, e.JobPlaced):
        return any(member.node in nodes for member in event.members)
    return getattr(event, "node", "") in nodes or getattr(event, "job", "") in there
