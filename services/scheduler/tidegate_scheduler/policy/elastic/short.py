"""What of devices must come back before somebody who comes has its own: it is free by floors, and leased to others."""

from __future__ import annotations

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, Devices, accepts


class Short(msgspec.Struct, frozen=True):
    """So much of each of these devices, of so many of them; `takes` is what who comes will have of parts of devices."""

    parts: dict[int, int] = {}
    count: int = 0
    takes: dict[int, int] = {}


NOTHING = Short()


def short_of(devices: Devices, need: Resources, models: tuple[str, ...], count: int) -> Short:
    """Return what must come back for so many members; nothing where there is enough without."""
    if need.gpus:
        return _whole(devices, need, models, count)
    return _parts(devices, need, models, count) if need.gpu_millis else NOTHING


def _whole(devices: Devices, need: Resources, models: tuple[str, ...], count: int) -> Short:
    free = [gpu.index for gpu in devices.fitting(need, models)]
    away = {index: WHOLE_MILLIS - devices.here_of(index) for index in free if index in devices.leased}
    lacking = need.gpus * count - (len(free) - len(away))
    return Short(away, min(lacking, len(away))) if lacking > 0 and away else NOTHING


def _parts(devices: Devices, need: Resources, models: tuple[str, ...], count: int) -> Short:
    """Count by members that find their part on a device: now, and when what is leased of it is back."""
    one, lacking, takes = need.gpu_millis, count, dict[int, int]()
    gains = list[tuple[bool, int, int]]()
    for index, gpu in sorted(devices.all.items()):
        if not accepts(gpu, need, models):
            continue
        now, most = max(0, devices.here_of(index)) // one, devices.free_of(index) // one
        if here := min(now, lacking):
            takes[index] = here * one
            lacking -= here
        if most > now:
            gains.append((index not in devices.used_millis, now - most, index))
    parts = dict[int, int]()
    for _, gain, index in sorted(gains):
        if lacking <= 0:
            break
        more = min(-gain, lacking)
        here = devices.here_of(index)
        takes[index] = (max(0, here) // one + more) * one
        parts[index] = takes[index] - here
        lacking -= more
    return Short(parts, len(parts), takes)


def slots(devices: Devices, need: Resources, models: tuple[str, ...], back: dict[int, int]) -> int:
    """Return how many members find their devices, or their part of one, by floors, with what comes `back` of each."""
    free = [
        devices.free_of(index) + back.get(index, 0) for index, gpu in devices.all.items() if accepts(gpu, need, models)
    ]
    if need.gpus:
        return sum(each >= WHOLE_MILLIS for each in free) // need.gpus
    return sum(each // need.gpu_millis for each in free)
