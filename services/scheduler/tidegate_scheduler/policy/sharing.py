"""How a node's CPU is shared among its members as their phases ask; what every policy does alike.

Every replica gets its phase's minimum. What is left, including what other phases were guaranteed and do not need now,
is lent up to the phase's maximum, in the order that the policy gives; whose share is raised has so much of it before
the others. CPU comes back at once when a phase changes, so lending it needs no promise. Memory stays at its largest
need, unless members ask for their phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

import msgspec
from tidegate_events.events import Quota
from tidegate_events.spec import DEFAULT_PHASE, Component, JobSpec, component_memory_mib

from tidegate_scheduler.state import State

CPU_MILLIS_MIN = 10
"""What every replica keeps, whatever is taken back: no job asks for less."""


class Seated(msgspec.Struct, frozen=True):
    """A member as the sharing sees it; one that is leaving gets no more than it `has`, as far as nobody needs it.

    `replicas` is how many it runs of each component; where it is None, as many as its job says. `limits` is the memory
    of one replica of each (None: the most that any phase needs), and `own_millis` the CPU that it holds: what its phase
    needs beyond that is leased, and comes back as soon as others need it (None: it holds all that it needs). Of what
    its phase may have beyond the minimum, it gets `raised_permille` before anybody who stays is lent anything.
    """

    job: str
    rank: int
    phase: str
    order: tuple[int | str, ...]
    has: tuple[Quota, ...] | None = None
    replicas: tuple[int, ...] | None = None
    limits: tuple[int, ...] | None = None
    own_millis: int | None = None
    raised_permille: int = 0


_Sharing = tuple[Seated, "Part", tuple[int, ...], list[int]]
"""A member, what its phase may have, how many replicas it runs of each component, and what each was granted."""


def share(state: State, capacity_millis: int, members: list[Seated]) -> dict[tuple[str, int], tuple[Quota, ...]]:
    """Return the quotas of each member, by (job, rank); the floors fit, so their sum never exceeds the capacity."""
    left = capacity_millis
    seated: list[_Sharing] = []
    for member in sorted(members, key=lambda m: (m.has is None, m.order, m.rank)):
        part = part_of(state.specs[member.job], member.phase)
        counts = member.replicas or part.counts
        seated.append((member, part, counts, list(part.least)))
        left -= sum(map(mul, part.least, counts))
    for member, _, counts, granted in reversed(seated) if left < 0 else ():
        left += _cut(member, counts, granted, -left)
    for (member, part, counts, granted), permille in _turns(seated):
        most = part.most
        if member.has is not None:
            had = {quota.component: quota.cpu_millis for quota in member.has}
            most = tuple([had.get(name, 0) for name in part.names])
        elif permille is not None:
            ranges = zip(part.least, most, strict=True)
            most = tuple([least + (each - least) * permille // 1000 for least, each in ranges])
        for index, each in enumerate(most):
            extra = min(each - granted[index], left // counts[index])
            if extra > 0:
                granted[index] += extra
                left -= extra * counts[index]
    return {
        (member.job, member.rank): _quotas(part, counts, granted, member.limits)
        for member, part, counts, granted in seated
    }


def _turns(seated: list[_Sharing]) -> list[tuple[_Sharing, int | None]]:
    """Return who is lent to in turn: who leaves, whose share is raised (only so much of it), then all who stay."""
    turns: list[tuple[_Sharing, int | None]] = [(each, None) for each in seated]
    raised = [(each, each[0].raised_permille) for each in seated if each[0].raised_permille and each[0].has is None]
    if not raised:
        return turns
    leaving = sum(each[0].has is not None for each in seated)
    return [*turns[:leaving], *raised, *turns[leaving:]]


class Part(msgspec.Struct, frozen=True, gc=False):
    """What sharing reads of a specification in one phase, of each component: how much CPU it has from and to.

    `least_millis` is what a member has at least in all, and `more` what it may have beyond that: by position of the
    component, how much more one replica may have, and how many there are.
    """

    spec: JobSpec
    names: tuple[str, ...]
    counts: tuple[int, ...]
    limits: tuple[int, ...]
    least: tuple[int, ...]
    most: tuple[int, ...]
    least_millis: int
    more: tuple[tuple[int, int, int], ...]


PARTS_MAX = 1 << 16
_known: dict[tuple[int, str], Part] = {}
"""By specification, which is one object while its job lives, and phase: many jobs are looked at again and again."""


def part_of(spec: JobSpec, phase: str) -> Part:
    """Return what a member in that phase takes part with."""
    key = (id(spec), phase)
    found = _known.get(key)
    if found is None or found.spec is not spec:
        if len(_known) >= PARTS_MAX:
            _known.clear()
        found = _known[key] = _part(spec, phase)
    return found


def _part(spec: JobSpec, phase: str) -> Part:
    names, counts, limits, least, most, more = [], [], [], [], [], []
    for at, component in enumerate(spec.components):
        need = component.range_in(phase)
        low, high = need.minimum.cpu_millis, need.ceiling.cpu_millis
        names.append(component.name)
        counts.append(component.replicas)
        limits.append(_limit_mib(spec, component))
        least.append(low)
        most.append(high)
        if high > low:
            more.append((at, high - low, component.replicas))
    whole_millis = sum(map(mul, least, counts))
    return Part(spec, tuple(names), tuple(counts), tuple(limits), tuple(least), tuple(most), whole_millis, tuple(more))


def _cut(member: Seated, counts: tuple[int, ...], granted: list[int], short_millis: int) -> int:
    """Take back as much of the leased CPU as is short, from the last components first; return how much it was."""
    if member.own_millis is None:
        return 0
    leased = sum(millis * count for millis, count in zip(granted, counts, strict=True)) - member.own_millis
    wanted, taken = min(short_millis, leased), 0
    for index in reversed(range(len(granted))):
        if taken >= wanted:
            break
        each = min(max(0, granted[index] - CPU_MILLIS_MIN), -(-(wanted - taken) // counts[index]))
        granted[index] -= each
        taken += each * counts[index]
    return taken


def is_fixed(spec: JobSpec) -> bool:
    """Say whether each component's number and CPU are the same in every phase, with nothing to lend or to borrow."""
    if spec.phase_entry == "asked":
        return False
    return all(each.replicas_max is None for each in spec.components) and all(
        phase.ceiling.cpu_millis == phase.minimum.cpu_millis == component.range_in(DEFAULT_PHASE).minimum.cpu_millis
        for component in spec.components
        for phase in component.resources.values()
    )


def fixed(spec: JobSpec) -> tuple[Quota, ...]:
    """Return the quotas that a member of a job of which `is_fixed` always has."""
    part = part_of(spec, DEFAULT_PHASE)
    return part_quotas(part, part.least)


def quota_millis(spec: JobSpec, quotas: tuple[Quota, ...]) -> int:
    """Return the CPU of a whole member under `quotas`."""
    by_name = {quota.component: quota for quota in quotas}
    return sum(
        quota.cpu_millis * (quota.replicas or component.replicas)
        for component in spec.components
        if (quota := by_name.get(component.name)) is not None
    )


def _quotas(
    part: Part, counts: tuple[int, ...], millis: Sequence[int], limits: tuple[int, ...] | None
) -> tuple[Quota, ...]:
    return tuple(
        [
            Quota(component=name, cpu_millis=granted, memory_mib=limit, replicas=count if count != declared else None)
            for name, granted, count, declared, limit in zip(
                part.names, millis, counts, part.counts, limits or part.limits, strict=True
            )
        ]
    )


def _limit_mib(spec: JobSpec, component: Component) -> int:
    """Return the memory that a replica has where its limits do not follow its phases."""
    if spec.borrows:
        return component.range_in(DEFAULT_PHASE).minimum.memory_mib
    return component_memory_mib(component)


# ---- the same for members of whom nothing but their phase decides ----


def lend(capacity_millis: int, parts: list[Part]) -> list[tuple[int, ...]]:
    """Return the CPU of each part by component, as `share` gives it to members who stay, in the order of their turns.

    They run as many replicas as their jobs say, and have no limits or leases of their own.
    """
    left = capacity_millis - sum([part.least_millis for part in parts])
    granted = []
    for part in parts:
        if left <= 0 or not part.more:
            granted.append(part.least)
            continue
        millis = list(part.least)
        for at, most, count in part.more:
            extra = min(most, left // count)
            millis[at] += extra
            left -= extra * count
        granted.append(tuple(millis))
    return granted


def part_quotas(part: Part, millis: tuple[int, ...]) -> tuple[Quota, ...]:
    """Return the quotas of a member to whom `lend` gave that CPU."""
    return tuple(map(_quota, part.names, millis, part.limits))


def _quota(name: str, cpu_millis: int, memory_mib: int) -> Quota:
    return Quota(component=name, cpu_millis=cpu_millis, memory_mib=memory_mib)


def part_millis(part: Part, quotas: tuple[Quota, ...]) -> tuple[int, ...]:
    """Return the CPU with which `part_quotas` returns these quotas; empty where there is none."""
    names, limits = part.names, part.limits
    if len(quotas) != len(names):
        return ()
    for at, quota in enumerate(quotas):
        if quota.component != names[at] or quota.memory_mib != limits[at] or quota.replicas is not None:
            return ()
    return tuple([quota.cpu_millis for quota in quotas])
