"""How a node's CPU is shared among its members as their phases ask; what every policy does alike.

Every replica gets its phase's minimum. What is left, including what other phases were guaranteed and do not need now,
is lent up to the phase's maximum, in the order that the policy gives. CPU comes back at once when a phase changes, so
lending it needs no promise. Memory stays at its largest need.
"""

from __future__ import annotations

import msgspec
from tidegate_events.events import Quota
from tidegate_events.spec import DEFAULT_PHASE, JobSpec, component_memory_mib

from tidegate_scheduler.state import State


class Seated(msgspec.Struct, frozen=True):
    """A member as the sharing sees it; one that is leaving gets no more than it `has`, as far as nobody needs it.

    `replicas` is how many it runs of each component; where it is None, as many as its job says.
    """

    job: str
    rank: int
    phase: str
    order: tuple[int | str, ...]
    has: tuple[Quota, ...] | None = None
    replicas: tuple[int, ...] | None = None


def share(state: State, capacity_millis: int, members: list[Seated]) -> dict[tuple[str, int], tuple[Quota, ...]]:
    """Return the quotas of each member, by (job, rank); the floors fit, so their sum never exceeds the capacity."""
    left = capacity_millis
    seated: list[tuple[Seated, JobSpec, tuple[int, ...], list[int]]] = []
    for member in sorted(members, key=lambda m: (m.has is None, m.order, m.rank)):
        spec = state.specs[member.job]
        counts, granted = member.replicas or _counts(spec), list[int]()
        for component, count in zip(spec.components, counts, strict=True):
            least = component.range_in(member.phase).minimum.cpu_millis
            granted.append(least)
            left -= least * count
        seated.append((member, spec, counts, granted))
    for member, spec, counts, granted in seated:
        had = None if member.has is None else {quota.component: quota.cpu_millis for quota in member.has}
        for index, component in enumerate(spec.components):
            most = component.range_in(member.phase).ceiling.cpu_millis if had is None else had.get(component.name, 0)
            extra = min(most - granted[index], left // counts[index])
            if extra > 0:
                granted[index] += extra
                left -= extra * counts[index]
    return {(member.job, member.rank): _quotas(spec, counts, granted) for member, spec, counts, granted in seated}


def is_fixed(spec: JobSpec) -> bool:
    """Say whether each component's number and CPU are the same in every phase, with nothing to lend or to borrow."""
    return all(each.replicas_max is None for each in spec.components) and all(
        phase.ceiling.cpu_millis == phase.minimum.cpu_millis == component.range_in(DEFAULT_PHASE).minimum.cpu_millis
        for component in spec.components
        for phase in component.resources.values()
    )


def fixed(spec: JobSpec) -> tuple[Quota, ...]:
    """Return the quotas that a member of a job of which `is_fixed` always has."""
    counts = tuple(component.replicas for component in spec.components)
    return _quotas(
        spec, counts, [component.range_in(DEFAULT_PHASE).minimum.cpu_millis for component in spec.components]
    )


def quota_millis(spec: JobSpec, quotas: tuple[Quota, ...]) -> int:
    """Return the CPU of a whole member under `quotas`."""
    by_name = {quota.component: quota for quota in quotas}
    return sum(
        quota.cpu_millis * (quota.replicas or component.replicas)
        for component in spec.components
        if (quota := by_name.get(component.name)) is not None
    )


def _counts(spec: JobSpec) -> tuple[int, ...]:
    return tuple([component.replicas for component in spec.components])


def _quotas(spec: JobSpec, counts: tuple[int, ...], millis: list[int]) -> tuple[Quota, ...]:
    return tuple(
        Quota(
            component=component.name,
            cpu_millis=granted,
            memory_mib=component_memory_mib(component),
            replicas=count if count != component.replicas else None,
        )
        for component, granted, count in zip(spec.components, millis, counts, strict=True)
    )
