"""How many simulators a member runs: between `replicas` and `replicas_max`, in room that nobody holds or was promised.

More are started while they work (in the phases in which they need most), once every phase on the node has its maximum.
Fewer are left as soon as others need the room: nobody is suspended for room in which additional simulators are. Those
that are there stay when a phase changes, for whoever leaves loses its episode: they get less CPU first.

What a simulator computes on comes back at once, its memory when it has left. So a job that is to have that memory waits
for it, with the room kept for it. Strict jobs keep the number that they name.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from tidegate_events.events import Quota, Reason
from tidegate_events.spec import Component, JobSpec, component_memory_mib

from tidegate_scheduler.counting import SIMULATORS_LEAVE_NS
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.physical import balance_mib
from tidegate_scheduler.policy.elastic.table import CPU, MEMORY
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.sharing import Seated, quota_millis
from tidegate_scheduler.state import LEAVING_STAGES, Job, Member, State

Shares = dict[tuple[str, int], tuple[Quota, ...]]
"""The quotas of members, by job and rank."""


class Room(msgspec.Struct):
    """What is free on a node for simulators beyond those that are guaranteed."""

    cpu_millis: int
    memory_mib: int

    def take(self, component: Component, phase: str, most: int) -> int:
        """Take room for as many replicas as there is, up to `most`; return how many."""
        cpu_millis = component.range_in(phase).minimum.cpu_millis
        memory_mib = component_memory_mib(component)
        count = most
        if cpu_millis:
            count = min(count, max(0, self.cpu_millis) // cpu_millis)
        if memory_mib:
            count = min(count, max(0, self.memory_mib) // memory_mib)
        self.cpu_millis -= count * cpu_millis
        self.memory_mib -= count * memory_mib
        return count


def room_on(trial: Trial, row: int) -> Room:
    """Return the room on a row that is neither held nor promised, nor awaited by somebody."""
    table = trial.index.table
    now, free_mib = table.now_on(row), int(table.free[MEMORY, row])
    return Room(now[CPU], min(now[MEMORY], free_mib - trial.awaited_mib.get(row, 0)))


def scalable(spec: JobSpec) -> bool:
    """Say whether the number of any of the job's simulators may change."""
    return spec.determinism != "strict" and any(each.replicas_max is not None for each in spec.components)


def kept(spec: JobSpec, member: Member, room: Room) -> tuple[int, ...] | None:
    """Return how many replicas of each component go on: those that are guaranteed, and more as far as there is room.

    None: that is what the job says, always.
    """
    if not scalable(spec):
        return None
    has = {quota.component: quota.replicas for quota in member.quotas}
    return tuple(
        each.replicas + room.take(each, member.phase, max(0, (has.get(each.name) or 0) - each.replicas))
        for each in spec.components
    )


def grown(state: State, room: Room, capacity_millis: int, members: list[Seated], shares: Shares) -> Shares:
    """Return the shares with as many simulators more as there is room for, once all who stay have their maxima."""
    specs, staying = state.specs, [each for each in members if each.has is None]
    growing = [each for each in staying if each.replicas is not None and _runs(state.jobs[each.job], each.rank)]
    if not growing or any(not _has_maximum(specs[m.job], m.phase, shares[m.job, m.rank]) for m in staying):
        return shares
    left_millis = capacity_millis - sum(quota_millis(specs[job], quotas) for (job, _), quotas in shares.items())
    for member in sorted(growing, key=lambda each: (each.order, each.rank)):
        key, spec = (member.job, member.rank), specs[member.job]
        quotas = []
        for component, quota in zip(spec.components, shares[key], strict=True):
            most = left_millis // max(1, quota.cpu_millis) if _at_work(component, member.phase) else 0
            count = quota.replicas or component.replicas
            added = room.take(component, member.phase, max(0, min(most, (component.replicas_max or 0) - count)))
            left_millis -= added * quota.cpu_millis
            quotas.append(msgspec.structs.replace(quota, replicas=count + added) if added else quota)
        shares[key] = tuple(quotas)
    return shares


def _runs(job: Job, rank: int) -> bool:
    return job.stage == "running" and any(each.rank == rank and each.status == "started" for each in job.members)


def _at_work(component: Component, phase: str) -> bool:
    """Say whether this is a phase in which the component may be scaled: one of those in which it needs most."""
    if component.replicas_max is None:
        return False
    needs = [each.minimum.cpu_millis for each in component.resources.values()]
    return component.range_in(phase).minimum.cpu_millis == max(needs)


def _has_maximum(spec: JobSpec, phase: str, quotas: tuple[Quota, ...]) -> bool:
    """Say whether each component has all that the phase lets it have."""
    return all(
        quota.cpu_millis >= component.range_in(phase).ceiling.cpu_millis
        for component, quota in zip(spec.components, quotas, strict=True)
    )


def reasons(spec: JobSpec, before: tuple[Quota, ...], after: tuple[Quota, ...]) -> tuple[Reason, ...]:
    """Say of which components the number changes."""
    had = {quota.component: quota.replicas for quota in before}
    found = []
    for component, quota in zip(spec.components, after, strict=True):
        count, was = quota.replicas or component.replicas, had.get(component.name) or component.replicas
        if count != was:
            code = "SimulatorsAdded" if count > was else "SimulatorsRemoved"
            numbers = {"replicas": count, "before": was, "replicas_max": component.replicas_max or component.replicas}
            found.append(Reason(code=code, detail=component.name, numbers=numbers))
    return tuple(found)


# ---- memory that is still held ----


def unused_mib(trial: Trial, row: int, now_ns: int) -> int:
    """Return the memory of the room on a row that no simulators which were added use, or still use."""
    overhang_mib = min(0, balance_mib(trial.index, row))
    return room_on(trial, row).memory_mib - held(trial.index, row, now_ns)[0] + overhang_mib


def returning(index: Index, row: int, now_ns: int) -> tuple[int, int]:
    """Return the memory that simulators hold on the row which were told to leave, and when it is back (0: unknown)."""
    returns_mib = back_ns = 0
    for job, member in _scaled_on(index, row):
        if job.stage in LEAVING_STAGES:
            returns_mib += member.returns_mib  # its node no longer tells them to: they end with the job
        elif member.returns_ns > now_ns:
            returns_mib += member.returns_mib
            back_ns = max(back_ns, member.returns_ns)
    return returns_mib, back_ns


def held(index: Index, row: int, now_ns: int) -> tuple[int, int]:
    """Return the memory that additional simulators hold on the row, and when it is back if they are told now."""
    held_mib, back_ns = returning(index, row, now_ns)
    for job, member in _scaled_on(index, row):
        if more_mib := additional_mib(index.state.specs[job.id], member.quotas):
            held_mib += more_mib
            back_ns = now_ns + SIMULATORS_LEAVE_NS
    return held_mib, back_ns or now_ns + SIMULATORS_LEAVE_NS


def _scaled_on(index: Index, row: int) -> Iterator[tuple[Job, Member]]:
    jobs, name = index.state.jobs, index.table.names[row]
    for job in (jobs[each] for each in index.scaled.get(row, ())):
        yield from ((job, member) for member in job.members if member.active and member.node == name)


def additional_mib(spec: JobSpec, quotas: tuple[Quota, ...]) -> int:
    """Return the memory of a member's simulators beyond those that are guaranteed."""
    by_name = {quota.component: quota.replicas for quota in quotas}
    return sum(
        max(0, (by_name.get(each.name) or 0) - each.replicas) * component_memory_mib(each) for each in spec.components
    )
