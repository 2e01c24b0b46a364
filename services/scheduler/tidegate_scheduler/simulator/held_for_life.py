"""Jobs as rules see them that grant no phases: each holds the most that any of its phases needs, from placement to end.

Under such rules a job that asks for a phase would wait for an answer that never comes. One that already has its places
keeps them where it is guaranteed as much; one that borrows is guaranteed less, so it gives back what it borrowed,
saves, leaves, and waits for room for all that it needs.
"""

from __future__ import annotations

import msgspec
from tidegate_events import events as e
from tidegate_events.spec import DEFAULT_PHASE, JobSpec, component_memory_mib, phase_need

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.leasing import asks
from tidegate_scheduler.policy.elastic.entries import parted
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, Member, State


def told(spec: JobSpec) -> JobSpec:
    """Return a job that asks for nothing: it tells its phases, and is guaranteed the most that any of them needs."""
    if spec.phase_entry == "told" and not spec.borrows:
        return spec
    return msgspec.structs.replace(spec, phase_entry="told", borrows=False)


def arriving(workload: Workload) -> Workload:
    """Return a workload whose jobs ask for nothing."""
    arrivals = tuple(msgspec.structs.replace(each, spec=told(each.spec)) for each in workload.arrivals)
    return msgspec.structs.replace(workload, arrivals=arrivals)


def quotas(spec: JobSpec) -> tuple[e.Quota, ...]:
    """Return what a member has for good: the CPU of the phase that needs most of it, which is all that it holds."""
    phases = (DEFAULT_PHASE,) if spec.borrows else spec.phases
    widest = max(phases, key=lambda phase: phase_need(spec, phase).cpu_millis)
    return tuple(
        e.Quota(
            component=each.name,
            cpu_millis=each.range_in(widest).minimum.cpu_millis,
            memory_mib=component_memory_mib(each),
        )
        for each in spec.components
    )


def take_over(draft: Draft) -> None:
    """Have all who have their places hold what they are guaranteed and no more, and those leave who borrow."""
    for job in draft.state.jobs.values():
        for member in job.members:
            if member.active and not draft.full:
                _settle(draft, job, member)
    for job in draft.state.jobs.values():
        if borrows(draft.state, job) and job.stage in ("placed", "running") and not draft.full:
            grace = draft.state.specs[job.id].preemption.grace_seconds
            draft.add(
                e.PreemptRequested,
                job,
                e.Reason(code="PhasesEnd", detail="it borrows for its phases, and is granted none any more"),
                attempt=job.attempt,
                grace_seconds=grace,
                deadline_ns=draft.now_ns + grace * SECOND_NS,
                for_job="",
            )


def _settle(draft: Draft, job: Job, member: Member) -> None:
    spec, floor = draft.state.specs[job.id], draft.state.floors[job.id]
    own, has = parted(member)[0] + member.lent_gpus, quotas(spec)
    beyond = member.leased is not None or member.extra is not None or member.lent_gpus or member.lent_millis
    if member.quotas == has and not beyond:
        return
    about = {"gpu_indices": own, "gpu_millis": floor.gpu_millis or None} if asks(spec) else {}
    draft.add(e.QuotaChanged, job, attempt=job.attempt, rank=member.rank, quotas=has, **about)


def borrows(state: State, job: Job) -> bool:
    """Say whether a job is guaranteed less than it needs in some phase."""
    return state.specs[job.id].borrows


def present(state: State) -> dict[str, None]:
    """Have the jobs of a state ask for nothing from now on; return those that do so once they have left only."""
    leaving = {job.id: None for job in state.jobs.values() if not job.waiting and borrows(state, job)}
    for job in list(state.specs):
        if job not in leaving:
            ask_nothing(state, job)
    return leaving


def ask_nothing(state: State, job: str) -> None:
    """Have one job of a state ask for nothing from now on."""
    if (seen := told(spec := state.specs[job])) is not spec:
        state.remember_spec(job, seen)
