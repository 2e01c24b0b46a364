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
    leased: dict[int, None] = {}
    """Devices that are leased to somebody: others have them now, whoever holds them."""

    def fitting(self, need: Resources, models: tuple[str, ...]) -> list[GpuDevice]:
        """Return the wholly free devices that a member with `need` may have, those that waste least first."""
        least_mib = need.gpu_memory_mib
        return [gpu for gpu in self.free if gpu.memory_mib >= least_mib and (not models or gpu.model in models)]

    def at_hand(self, need: Resources, models: tuple[str, ...]) -> list[GpuDevice]:
        """Return those of them that nobody has leased."""
        fitting, leased = self.fitting(need, models), self.leased
        return [gpu for gpu in fitting if gpu.index not in leased] if leased else fitting


def accepts(gpu: GpuDevice, need: Resources, models: tuple[str, ...]) -> bool:
    """Say whether the device is one that the job may have."""
    return gpu.memory_mib >= need.gpu_memory_mib and (not models or gpu.model in models)


def use(used: dict[int, int], devices: Devices, need: Resources, indices: tuple[int, ...], sign: int) -> int:
    """Add to what is used of each device, or take it away; return how many the node has no more: they do not count."""
    millis = WHOLE_MILLIS if need.gpus else need.gpu_millis
    missing = 0
    for index in indices:
        if index not in devices.all:
            missing += 1
            continue
        left = used.get(index, 0) + sign * millis
        if left > 0:
            used[index] = left
        else:
            used.pop(index, None)
    return missing
