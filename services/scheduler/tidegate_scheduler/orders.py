"""What each node shall do, derived from the folded state: only decisions that survived folding become orders."""

from __future__ import annotations

from typing import Literal

import msgspec
from tidegate_events.orders import LOOPBACK, GangPlace, NodeOrders, SandboxOrder, encode
from tidegate_events.spec import DEFAULT_PHASE, Component, JobSpec, ResourceRange

from tidegate_scheduler.state import Job, Member, Node, State

MESSAGE_BYTES_MAX = 900_000  # below the bus's 1 MiB

_DESIRED: dict[str, Literal["run", "suspend", "stop"]] = {
    "placed": "run",
    "running": "run",
    "preempting": "suspend",
    "stopping": "stop",
}
# Stands in the order that ends a sandbox of which this journal knows no job: what runs is ended by its name alone.
_UNKNOWN = JobSpec(
    name="unknown",
    tenant="unknown",
    submitter="unknown",
    components=(Component(name="main", command=("true",), resources={DEFAULT_PHASE: ResourceRange()}),),
)


class _Places(msgspec.Struct, frozen=True):
    """The places of one attempt, whose first rank is on the node `first` at `address`."""

    attempt: int
    first: str
    address: str
    by_rank: dict[int, GangPlace]


class Gangs:
    """Where members stand in their gangs, worked out once for an attempt and not once for every node."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[str, _Places] = {}

    def __len__(self) -> int:
        return len(self._known)

    def place(self, job: Job, member: Member) -> GangPlace | None:
        """Return where the member stands in its gang, None for a job of one."""
        if len(job.members) == 1:
            return None
        known = self._known.get(job.id)
        if known is None or known.attempt != job.attempt or known.address != _address(self._state, known.first):
            first = min(job.members, key=lambda each: each.rank).node
            address = _address(self._state, first)
            known = self._known[job.id] = _Places(job.attempt, first, address, _gang(job, address))
        return known.by_rank[member.rank]

    def forget(self, job: str) -> None:
        """Drop what was worked out for a job that has left."""
        self._known.pop(job, None)


class Awaited:
    """Which images jobs wait for, counted as jobs come and go and not looked up once for every node."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._image_of: dict[str, str] = {}
        self._jobs: dict[str, int] = {}
        for job in state.jobs.values():
            self.look(job.id)

    def __contains__(self, image: str) -> bool:
        return image in self._jobs

    def look(self, job_id: str) -> None:
        """Take note of what became of a job."""
        job = self._state.jobs.get(job_id)
        image = self._state.specs[job_id].image if job is not None and job.waiting else None
        before = self._image_of.get(job_id)
        if image == before:
            return
        if before is not None:
            self._count(before, -1)
            del self._image_of[job_id]
        if image is not None:
            self._count(image, 1)
            self._image_of[job_id] = image

    def _count(self, image: str, more: int) -> None:
        count = self._jobs[image] = self._jobs.get(image, 0) + more
        if not count:
            del self._jobs[image]


def _address(state: State, node: str) -> str:
    known = state.nodes.get(node)
    return known.address if known is not None and known.address else LOOPBACK


def _gang(job: Job, address: str) -> dict[int, GangPlace]:
    """Return the place of each rank: an attempt never moves, so neither do they, whoever has left meanwhile."""
    ranks: dict[str, list[int]] = {}
    for member in sorted(job.members, key=lambda member: member.rank):
        ranks.setdefault(member.node, []).append(member.rank)
    nodes = tuple(ranks)
    return {
        rank: GangPlace(
            nodes=nodes,
            node_rank=node_rank,
            local_rank=local_rank,
            local_size=len(ranks[node]),
            master_address=address,
        )
        for node_rank, node in enumerate(nodes)
        for local_rank, rank in enumerate(ranks[node])
    }


def orders_for(state: State, node: Node, gangs: Gangs | None = None, awaited: Awaited | None = None) -> NodeOrders:
    """Return all that the scheduler wants of `node`, by job and rank; zombies shall end at once.

    Of the images that were hinted there, those that are still awaited are named.
    """
    gangs = Gangs(state) if gangs is None else gangs
    awaited = Awaited(state) if awaited is None else awaited
    sandboxes = [
        _order(state, job, member, gangs.place(job, member))
        for job in sorted(state.seats.on(node.name), key=lambda job: job.id)
        for member in job.members
        if member.active and member.node == node.name
    ]
    for zombie in node.zombies:
        spec = state.specs.get(zombie.job, _UNKNOWN)
        sandboxes.append(
            SandboxOrder(
                job=zombie.job,
                tenant=spec.tenant,
                attempt=zombie.attempt,
                rank=zombie.rank,
                desired="stop",
                spec=spec,
                quotas=(),
                reason="Superseded",
            )
        )
    return NodeOrders(
        node=node.name,
        incarnation=node.incarnation,
        epoch=state.header.epoch,
        at_seq=state.seq,
        sandboxes=tuple(sandboxes),
        prefetch=tuple(image for image in node.hinted if image in awaited),
    )


def in_parts(orders: NodeOrders) -> list[NodeOrders]:
    """Return `orders` in messages that the bus takes; what a part does not mention is left alone, so parts are safe."""
    if len(orders.sandboxes) <= 1 or len(encode(orders)) <= MESSAGE_BYTES_MAX:
        return [orders]
    middle = len(orders.sandboxes) // 2
    halves = (orders.sandboxes[:middle], orders.sandboxes[middle:])
    return [part for half in halves for part in in_parts(msgspec.structs.replace(orders, sandboxes=half))]


def _order(state: State, job: Job, member: Member, gang: GangPlace | None) -> SandboxOrder:
    return SandboxOrder(
        job=job.id,
        tenant=job.tenant,
        attempt=job.attempt,
        rank=member.rank,
        desired=_DESIRED[job.stage],
        spec=state.specs[job.id],
        quotas=member.quotas,
        gpu_indices=member.gpu_indices,
        resume=job.resumed_from,
        deadline_ns=job.deadline_ns,
        reason=job.stop_reason,
        traceparent=job.traceparent,
        gang=gang,
        phase=member.granted,
        hand_back_ns=member.hand_back_ns,
    )
