"""What a member that asks for its phases has, and on which terms: the phase it may enter, its limits, its devices."""

from __future__ import annotations

import msgspec
from tidegate_events.events import Reason
from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE, JobSpec

from tidegate_scheduler.leasing import share_millis
from tidegate_scheduler.policy.elastic.entries import parted
from tidegate_scheduler.policy.elastic.physical import Limits, Need, need_of
from tidegate_scheduler.state import Member


class Terms(msgspec.Struct, frozen=True):
    """All that a change of quotas says beside CPU. The devices are those of the floor, then other own, then leased.

    `lent_millis` is what the member lends of its floor's share of its one device.
    """

    granted: str
    limits: Limits
    gpu_indices: tuple[int, ...]
    leased: Resources | None = None
    extra: Resources | None = None
    lent_millis: int = 0

    def differ(self, member: Member) -> bool:
        """Say whether the member has other ones."""
        mine = (self.granted, self.gpu_indices, self.leased, self.extra, self.lent_millis)
        return mine != (member.granted, member.gpu_indices, member.leased, member.extra, member.lent_millis)


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


def extra_devices(member: Member) -> tuple[int, ...]:
    """Return the devices of which the member has something beyond its floor that was nobody's."""
    return member.gpu_indices if member.extra is not None and member.extra.gpu_millis else devices_of(member).extra


def as_they_are(spec: JobSpec, member: Member) -> Terms:
    """Return the terms that the member has."""
    limits = _limits(spec, member)
    return Terms(member.granted, limits, member.gpu_indices, member.leased, member.extra, member.lent_millis)


def settled(spec: JobSpec, floor: Resources, member: Member) -> Terms:
    """Return the terms without what the member's phase does not need any more; it never gets more by them."""
    need = need_of(spec, member.phase, member.granted)
    beyond = need.beyond(floor)
    extra = _lesser(member.extra, beyond)
    leased = _lesser(member.leased, _less(beyond, extra))
    lent_millis = max(member.lent_millis, floor.gpu_millis - need.gpu_millis)
    return Terms(
        granted=member.granted,
        limits=tuple(min(have, want) for have, want in zip(_limits(spec, member), need.limits, strict=True)),
        gpu_indices=_kept(floor, member, (need.gpus, extra, leased, lent_millis)),
        leased=leased,
        extra=extra,
        lent_millis=lent_millis,
    )


def _kept(
    floor: Resources, member: Member, keeps: tuple[int, Resources | None, Resources | None, int]
) -> tuple[int, ...]:
    """Return the devices of which the member keeps something: of its floor so many, what is extra, what is leased."""
    gpus, extra, leased, lent_millis = keeps
    extra, leased = extra or Resources(), leased or Resources()
    if share_millis(floor, member):
        return member.gpu_indices if floor.gpu_millis - lent_millis + extra.gpu_millis + leased.gpu_millis else ()
    devices = devices_of(member)
    return devices.floor[:gpus] + devices.extra[: extra.gpus] + devices.leased[: leased.gpus]


def wish(spec: JobSpec, floor: Resources, member: Member) -> str:
    """Return the phase that the member waits for, empty where it waits for none.

    One that is in a phase which it did not ask for waits for what that phase needs.
    """
    if member.wanted and member.wanted != member.granted:
        return member.wanted
    need = need_of(spec, member.phase)
    short = any(have < want for have, want in zip(_limits(spec, member), need.limits, strict=True))
    short = short or len(member.gpu_indices) < need.gpus or share_millis(floor, member) < need.gpu_millis
    return member.phase if not member.wanted and short else ""


def wanted_need(spec: JobSpec, floor: Resources, member: Member, phase: str) -> Need:
    """Return what the member must have to enter the phase: until it has, it keeps what it has."""
    need = need_of(spec, phase)
    limits = tuple(max(have, want) for have, want in zip(_limits(spec, member), need.limits, strict=True))
    memory_mib = sum(mib * each.replicas for mib, each in zip(limits, spec.components, strict=True))
    share = share_millis(floor, member)
    gpus, gpu_millis = max(0 if share else len(member.gpu_indices), need.gpus), max(share, need.gpu_millis)
    return msgspec.structs.replace(need, gpus=gpus, limits=limits, memory_mib=memory_mib, gpu_millis=gpu_millis)


def missing_share(spec: JobSpec, floor: Resources, member: Member) -> int:
    """Return what a member waits for of its floor's share of a device, for a phase within its floor."""
    phase = wish(spec, floor, member)
    if not phase or (need := need_of(spec, phase)).beyond(floor) != Resources():
        return 0
    return max(0, need.gpu_millis - (floor.gpu_millis - member.lent_millis))


def first_limits(spec: JobSpec) -> Limits | None:
    """Return the limits with which a member begins; None where they do not follow its phases."""
    return need_of(spec, DEFAULT_PHASE).limits if spec.phase_entry == "asked" else None


def own_millis(floor: Resources, terms: Terms) -> int:
    """Return the CPU that a member holds."""
    return floor.cpu_millis + (terms.extra.cpu_millis if terms.extra is not None else 0)


def share_of(floor: Resources, terms: Terms) -> int:
    """Return the share of one device that a member has by the terms."""
    more = sum(part.gpu_millis for part in (terms.extra, terms.leased) if part is not None)
    return floor.gpu_millis - terms.lent_millis + more


def phase_reasons(member: Member, terms: Terms) -> tuple[Reason, ...]:
    """Say which phase a member may enter, and what of it is leased."""
    if not terms.granted or terms.granted == member.granted:
        return ()
    leased = terms.leased or Resources()
    numbers = {"leased_mib": leased.memory_mib, "leased_gpus": leased.gpus, "leased_millis": leased.cpu_millis}
    if leased.gpu_millis:
        numbers["leased_gpu_millis"] = leased.gpu_millis
    return (Reason(code="PhaseGranted", detail=terms.granted, numbers=numbers),)


def _limits(spec: JobSpec, member: Member) -> Limits:
    by_name = {quota.component: quota.memory_mib for quota in member.quotas}
    return tuple(by_name.get(each.name, 0) for each in spec.components)


def _lesser(have: Resources | None, most: Resources) -> Resources | None:
    """Return what there is, but no more than `most`."""
    if have is None:
        return None
    return some(
        Resources(
            min(have.cpu_millis, most.cpu_millis),
            min(have.memory_mib, most.memory_mib),
            min(have.gpus, most.gpus),
            gpu_millis=min(have.gpu_millis, most.gpu_millis),
        )
    )


def _less(whole: Resources, part: Resources | None) -> Resources:
    if part is None:
        return whole
    return Resources(
        whole.cpu_millis - part.cpu_millis,
        whole.memory_mib - part.memory_mib,
        whole.gpus - part.gpus,
        gpu_millis=whole.gpu_millis - part.gpu_millis,
    )


def some(amount: Resources) -> Resources | None:
    """Return the amount, None where there is nothing of any."""
    return amount if amount != Resources() else None


def added(one: Resources | None, more: Resources) -> Resources | None:
    """Return the sum, None where that is nothing."""
    return some(more if one is None else one.plus(more))
