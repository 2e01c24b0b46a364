"""Which devices of a node are free at a time to come, by who has what of them until when: where a number of them, and
which they are, are not the same, as they differ or parts of them were given away."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS, Devices, accepts
from tidegate_scheduler.policy.elastic.holders import NEVER


class Part(msgspec.Struct, frozen=True):
    """What somebody has of a device from `begin_ns` until `ends_ns`, and whether that is counted as gone already."""

    device: int
    millis: int
    ends_ns: int
    goes: bool = False
    begin_ns: int = 0


def millis_of(need: Resources) -> int:
    """Return how much a member with this need has of each of its devices, in thousandths."""
    return WHOLE_MILLIS if need.gpus else need.gpu_millis


def used_then(devices: Devices, used_millis: Mapping[int, int], parts: Iterable[Part], at_ns: int) -> dict[int, int]:
    """Return what is used of each device at that time, given what is now, without those who are gone already."""
    used = dict(used_millis)
    for part in parts:
        if part.device in devices.all:
            counts = (part.ends_ns <= at_ns) - part.goes
            used[part.device] = used.get(part.device, 0) - counts * part.millis
    return {index: each for index, each in used.items() if each > 0}


def free_then(
    devices: Devices, used: Mapping[int, int], need: Resources, models: tuple[str, ...]
) -> tuple[int, list[int]]:
    """Return how many devices that suit are free as a whole beside what is kept, and what is left of each other one.

    Several may share one device. Nothing is left of any while more are kept than are free (`Devices.waits`).
    """
    whole = devices.left_of(used.keys(), need, models)
    if devices.waits(used.keys()):
        return whole, []
    return whole, [WHOLE_MILLIS - each for index, each in used.items() if accepts(devices.all[index], need, models)]


class Timeline:
    """The devices of one node over time: what those who have them now give back, and what those who come will have.

    What the policy keeps there now is not counted: who comes for it does.
    """

    def __init__(self, devices: Devices, parts: list[Part]) -> None:
        """Begin with those who have `parts` now and of whom it is known when they end; all others stay."""
        self._now = msgspec.structs.replace(devices, kept={}, promised=0)
        self._parts = parts
        self._waiting: list[tuple[int, Resources, tuple[str, ...]]] = []
        self._known: dict[tuple[int, int, tuple[str, ...]], tuple[int, list[int]]] = {}
        self._ends_ns = sorted({part.ends_ns for part in parts})

    def come(self, parts: list[Part]) -> None:
        """Let somebody have these parts."""
        self._parts = self._parts + parts
        self._ends_ns = sorted({part.ends_ns for part in self._parts})
        self._known.clear()

    def wait(self, begin_ns: int, need: Resources, models: tuple[str, ...]) -> None:
        """Keep devices for a member from then on, of which nobody knows which come free for it."""
        self._waiting.append((begin_ns, need, models))
        self._known.clear()

    def free(
        self, need: Resources, models: tuple[str, ...], at_ns: int, until_ns: int = NEVER
    ) -> tuple[tuple[int, list[int]], bool]:
        """Return what `free_then` does from `at_ns` until others come at `until_ns`, and whether that was known."""
        key = (bisect_right(self._ends_ns, at_ns), need.gpu_memory_mib, models)
        if until_ns == NEVER and (known := self._known.get(key)) is not None:
            return known, True
        kept = self._now
        if self._waiting:
            kept = msgspec.structs.replace(self._now, kept={})
            for begin_ns, theirs, of_models in self._waiting:
                if begin_ns < until_ns:
                    kept.keep(theirs, of_models, 1)
        found = free_then(kept, self._used(at_ns, until_ns), need, models)
        if until_ns == NEVER:
            self._known[key] = found
        return found, False

    def choose(self, need: Resources, models: tuple[str, ...], at_ns: int, until_ns: int) -> tuple[int, ...]:
        """Return the devices that a member gets who comes then: those that waste least, of shared ones the fullest."""
        used = self._used(at_ns, until_ns)
        suit = [gpu.index for gpu in self._now.order if accepts(gpu, need, models)]
        if need.gpu_millis:
            begun = [
                (-used[index], index) for index in suit if 0 < used.get(index, 0) <= WHOLE_MILLIS - need.gpu_millis
            ]
            if begun:
                return (min(begun)[1],)
        return tuple([index for index in suit if index not in used][: need.gpus or 1])

    def _used(self, at_ns: int, until_ns: int) -> dict[int, int]:
        there = [part for part in self._parts if part.begin_ns < until_ns]
        used = dict(self._now.used_millis)
        for part in there:
            if part.begin_ns and part.device in self._now.all:
                used[part.device] = used.get(part.device, 0) + part.millis
        return used_then(self._now, used, there, at_ns)
