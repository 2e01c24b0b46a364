"""What is counted as events are folded: what nodes are blamed for, why jobs left, moves against fragmentation."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.spec import component_memory_mib

from tidegate_scheduler.state import (
    FAILURES_KEPT,
    LEAVING_STAGES,
    MOVED_WITHIN_NS,
    MOVES_KEPT,
    Exit,
    Job,
    Member,
    NodeFailure,
    State,
)

DEFRAGMENTATION = "Defragmentation"
MORE_WORK_LEFT = "MoreWorkLeft"
SIMULATORS_LEAVE_NS = 15_000_000_000
"""How long a simulator that is told to leave may hold its memory: its node kills it after 10 s, plus the way there."""


def lose_member(state: State, job: Job, member: Member, why: str, at_ns: int) -> None:
    """Count a member as lost by infrastructure; its room is free because its node no longer has it."""
    member.status = "lost"
    member.exit = Exit(detail=why)
    job.revision += 1
    state.touch(f"job/{job.id}")
    blame(state, member.node, job, at_ns, with_node=True)


def blame(state: State, name: str, job: Job, at_ns: int, *, with_node: bool = False) -> None:
    """Note that an attempt of `job` came to grief on the node; those it is blamed for count once per attempt."""
    node = state.nodes.get(name)
    if node is None or not state.elastic or any((f.job, f.attempt) == (job.id, job.attempt) for f in node.failures):
        return
    # Its writer's clock may be behind the scheduler's time, in which the policy counts.
    failure = NodeFailure(job.id, job.attempt, max(at_ns, state.header.now_ns), with_node)
    node.failures = [*node.failures, failure][-FAILURES_KEPT:]
    state.touch(f"node/{name}")


def count_move(state: State, event: e.PreemptRequested) -> None:
    """Note a move against fragmentation, of which there may be only so many in an hour."""
    if state.elastic and event.reasons and event.reasons[0].code == DEFRAGMENTATION:
        recent = [at_ns for at_ns in state.header.moved_ns if at_ns > event.at_ns - MOVED_WITHIN_NS]
        state.header.moved_ns = [*recent, event.at_ns][-MOVES_KEPT:]
        state.touch("header")


def count_preemption(state: State, job: Job, event: e.PreemptRequested) -> None:
    """Count that the job left for another one, and whether that was one of its own priority with less work left."""
    job.preemptions += 1
    if state.elastic and event.reasons and event.reasons[0].code == MORE_WORK_LEFT:
        job.slices += 1


def count_returning(state: State, job: Job, member: Member, event: e.QuotaChanged) -> None:
    """Note the memory of simulators that are told to leave by new quotas, which they hold for a while."""
    if not any(quota.replicas for quota in member.quotas):
        return  # it never had more than the spec says
    spec, quotas, at_ns = state.specs[job.id], event.quotas, event.at_ns
    has = {quota.component: quota.replicas for quota in member.quotas}
    shall = {quota.component: quota.replicas for quota in quotas}
    returning_mib = sum(
        max(0, (has.get(each.name) or each.replicas) - (shall.get(each.name) or each.replicas))
        * component_memory_mib(each)
        for each in spec.components
    )
    if returning_mib:
        earlier_mib = member.returns_mib if member.returns_ns > at_ns or job.stage in LEAVING_STAGES else 0
        member.returns_mib, member.returns_ns = earlier_mib + returning_mib, at_ns + SIMULATORS_LEAVE_NS


def forget_returned(job: Job, at_ns: int) -> None:
    """Drop what is back when the job begins to leave: what is not may stay until it has left."""
    for member in job.members:
        if member.returns_ns <= at_ns:
            member.returns_mib = member.returns_ns = 0
