"""Stage 5, resize: share each node's CPU among its members as their phases ask.

Every replica gets its phase's minimum. What is left, including what other phases were guaranteed and do not need now,
is lent up to the phase's maximum, by priority and then by submission. CPU comes back at once when a phase changes, so
lending it needs no promise. Memory stays at its largest need.
"""

from __future__ import annotations

import msgspec
from tidegate_events.events import Quota
from tidegate_events.spec import JobSpec, component_memory_mib

from tidegate_scheduler.policy.queue import rank
from tidegate_scheduler.state import Job, State


class Seated(msgspec.Struct, frozen=True):
    """A member as the sharing sees it; `fixed` members are leaving and keep what they have."""

    job: str
    rank: int
    phase: str
    order: tuple[int, int, str]
    fixed: tuple[Quota, ...] | None = None


def seated(job: Job, member_rank: int, phase: str, fixed: tuple[Quota, ...] | None = None) -> Seated:
    """Return the member of `job` for sharing."""
    return Seated(job.id, member_rank, phase, rank(job), fixed)


def share(state: State, capacity_millis: int, members: list[Seated]) -> dict[tuple[str, int], tuple[Quota, ...]]:
    """Return the quotas of each member that is not fixed, by (job, rank); their sum never exceeds the capacity."""
    left = capacity_millis
    millis: dict[tuple[str, int], list[int]] = {}
    open_members = sorted((m for m in members if m.fixed is None), key=lambda m: (m.order, m.rank))
    for member in members:
        if member.fixed is not None:
            left -= quota_millis(state.specs[member.job], member.fixed)
    for member in open_members:
        spec = state.specs[member.job]
        minima = [component.range_in(member.phase).minimum.cpu_millis for component in spec.components]
        millis[member.job, member.rank] = minima
        left -= sum(least * component.replicas for least, component in zip(minima, spec.components, strict=True))
    for member in open_members:
        spec = state.specs[member.job]
        granted = millis[member.job, member.rank]
        for index, component in enumerate(spec.components):
            wanted = component.range_in(member.phase).ceiling.cpu_millis - granted[index]
            extra = max(0, min(wanted, left // component.replicas))
            granted[index] += extra
            left -= extra * component.replicas
    return {key: _quotas(state.specs[key[0]], granted) for key, granted in millis.items()}


def quota_millis(spec: JobSpec, quotas: tuple[Quota, ...]) -> int:
    """Return the CPU of a whole member under `quotas`."""
    by_name = {quota.component: quota.cpu_millis for quota in quotas}
    return sum(by_name.get(component.name, 0) * component.replicas for component in spec.components)


def _quotas(spec: JobSpec, millis: list[int]) -> tuple[Quota, ...]:
    return tuple(
        Quota(component=component.name, cpu_millis=granted, memory_mib=component_memory_mib(component))
        for component, granted in zip(spec.components, millis, strict=True)
    )
