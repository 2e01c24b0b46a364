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


class Holders:
    """Who holds room on which node, gathered once for every state that is asked about and not once for every node."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._at_seq = -1
        self._by_node: dict[str, list[tuple[Job, Member]]] = {}
        self._gangs: dict[str, dict[int, GangPlace]] = {}

    def on(self, node: str) -> list[tuple[Job, Member]]:
        """Return the active members on the node and their jobs, in the order of jobs and ranks."""
        if self._at_seq != self._state.seq:
            self._by_node = {}
            self._gangs = {}
            for _, job in sorted(self._state.jobs.items()):
                for member in job.members:
                    if member.active:
                        self._by_node.setdefault(member.node, []).append((job, member))
            self._at_seq = self._state.seq
        return self._by_node.get(node, [])

    def place(self, job: Job, member: Member) -> GangPlace | None:
        """Return where the member stands in its gang, None for a job of one; asked after `on`."""
        if len(job.members) == 1:
            return None
        if job.id not in self._gangs:
            self._gangs[job.id] = _gang(self._state, job)
        return self._gangs[job.id][member.rank]


def _gang(state: State, job: Job) -> dict[int, GangPlace]:
    """Return the place of each rank: an attempt never moves, so neither do they, whoever has left meanwhile."""
    ranks: dict[str, list[int]] = {}
    for member in sorted(job.members, key=lambda member: member.rank):
        ranks.setdefault(member.node, []).append(member.rank)
    nodes = tuple(ranks)
    first = state.nodes.get(nodes[0])
    address = first.address if first is not None and first.address else LOOPBACK
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


def orders_for(state: State, node: Node, holders: Holders | None = None) -> NodeOrders:
    """Return all that the scheduler wants of `node`, by job and rank; zombies shall end at once."""
    holders = Holders(state) if holders is None else holders
    sandboxes = [_order(state, job, member, holders.place(job, member)) for job, member in holders.on(node.name)]
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
