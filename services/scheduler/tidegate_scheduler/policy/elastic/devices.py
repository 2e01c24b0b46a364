"""The devices of one node: which are free as a whole, and what is used of the others, in thousandths."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec
from tidegate_events.resources import GpuDevice, Resources

WHOLE_MILLIS = 1000


Accepted = tuple[int, tuple[str, ...]]
"""Which devices somebody accepts: those with so much memory (MiB) at least, of these models; of none named: any."""

Which = Literal["free", "now", "later", "counted", "any"]
"""Of devices that differ, which of them are meant by how many are free: those that nobody holds, those of them that are
kept for nobody, those that will be free once all who are leaving (also as it is tried) have left and are kept for
nobody; as many as are counted, all of which suit; or any, so that it holds no fewer than it says."""


class Devices(msgspec.Struct):
    """One node's devices in `order`, smallest first: those that are wholly free, and what is used of the others.

    `staying_millis` is what is used without those who are leaving, `promised` the number that is kept for somebody, and
    `missing` the number that members hold and the node has no more. `parts` is how many hold a part of one.
    """

    all: dict[int, GpuDevice]
    free: list[GpuDevice]
    order: list[GpuDevice] = []
    used_millis: dict[int, int] = {}
    staying_millis: dict[int, int] = {}
    kept: dict[Accepted, int] = {}
    """On how many of them room is kept for somebody, by which of them those accept."""

    promised: int = 0
    missing: int = 0
    parts: int = 0
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

    def keep(self, need: Resources, models: tuple[str, ...], sign: int) -> None:
        """Keep devices for one member, or with `sign` -1 no longer; for a part of one a whole device."""
        count = sign * (need.gpus or (1 if need.gpu_millis else 0))
        if count:
            accepted = (need.gpu_memory_mib, models)
            self.promised += count
            self.kept[accepted] = self.kept.get(accepted, 0) + count
            if not self.kept[accepted]:
                del self.kept[accepted]

    def waits(self, used: Collection[int]) -> bool:
        """Say whether more devices are kept than are not used: which of them come free for that, nobody knows.

        Until they do, nobody begins a part of any: they would never be free as a whole, or have less left than is kept.
        """
        return self.promised > len(self.all) - len(used)

    def left_of(self, used: Collection[int], need: Resources, models: tuple[str, ...]) -> int:
        """Return how many devices that are not used suit a member, beside all that are kept for others.

        What is kept is so of devices that do not suit it, as far as those accept them.
        """
        unused = [gpu for gpu in self.order if gpu.index not in used]
        mine = [gpu for gpu in unused if accepts(gpu, need, models)]
        others = [gpu for gpu in unused if gpu not in mine]
        for (memory_mib, of_models), count in sorted(self.kept.items()):
            theirs = Resources(gpus=1, gpu_memory_mib=memory_mib)
            accepted = [(pool, gpu) for pool in (others, mine) for gpu in pool if accepts(gpu, theirs, of_models)]
            for pool, gpu in accepted[:count]:
                pool.remove(gpu)
        return len(mine)

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


def members_of(devices: Devices, need: Resources, models: tuple[str, ...], gpus: int, which: Which) -> int:
    """Return how many members find devices that they accept where devices differ, `gpus` of which are free."""
    used, whole = devices.used_millis, gpus
    if which in ("free", "now"):
        whole = min(whole, len(devices.fitting(need, models)))
    if which in ("now", "later"):
        whole = min(whole, devices.left_of(devices.staying_millis, need, models))
        used = devices.staying_millis if which == "later" else used
    whole = max(0, whole)
    if need.gpus:
        return whole // need.gpus
    if which in ("now", "later") and devices.waits(devices.staying_millis):
        return 0
    parts = sum(
        (WHOLE_MILLIS - each) // need.gpu_millis
        for index, each in used.items()
        if index in devices.all and accepts(devices.all[index], need, models)
    )
    return parts + whole * (WHOLE_MILLIS // need.gpu_millis)
