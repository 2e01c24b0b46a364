"""Policy v1 as a whole: its stages in their order, on one draft."""

from __future__ import annotations

import msgspec
from tidegate_events import events as e
from tidegate_events.spec import DEFAULT_PHASE

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy import sharing
from tidegate_scheduler.policy.first import fit, queue
from tidegate_scheduler.policy.first.preempt import plan_preemption, plan_relief
from tidegate_scheduler.policy.first.room import Room
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.policy.settle import settle
from tidegate_scheduler.state import LEAVING_STAGES, Job, Member, Node, State

_Placement = tuple[Job, tuple[fit.Seat, ...]]
_Shares = dict[tuple[str, int], tuple[e.Quota, ...]]
_Change = tuple[Job, Member, tuple[e.Quota, ...]]


class Turn(msgspec.Struct, frozen=True):
    """What a waiting job meets when its turn comes: the room that is left, and who closed which node before it."""

    room: Room
    closed: dict[str, Job]


def decide(draft: Draft) -> None:
    """Fill the draft."""
    settle(draft)
    room = Room(draft.state, draft.leaving)
    _relieve(draft, room)
    placements = _place_waiting(draft, room, {})
    _resize(draft, placements)


def turn_of(draft: Draft, job: str) -> Turn:
    """Return what `job` meets in the pass that `decide` would make of the same draft; for explanations."""
    settle(draft)
    turn = Turn(Room(draft.state, draft.leaving), {})
    _relieve(draft, turn.room)
    _place_waiting(draft, turn.room, turn.closed, before=job)
    return turn


def _place_waiting(draft: Draft, room: Room, closed: dict[str, Job], before: str = "") -> list[_Placement]:
    """Seat the waiting jobs in order, up to the job `before` where there is one.

    A blocked one closes the nodes it waits for to those behind it.
    """
    state = draft.state
    suitable = fit.Suitable(state)
    placements: list[_Placement] = []
    for job in queue.in_order(draft):
        if job.id == before or not draft.has_room_for(len(placements) + 1):
            break
        nodes = suitable.eligible(job)
        open_nodes = [node for node in nodes if _is_open(node, job, closed)] if closed else nodes
        seats = fit.seat_gang(state, job, open_nodes, room.all_now_for(job, open_nodes).__getitem__)
        if seats is not None:
            room.withdraw(job)
            for seat in seats:
                room.place(job, seat.node, seat.gpu_indices)
            placements.append((job, seats))
        elif suitable.hopeless(job) and _reject_overdue(draft, job):
            room.withdraw(job)
        elif not suitable.holds_gang(job, nodes):
            _wait_for_nodes(draft, job, room)
        elif not open_nodes:
            ahead = closed[nodes[0].name].id
            draft.waiting[job.id] = e.Reason(code="Priority", detail=f"{ahead} is in front")
        else:
            _block(draft, job, open_nodes, room, closed)
    return placements


def _is_open(node: Node, job: Job, closed: dict[str, Job]) -> bool:
    """Say whether `job` may look for room on the node: a closed one is for those in front.

    Room that was promised to `job` is the exception, unless one of higher priority is in front: nobody else may take
    it, so a closed door before it would keep both out.
    """
    ahead = closed.get(node.name)
    return ahead is None or (node.name in job.reserved_nodes and ahead.priority == job.priority)


def _wait_for_nodes(draft: Draft, job: Job, room: Room) -> None:
    """Let a job wait that the nodes that are up could not even hold when empty: it holds nobody up meanwhile."""
    room.withdraw(job)
    draft.waiting[job.id] = e.Reason(code="NoNode", detail="the nodes that are up could not hold it, were they empty")
    if job.reserved_nodes:
        draft.add(e.RoomReserved, job, e.Reason(code="Released", detail="its nodes are away"), nodes=())


def _block(draft: Draft, job: Job, nodes: list[Node], room: Room, closed: dict[str, Job]) -> None:
    """Make room for a job that does not fit now by preemption, or let it wait with its nodes closed behind it."""
    plan = plan_preemption(draft.state, job, nodes, room, draft.leaving)
    draft.waiting[job.id] = _shortage(draft.state, job, nodes, room)
    room.withdraw(job)
    if plan is None:
        if job.reserved_nodes:
            draft.add(e.RoomReserved, job, e.Reason(code="Released", detail="preemption cannot help"), nodes=())
        for node in nodes:
            closed.setdefault(node.name, job)
        return
    for name in plan.nodes:
        room.promise(job, name)
    if plan.nodes != job.reserved_nodes:
        draft.add(e.RoomReserved, job, draft.waiting[job.id], nodes=plan.nodes)
    for victim_id in plan.victims:
        if draft.full:
            break  # the next pass asks the others
        _preempt(draft, draft.state.jobs[victim_id], job, plan.candidates)
    if plan.victims or plan.nodes:
        numbers = draft.waiting[job.id].numbers
        draft.waiting[job.id] = e.Reason(
            code="Reserved", detail=f"waits for jobs to leave {', '.join(sorted(set(plan.nodes)))}", numbers=numbers
        )


def _relieve(draft: Draft, room: Room) -> None:
    """Ask jobs to leave nodes that came back smaller than what they hold."""
    for name in room.overfull():
        node = draft.state.nodes[name]
        for victim in plan_relief(draft.state, node, draft.leaving) if node.status == "up" else ():
            if draft.full:
                return
            detail = f"{name} came back smaller than what it holds"
            draft.ask_to_leave(victim, e.Reason(code="NodeShrank", detail=detail))


def _preempt(draft: Draft, victim: Job, for_job: Job, candidates: int) -> None:
    reason = e.Reason(
        code="LowerPriority",
        detail=f"{for_job.id} has priority {for_job.priority}, {victim.id} has {victim.priority}",
        numbers={"priority": victim.priority, "for_priority": for_job.priority, "candidates": candidates},
    )
    draft.ask_to_leave(victim, reason, for_job.id)


def _reject_overdue(draft: Draft, job: Job) -> bool:
    """Reject a job that the cluster cannot hold, once it has waited for other nodes to join; say whether it was."""
    state = draft.state
    if not state.nodes or job.attempt > 0:
        return False
    due_ns = job.submitted_ns + draft.parameters.inadmissible_after_seconds * SECOND_NS
    if draft.now_ns < due_ns:
        draft.wake_by(due_ns)
        return False
    floor = state.floors[job.id]
    numbers = {"cpu_millis": floor.cpu_millis, "memory_mib": floor.memory_mib, "gpus": floor.gpus}
    detail = "larger than the cluster, or no node offers its isolation level or image"
    draft.add(e.JobRejected, job, e.Reason(code="Inadmissible", detail=detail, numbers=numbers))
    return True


def _shortage(state: State, job: Job, nodes: list[Node], room: Room) -> e.Reason:
    """Say what is short on the node that comes nearest."""
    need = state.floors[job.id]
    best = max(
        (room.now_for(job, node.name) for node in nodes), key=lambda s: (s.gpu_count, s.cpu_millis, s.memory_mib)
    )
    numbers = {
        "cpu_millis_needed": need.cpu_millis,
        "cpu_millis_free": best.cpu_millis,
        "memory_mib_needed": need.memory_mib,
        "memory_mib_free": best.memory_mib,
    }
    if need.gpus:
        numbers |= {"gpus_needed": need.gpus, "gpus_free": best.gpu_count}
    return e.Reason(code="Resources", numbers=numbers)


def _resize(draft: Draft, placements: list[_Placement]) -> None:
    """Share every node's CPU among those who are there and those who come, and decide what differs.

    Who gets less comes first, then who is placed, then who gets more: wherever a full pass is cut off, what was decided
    fits. The rest follows in the next pass, which comes to the same shares.
    """
    shares = _shares(draft, placements)
    less: list[_Change] = []
    more: list[_Change] = []
    for job in draft.state.jobs.values():
        for member in job.members:
            quotas = shares.get((job.id, member.rank)) if member.active else None
            if quotas is not None and quotas != member.quotas:
                spec = draft.state.specs[job.id]
                grows = sharing.quota_millis(spec, quotas) > sharing.quota_millis(spec, member.quotas)
                (more if grows else less).append((job, member, quotas))
    for change in less:
        if draft.full:
            return
        _add_quota(draft, change)
    for job, seats in placements:
        if draft.full:
            return
        _add_placement(draft, job, seats, shares)
    for change in more:
        if draft.full:
            return
        _add_quota(draft, change)


def _shares(draft: Draft, placements: list[_Placement]) -> _Shares:
    state = draft.state
    shares: _Shares = {}
    coming: dict[str, list[sharing.Seated]] = {}
    for job, seats in placements:
        for member_rank, seat in enumerate(seats):
            coming.setdefault(seat.node, []).append(_seated(job, member_rank, DEFAULT_PHASE))
    there: dict[str, list[sharing.Seated]] = {}
    for job in state.jobs.values():
        leaves = job.stage in LEAVING_STAGES or job.id in draft.leaving
        for member in job.members:
            if member.active:
                entry = _seated(job, member.rank, member.phase, member.quotas if leaves else None)
                there.setdefault(member.node, []).append(entry)
    for name, node in sorted(state.nodes.items()):
        members = there.get(name, []) + coming.get(name, [])
        shares |= sharing.share(state, node.capacity.cpu_millis, members)
    return shares


def _seated(job: Job, member_rank: int, phase: str, has: tuple[e.Quota, ...] | None = None) -> sharing.Seated:
    return sharing.Seated(job.id, member_rank, phase, queue.rank(job), has)


def _add_quota(draft: Draft, change: _Change) -> None:
    job, member, quotas = change
    draft.add(e.QuotaChanged, job, attempt=job.attempt, rank=member.rank, quotas=quotas)


def _add_placement(draft: Draft, job: Job, seats: tuple[fit.Seat, ...], shares: _Shares) -> None:
    members = tuple(
        e.MemberPlacement(
            rank=member_rank,
            node=seat.node,
            incarnation=draft.state.nodes[seat.node].incarnation,
            quotas=shares[job.id, member_rank],
            gpu_indices=seat.gpu_indices,
        )
        for member_rank, seat in enumerate(seats)
    )
    reason = e.Reason(code="Fits", detail=f"first in line on {', '.join(sorted({seat.node for seat in seats}))}")
    draft.add(e.JobPlaced, job, reason, attempt=job.attempt + 1, members=members, resume=job.newest_checkpoint)
