"""The devices of one node: which are free as a whole, and what is used of the others, in thousandths."""

from __future__ import annotations

import msgspec
from tidegate_events.resources import GpuDevice, Resources

WHOLE_MILLIS = 1000


class Devices(msgspec.Struct):
    """One node's devices in `order`, smallest first: those that are wholly free, and what is used of the others.

    `staying_millis` is what is used without those who are leaving, `promised` the number that is kept for somebody, and
    `missing` the number that members hold and the node has no more. `parted`: a part of one was given away before.
    """

    all: dict[int, GpuDevice]
    free: list[GpuDevice]
    order: list[GpuDevice] = []
    used_millis: dict[int, int] = {}
    staying_millis: dict[int, int] = {}
    promised: int = 0
    missing: int = 0
    parted: bool = False
    leased: dict[int, int] = {}
    """What of each device is leased to somebody: others have it now, whoever holds it."""

    lent: dict[int, int] = {}
    """What of each device those who hold it do not need for their phases."""

    claimed: dict[int, int] = {}
    """What of that they wait for again."""

    def fitting(self, need: Resources, models: tuple[str, ...]) -> list[GpuDevice]:
        """Return the wholly free devices that a member with `need` may have, those that waste least first."""
        least_mib = need.gpu_memory_mib
        return [gpu for gpu in self.free if gpu.memory_mib >= least_mib and (not models or gpu.model in models)]

    def at_hand(self, need: Resources, models: tuple[str, ...]) -> list[GpuDevice]:
        """Return those of them that nobody has leased."""
        fitting, leased = self.fitting(need, models), self.leased
        return [gpu for gpu in fitting if gpu.index not in leased] if leased else fitting

    def free_of(self, index: int) -> int:
        """Return how much of a device nobody holds."""
        return WHOLE_MILLIS - self.used_millis.get(index, 0)

    def largest_parts(self, *, has_whole_later: bool) -> tuple[int, int, int]:
        """Return the largest part of a device beside others' that is free, that will be, and that may be taken now.

        A device that all who have parts of it are leaving will be free as a whole, and may be kept as such: then
        (unless it `has_whole_later` that are not) nobody else begins a part of it.
        """
        staying, most, may_take = self.staying_millis, 0, 0
        for index, used in self.used_millis.items():
            left = WHOLE_MILLIS - used
            most = left if left > most else most
            if left > may_take and (has_whole_later or index in staying):
                may_take = left
        return most, max([WHOLE_MILLIS - used for used in staying.values()], default=0), may_take

    def spare_of(self, index: int) -> int:
        """Return how much of it nobody has: less than none where more is leased than is there."""
        return self.free_of(index) + self.lent.get(index, 0) - self.leased.get(index, 0)

    def here_of(self, index: int) -> int:
        """Return how much of it who comes may hold and have; less than none where those wait who lent it."""
        free = self.free_of(index)
        return min(free, self.spare_of(index) - self.claimed.get(index, 0)) if self.leased else free


def accepts(gpu: GpuDevice, need: Resources, models: tuple[str, ...]) -> bool:
    """Say whether the device is one that the job may have."""
    return gpu.memory_mib >= need.gpu_memory_mib and (not models or gpu.model in models)


def use(used: dict[int, int], devices: Devices, need: Resources, indices: tuple[int, ...], sign: int) -> int:
    """Add to what is used of each device, or take it away; return how many the node has no more: they do not count."""
    more_millis = sign * (WHOLE_MILLIS if need.gpus else need.gpu_millis)
    there, missing = devices.all, 0
    for index in indices:
        if index not in there:
            missing += 1
            continue
        left = used.get(index, 0) + more_millis
        if left > 0:
            used[index] = left
        else:
            used.pop(index, None)
    return missing
