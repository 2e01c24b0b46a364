"""The cluster at a point of history, as the scheduler saw it: nodes, who held what, and who waited in line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from tidegate_events.events import JobPlaced, Quota, Reason
from tidegate_events.resources import Resources

from tidegate_scheduler.decide import decide
from tidegate_scheduler.explain import Explanation, queue
from tidegate_scheduler.history.point import Point
from tidegate_scheduler.policy.elastic.entries import seat_of
from tidegate_scheduler.policy.outlook import Basis
from tidegate_scheduler.state import Job, Member, Node, State


class Held(msgspec.Struct, frozen=True):
    """One member on a node: what is kept for it (`floor`), and the limits that it has now."""

    job: str
    tenant: str
    priority: int
    attempt: int
    rank: int
    stage: str
    status: str
    phase: str
    floor: Resources
    quotas: tuple[Quota, ...]
    gpu_indices: tuple[int, ...]


class NodeThen(msgspec.Struct, frozen=True):
    """A node; `free` is what no floor holds."""

    node: str
    status: str
    incarnation: int
    levels: tuple[str, ...]
    capacity: Resources
    free: Resources
    holds: tuple[Held, ...]
    leftovers: tuple[str, ...]


class Waiting(msgspec.Struct, frozen=True):
    """One who waited, with the place in line, why, and the earliest start that was known."""

    position: int
    job: str
    tenant: str
    priority: int
    state: str
    submitted_ns: int
    reasons: tuple[Reason, ...]
    starts_at_ns: int | None
    starts_basis: Basis | None


class ClusterThen(msgspec.Struct, frozen=True):
    """Everything; `waiting` counts those beyond the shown `queue`, too."""

    seq: int
    at_ns: int
    epoch: int
    generation: int
    policy: int
    state_digest: str
    jobs: dict[str, int]
    ended: dict[str, int]
    nodes: tuple[NodeThen, ...]
    waiting: int
    queue: tuple[Waiting, ...]


def cluster_at(point: Point) -> ClusterThen:
    """Return the cluster at a point. Why jobs wait is decided again on that state, as the next pass would."""
    state = point.state
    line = queue(state, reasons_now(state, point.at_ns), point.at_ns)
    return ClusterThen(
        seq=state.seq,
        at_ns=point.at_ns,
        epoch=state.header.epoch,
        generation=state.header.generation,
        policy=state.header.policy,
        state_digest=state.digest(),
        jobs=_counted(job.stage for job in state.jobs.values()),
        ended=_counted(finished.state for finished in state.finished.values()),
        nodes=tuple(_node(state, node) for _, node in sorted(state.nodes.items())),
        waiting=line.total,
        queue=tuple(waiting(state, one) for one in line.queue),
    )


def waiting(state: State, one: Explanation) -> Waiting:
    """Return one who waits, with what the state says of it."""
    job = state.jobs[one.job]
    return Waiting(
        position=one.position,
        job=one.job,
        tenant=job.tenant,
        priority=job.priority,
        state=one.state,
        submitted_ns=job.submitted_ns,
        reasons=one.reasons,
        starts_at_ns=one.starts_at_ns,
        starts_basis=one.starts_basis,
    )


def reasons_now(state: State, now_ns: int) -> dict[str, Reason]:
    """Return why each waiting job waits, or that the next pass on this state places it."""
    decided = decide(state, now_ns)
    reasons = dict(decided.waiting)
    for event in decided.events:
        if isinstance(event, JobPlaced):
            nodes = ", ".join(sorted({member.node for member in event.members}))
            reasons[event.job] = Reason(code="Placing", detail=f"the next pass places it on {nodes}")
    return reasons


def holds(state: State, node: str) -> list[tuple[Job, Member]]:
    """Return the members that hold room on the node, by job and rank."""
    found = [
        (job, member) for job in state.jobs.values() for member in job.members if member.active and member.node == node
    ]
    return sorted(found, key=lambda pair: (pair[0].id, pair[1].rank))


def free_room(state: State, node: Node) -> Resources:
    """Return what is left of the node beside what members hold there, lent or not; negative after it shrank."""
    seats = [(state.floors[job.id], seat_of(0, member)) for job, member in holds(state, node.name)]
    held = [seat.holds(floor) for floor, seat in seats]
    used = {
        index
        for amount, (_, seat) in zip(held, seats, strict=True)
        for index in seat.gpu_indices
        if _has_devices(amount)
    }
    return Resources(
        node.capacity.cpu_millis - sum(each.cpu_millis for each in held),
        node.capacity.memory_mib - sum(each.memory_mib for each in held),
        len(node.gpus) - len(used),
    )


def _has_devices(amount: Resources) -> bool:
    return bool(amount.gpus or amount.gpu_millis)


def _node(state: State, node: Node) -> NodeThen:
    return NodeThen(
        node=node.name,
        status=node.status,
        incarnation=node.incarnation,
        levels=node.levels,
        capacity=node.capacity,
        free=free_room(state, node),
        holds=tuple(
            Held(
                job=job.id,
                tenant=job.tenant,
                priority=job.priority,
                attempt=job.attempt,
                rank=member.rank,
                stage=job.stage,
                status=member.status,
                phase=member.phase,
                floor=state.floors[job.id],
                quotas=member.quotas,
                gpu_indices=member.gpu_indices,
            )
            for job, member in holds(state, node.name)
        ),
        leftovers=tuple(f"{zombie.job}.{zombie.attempt}.{zombie.rank}" for zombie in node.zombies),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
