"""What is folded of phases that are asked for: who waits for which, who may enter it, and what is lent or leased.

Only members of jobs whose `phase_entry` is `asked` are touched, so histories without such jobs keep their digests.
"""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec, phase_need

from tidegate_scheduler.recall_changes import count_recall
from tidegate_scheduler.state import Job, Member, State

SILENT_NAMED = 8
"""Members of a gang that are named for not having asked; there may be more."""


def asks(spec: JobSpec) -> bool:
    """Say whether the job's members ask before they enter a phase."""
    return spec.phase_entry == "asked"


def limits_mib(spec: JobSpec, quotas: tuple[e.Quota, ...]) -> int:
    """Return the memory that a member may have under `quotas`, simulators beyond the guaranteed ones not counted."""
    by_name = {quota.component: quota.memory_mib for quota in quotas}
    return sum(by_name.get(each.name, 0) * each.replicas for each in spec.components)


def share_millis(floor: Resources, member: Member) -> int:
    """Return the share of one device that a member has: of its floor what it does not lend, and what is beyond."""
    more = sum(part.gpu_millis for part in (member.extra, member.leased) if part is not None)
    return floor.gpu_millis - member.lent_millis + more


def on_placed(state: State, job: Job) -> None:
    """Take it that members have all that they are guaranteed until their kernels say what limits they began with.

    Where a node enforces none they do have it, and until they say so nobody knows.
    """
    spec, floor_mib = state.specs[job.id], state.floors[job.id].memory_mib
    if state.elastic and asks(spec):
        for member in job.members:
            member.held_mib = floor_mib if floor_mib > limits_mib(spec, member.quotas) else 0


def on_phase_changed(state: State, event: e.PhaseChanged, at: str) -> None:
    """Note the phase that the member is in; with it ends what it asked for."""
    found = _active(state, event, event.rank)
    if found is None:
        return
    job, member = found
    if member.phase == event.phase and not member.wanted:
        return
    member.phase = event.phase
    member.wanted = member.granted = ""
    member.wanted_ns = 0
    job.cause = at
    state.touch(f"job/{job.id}")


def on_phase_requested(state: State, event: e.PhaseRequested, at: str) -> None:
    """Note that the member waits for a phase, or no longer; a grant of another phase is void then."""
    found = _asking(state, event, event.rank)
    if found is None or (found[1].wanted == event.phase and found[1].granted in ("", event.phase)):
        return
    job, member = found
    member.wanted = event.phase
    # Its writer's clock may be behind the scheduler's time, in which the policy counts.
    member.wanted_ns = max(event.at_ns, state.header.now_ns) if event.phase else 0
    if member.granted != event.phase:
        member.granted = ""
    job.cause = at
    state.touch(f"job/{job.id}")


def on_shrink_refused(state: State, event: e.ShrinkRefused, at: str) -> None:
    """Note what the kernel did not take back, which nobody else can have."""
    found = _asking(state, event, event.rank)
    if found is None or found[1].node != event.node:
        return
    job, member = found
    _holds(state, job, member, event.quotas, at)


def on_quota_applied(state: State, event: e.QuotaApplied, at: str) -> None:
    """Note that the kernel holds lower limits now: what is above them is there for others.

    Where nothing enforces limits no memory is given back, and in each phase a member has all that it is guaranteed.
    """
    found = _asking(state, event, event.rank)
    if found is None or found[1].node != event.node:
        return
    job, member = found
    if not event.enforced:
        floor_mib = state.floors[job.id].memory_mib
        if floor_mib > max(member.held_mib, limits_mib(state.specs[job.id], member.quotas)):
            member.held_mib = floor_mib
            job.cause = at
            state.touch(f"job/{job.id}")
    elif member.held_mib:
        _holds(state, job, member, event.quotas, at)


def _holds(state: State, job: Job, member: Member, quotas: tuple[e.Quota, ...], at: str) -> None:
    spec = state.specs[job.id]
    held_mib = limits_mib(spec, quotas)
    held_mib = held_mib if held_mib > limits_mib(spec, member.quotas) else 0
    if held_mib == member.held_mib:
        return
    member.held_mib = held_mib
    _handed_back(state, job, member, member.quotas)
    job.cause = at
    state.touch(f"job/{job.id}")


def change_terms(state: State, job: Job, member: Member, event: e.QuotaChanged) -> None:
    """Take over what a decision says beside the quotas, before these are the member's; the kernel follows later."""
    spec = state.specs[job.id]
    if not asks(spec):
        return
    held_mib = max(member.held_mib, limits_mib(spec, member.quotas))
    member.held_mib = held_mib if held_mib > limits_mib(spec, event.quotas) else 0
    if event.gpu_indices is not None:
        floor = state.floors[job.id]
        own = event.gpu_indices[: len(event.gpu_indices) - (event.leased.gpus if event.leased else 0)]
        known = (*member.gpu_indices, *member.lent_gpus)
        lent = tuple(index for index in known if index not in event.gpu_indices)
        member.lent_gpus = lent[: max(0, (floor.gpus or bool(floor.gpu_millis)) - len(own))]
        member.gpu_indices = event.gpu_indices
    if (event.leased or event.extra) and event.phase and event.phase != member.granted:
        member.leased_ns = event.at_ns
    keeps = member.leased is None and member.extra is not None and event.extra == member.extra
    member.leased, member.extra = event.leased, event.extra
    if event.gpu_millis is not None:
        member.lent_millis = 0
        member.lent_millis = max(0, share_millis(state.floors[job.id], member) - event.gpu_millis)
    member.granted = event.phase if event.phase == member.wanted else ""  # it may have thought better of it meanwhile
    if not keeps:
        _handed_back(state, job, member, event.quotas)


def on_hand_back_requested(state: State, event: e.HandBackRequested, at: str) -> None:
    """Note by when the member shall have left its leased phase; who has nothing beyond its floor has handed it back.

    It may have done so while the recall was decided, and no fact would come that ends it.
    """
    job = state.jobs.get(event.job)
    if job is None or job.attempt != event.attempt:
        return
    for member in job.members:
        if member.rank != event.rank or not member.active:
            continue
        if not event.deadline_ns or member.extra is not None or _has_others(state, job, member, member.quotas):
            member.hand_back_ns, member.hand_back_for = event.deadline_ns, event.for_job
            if event.deadline_ns:
                count_recall(member, event.at_ns)
            job.cause = at
            state.touch(f"job/{job.id}")


def on_hand_back_failed(state: State, event: e.HandBackFailed, at: str) -> None:
    """The recall is over now: waiting for its deadline would bring nothing."""
    found = _asking(state, event, event.rank)
    if found is None or found[1].hand_back_ns <= state.header.now_ns:
        return
    job, member = found
    member.hand_back_ns = max(1, state.header.now_ns)
    job.cause = at
    state.touch(f"job/{job.id}")


def waits_for_phase(state: State, job: Job) -> tuple[e.Reason, ...]:
    """Say which phases members of a running job wait for, and what they lack."""
    spec, found = state.specs[job.id], []
    for member in job.members:
        if not member.active or not member.wanted or member.granted == member.wanted:
            continue
        need = phase_need(spec, member.wanted)
        numbers = {
            "rank": member.rank,
            "memory_mib_needed": max(0, need.memory_mib - limits_mib(spec, member.quotas)),
            "gpus_needed": max(0, need.gpus - len(member.gpu_indices)),
        }
        if need.gpu_millis:
            more_millis = need.gpu_millis - share_millis(state.floors[job.id], member)
            numbers["gpu_millis_needed"] = max(0, more_millis)
        told = [
            (each.hand_back_ns, other.id)
            for other in state.seats.on(member.node)
            for each in other.members
            if each.active and each.node == member.node and each.hand_back_for == job.id
        ]
        detail = f"waits to enter {member.wanted}"
        if told:
            numbers["hand_back_ns"] = max(told)[0]
            detail += f"; {', '.join(sorted({name for _, name in told}))} shall hand back what is leased"
        if any(numbers.get(name) for name in ("memory_mib_needed", "gpus_needed", "gpu_millis_needed")):
            left = sorted({each.job for each in state.nodes[member.node].zombies})
            detail += f"; sandboxes that were given up must end first: {', '.join(left[:SILENT_NAMED])}" if left else ""
        if silent := _silent(spec, job, member, state.floors[job.id]):
            detail += (
                f"; its gang is granted it together, and these ranks have not asked yet: {', '.join(map(str, silent))}"
            )
        found.append(e.Reason(code="PhaseAsked", detail=detail, numbers=numbers))
    return tuple(found)


def _silent(spec: JobSpec, job: Job, member: Member, floor: Resources) -> list[int]:
    """Return the first members of a gang for whose asking one that asks for more than its floor waits."""
    need = phase_need(spec, member.wanted)
    amounts = ("cpu_millis", "memory_mib", "gpus", "gpu_millis")
    if all(getattr(need, amount) <= getattr(floor, amount) for amount in amounts):
        return []
    waited_for = (each for each in job.members if each.active and not (each.wanted or each.leased or each.extra))
    return [each.rank for each in waited_for][:SILENT_NAMED]


def _handed_back(state: State, job: Job, member: Member, quotas: tuple[e.Quota, ...]) -> None:
    """Forget what was asked back when the member has nothing any more that belongs to others."""
    if not _has_others(state, job, member, quotas):
        member.hand_back_ns, member.hand_back_for = 0, ""


def _has_others(state: State, job: Job, member: Member, quotas: tuple[e.Quota, ...]) -> bool:
    """Say whether the member has what belongs to others: leased, kept by its kernel, or between two phases."""
    own_mib = state.floors[job.id].memory_mib + (member.extra.memory_mib if member.extra is not None else 0)
    has_mib = max(member.held_mib, limits_mib(state.specs[job.id], quotas))
    return member.leased is not None or has_mib > own_mib


def _asking(state: State, event: e.AttemptEvent, rank: int) -> tuple[Job, Member] | None:
    """Return the active member of a job that asks for its phases; None where the fact speaks of no such one."""
    found = _active(state, event, rank)
    return found if found is not None and state.elastic and asks(state.specs[found[0].id]) else None


def _active(state: State, event: e.AttemptEvent, rank: int) -> tuple[Job, Member] | None:
    """Return the active member that a fact speaks of; None when it speaks of another attempt."""
    job = state.jobs.get(event.job)
    if job is None or job.attempt != event.attempt:
        return None
    return next(((job, member) for member in job.members if member.rank == rank and member.active), None)
