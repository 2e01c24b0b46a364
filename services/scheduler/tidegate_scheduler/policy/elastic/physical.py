"""What members that ask for their phases have of a node, beside what they hold of it: memory in MiB, and devices.

A member *holds* its floor and what it was granted beyond it (`extra`). It *has* what the kernel lets it have. Who has
less than it holds lends; who has more has it from those who lend, or from those who lent and have left meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec, phase_need

from tidegate_scheduler.leasing import limits_mib
from tidegate_scheduler.policy.elastic.parts import Part, leased_to
from tidegate_scheduler.state import Job, Member

if TYPE_CHECKING:
    from tidegate_scheduler.policy.elastic.index import Index

Limits = tuple[int, ...]
"""The memory of one replica of each component, in their order."""


class Need(msgspec.Struct, frozen=True):
    """What a member needs in the phase that it is in or goes to; of memory and devices, in both."""

    cpu_millis: int
    gpus: int
    gpu_memory_mib: int
    limits: Limits
    memory_mib: int
    gpu_millis: int

    def beyond(self, floor: Resources) -> Resources:
        """Return what of it the floor does not cover."""
        return Resources(
            max(0, self.cpu_millis - floor.cpu_millis),
            max(0, self.memory_mib - floor.memory_mib),
            max(0, self.gpus - floor.gpus),
            gpu_millis=max(0, self.gpu_millis - floor.gpu_millis),
        )


NEEDS_KNOWN_MAX = 1 << 16
_known: dict[tuple[int, str, str], tuple[JobSpec, Need]] = {}
"""By specification, which is one object while its job lives, and phases: who waits is looked at in each pass."""


def need_of(spec: JobSpec, phase: str, entering: str = "") -> Need:
    """Return what a member needs in `phase`, and while it is `entering` another one."""
    key = (id(spec), phase, entering)
    known = _known.get(key)
    if known is None or known[0] is not spec:
        if len(_known) >= NEEDS_KNOWN_MAX:
            _known.clear()
        known = _known[key] = (spec, _need_of(spec, phase, entering))
    return known[1]


def _need_of(spec: JobSpec, phase: str, entering: str) -> Need:
    phases = (phase, entering) if entering else (phase,)
    needs = [phase_need(spec, each) for each in phases]
    limits = tuple(max(each.range_in(name).minimum.memory_mib for name in phases) for each in spec.components)
    return Need(
        needs[-1].cpu_millis,
        max(need.gpus for need in needs),
        max(need.gpu_memory_mib for need in needs),
        limits,
        sum(mib * each.replicas for mib, each in zip(limits, spec.components, strict=True)),
        max(need.gpu_millis for need in needs),
    )


def has_mib(spec: JobSpec, member: Member) -> int:
    """Return the memory that the member has, by the limits that the kernel holds for it."""
    return max(limits_mib(spec, member.quotas), member.held_mib)


def holds_mib(floor: Resources, member: Member) -> int:
    """Return the memory that is the member's own."""
    return floor.memory_mib + (member.extra.memory_mib if member.extra is not None else 0)


def asking_on(index: Index, row: int) -> Iterator[tuple[Job, Member]]:
    """Yield the members on a row that ask for their phases, in the order of their submission."""
    jobs, name = index.state.jobs, index.table.names[row]
    there = [jobs[each] for each in index.asking.on_row.get(row, ())]
    for job in sorted(there, key=lambda job: (job.submitted_seq, job.id)):
        yield from ((job, member) for member in job.members if member.active and member.node == name)


def balance_mib(index: Index, row: int) -> int:
    """Return the memory that members on the row lend, less what others have beyond their own."""
    state = index.state
    return sum(
        holds_mib(state.floors[job.id], member) - has_mib(state.specs[job.id], member)
        for job, member in asking_on(index, row)
    )


def surplus(index: Index, job: Job, member: Member) -> tuple[int, tuple[Part, ...]]:
    """Return the memory that the member has beyond its own, and what is leased to it of devices."""
    more_mib = has_mib(index.state.specs[job.id], member) - holds_mib(index.state.floors[job.id], member)
    return max(0, more_mib), leased_to(member)
