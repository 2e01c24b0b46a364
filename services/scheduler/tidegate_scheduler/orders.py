"""What each node shall do, derived from the folded state: only decisions that survived folding become orders."""

from __future__ import annotations

from typing import Literal

import msgspec
from tidegate_events.orders import NodeOrders, SandboxOrder, encode
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


def orders_for(state: State, node: Node) -> NodeOrders:
    """Return all that the scheduler wants of `node`, by job and rank; zombies shall end at once."""
    sandboxes = [
        _order(state, job, member)
        for _, job in sorted(state.jobs.items())
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
    )


def in_parts(orders: NodeOrders) -> list[NodeOrders]:
    """Return `orders` in messages that the bus takes; what a part does not mention is left alone, so parts are safe."""
    if len(orders.sandboxes) <= 1 or len(encode(orders)) <= MESSAGE_BYTES_MAX:
        return [orders]
    middle = len(orders.sandboxes) // 2
    halves = (orders.sandboxes[:middle], orders.sandboxes[middle:])
    return [part for half in halves for part in in_parts(msgspec.structs.replace(orders, sandboxes=half))]


def _order(state: State, job: Job, member: Member) -> SandboxOrder:
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
    )
