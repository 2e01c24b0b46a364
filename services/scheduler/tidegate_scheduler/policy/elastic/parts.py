"""What members that ask have of devices, part by part, in thousandths; a whole device is one part of all of it."""

from __future__ import annotations

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.elastic.entries import parted
from tidegate_scheduler.state import Member

Part = tuple[int, int]
"""A device, and how much of it."""


def leased_to(member: Member) -> tuple[Part, ...]:
    """Return what is leased to a member."""
    if member.leased is None:
        return ()
    if member.leased.gpu_millis:
        return tuple((index, member.leased.gpu_millis) for index in member.gpu_indices)
    return tuple((index, WHOLE_MILLIS) for index in parted(member)[1])


def lent_by(member: Member) -> tuple[Part, ...]:
    """Return what a member lends of its floor."""
    if member.lent_millis:
        return tuple((index, member.lent_millis) for index in device_of(member))
    return tuple((index, WHOLE_MILLIS) for index in member.lent_gpus)


def device_of(member: Member) -> tuple[int, ...]:
    """Return the device of which a member has a share, or lends all that it is guaranteed; none where it has none."""
    return (*member.gpu_indices, *member.lent_gpus)[:1]
