"""What each node shall do, derived from the folded state: only decisions that survived folding become orders."""

from __future__ import annotations

from typing import Literal

from tidegate_events.orders import NodeOrders, SandboxOrder

from tidegate_scheduler.state import Job, Member, Node, State

_DESIRED: dict[str, Literal["run", "suspend", "stop"]] = {
    "placed": "run",
    "running": "run",
    "preempting": "suspend",
    "stopping": "stop",
}


def orders_for(state: State, node: Node) -> NodeOrders:
    """Return all that the scheduler wants of `node`, by job and rank; zombies shall end at once."""
    sandboxes = [
        _order(state, job, member)
        for _, job in sorted(state.jobs.items())
        for member in job.members
        if member.active and member.node == node.name
    ]
    for zombie in node.zombies:
        spec = state.specs.get(zombie.job)
        if spec is not None:
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
