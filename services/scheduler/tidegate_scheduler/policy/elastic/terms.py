"""What a member that asks for its phases has, and on which terms: the phase it may enter, its limits, its devices."""

from __future__ import annotations

import msgspec
from tidegate_events.events import Reason
from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE, JobSpec

from tidegate_scheduler.policy.elastic.entries import parted
from tidegate_scheduler.policy.elastic.physical import Limits, Need, need_of
from tidegate_scheduler.state import Member


class Terms(msgspec.Struct, frozen=True):
    """All that a change of quotas says beside CPU. The devices are those of the floor, then other own, then leased."""

    granted: str
    limits: Limits
    gpu_indices: tuple[int, ...]
    leased: Resources | None = None
    extra: Resources | None = None

    def differ(self, member: Member) -> bool:
        """Say whether the member has other ones."""
        mine = (self.granted, self.gpu_indices, self.leased, self.extra)
        return mine != (member.granted, member.gpu_indices, member.leased, member.extra)


class Devices(msgspec.Struct, frozen=True):
    """The devices that a member has: of its floor, beyond that its own, leased."""

    floor: tuple[int, ...]
    extra: tuple[int, ...]
    leased: tuple[int, ...]


def devices_of(member: Member) -> Devices:
    """Return the member's devices by whose they are."""
    own, leased = parted(member)
    count = len(own) - (member.extra.gpus if member.extra is not None else 0)
    return Devices(own[:count], own[count:], leased)


def as_they_are(spec: JobSpec, member: Member) -> Terms:
    """Return the terms that the member has."""
    return Terms(member.granted, _limits(spec, member), member.gpu_indices, member.leased, member.extra)


def settled(spec: JobSpec, floor: Resources, member: Member) -> Terms:
    """Return the terms without what the member's phase does not need any more; it never gets more by them."""
    need = need_of(spec, member.phase, member.granted)
    beyond = need.beyond(floor)
    extra = _lesser(member.extra, beyond)
    leased = _lesser(member.leased, _less(beyond, extra))
    devices = devices_of(member)
    return Terms(
        granted=member.granted,
        limits=tuple(min(have, want) for have, want in zip(_limits(spec, member), need.limits, strict=True)),
        gpu_indices=(
            devices.floor[: need.gpus]
            + devices.extra[: extra.gpus if extra is not None else 0]
            + devices.leased[: leased.gpus if leased is not None else 0]
        ),
        leased=leased,
        extra=extra,
    )


def wish(spec: JobSpec, member: Member) -> str:
    """Return the phase that the member waits for, empty where it waits for none.

    One that is in a phase which it did not ask for waits for what that phase needs.
    """
    if member.wanted and member.wanted != member.granted:
        return member.wanted
    need = need_of(spec, member.phase)
    short = any(have < want for have, want in zip(_limits(spec, member), need.limits, strict=True))
    return member.phase if not member.wanted and (short or len(member.gpu_indices) < need.gpus) else ""


def wanted_need(spec: JobSpec, member: Member, phase: str) -> Need:
    """Return what the member must have to enter the phase: until it has, it keeps what it has."""
    need = need_of(spec, phase)
    limits = tuple(max(have, want) for have, want in zip(_limits(spec, member), need.limits, strict=True))
    memory_mib = sum(mib * each.replicas for mib, each in zip(limits, spec.components, strict=True))
    return msgspec.structs.replace(
        need, gpus=max(len(member.gpu_indices), need.gpus), limits=limits, memory_mib=memory_mib
    )


def first_limits(spec: JobSpec) -> Limits | None:
    """Return the limits with which a member begins; None where they do not follow its phases."""
    return need_of(spec, DEFAULT_PHASE).limits if spec.phase_entry == "asked" else None


def own_millis(floor: Resources, terms: Terms) -> int:
    """Return the CPU that a member holds."""
    return floor.cpu_millis + (terms.extra.cpu_millis if terms.extra is not None else 0)


def phase_reasons(member: Member, terms: Terms) -> tuple[Reason, ...]:
    """Say which phase a member may enter, and what of it is leased."""
    if not terms.granted or terms.granted == member.granted:
        return ()
    leased = terms.leased or Resources()
    numbers = {"leased_mib": leased.memory_mib, "leased_gpus": leased.gpus, "leased_millis": leased.cpu_millis}
    return (Reason(code="PhaseGranted", detail=terms.granted, numbers=numbers),)


def _limits(spec: JobSpec, member: Member) -> Limits:
    by_name = {quota.component: quota.memory_mib for quota in member.quotas}
    return tuple(by_name.get(each.name, 0) for each in spec.components)


def _lesser(have: Resources | None, most: Resources) -> Resources | None:
    """Return what there is, but no more than `most`."""
    if have is None:
        return None
    return some(min(have.cpu_millis, most.cpu_millis), min(have.memory_mib, most.memory_mib), min(have.gpus, most.gpus))


def _less(whole: Resources, part: Resources | None) -> Resources:
    if part is None:
        return whole
    return Resources(whole.cpu_millis - part.cpu_millis, whole.memory_mib - part.memory_mib, whole.gpus - part.gpus)


def some(cpu_millis: int, memory_mib: int, gpus: int) -> Resources | None:
    """Return the amounts, None where there is nothing of any."""
    return Resources(cpu_millis, memory_mib, gpus) if cpu_millis or memory_mib or gpus else None


def added(one: Resources | None, cpu_millis: int, memory_mib: int, gpus: int) -> Resources | None:
    """Return the sum, None where that is nothing."""
    have = Resources() if one is None else one
    return some(have.cpu_millis + cpu_millis, have.memory_mib + memory_mib, have.gpus + gpus)
