"""The room of one node, for the baselines: CPU, memory, and how much of each device is free."""

from __future__ import annotations

from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec, phase_need

from tidegate_scheduler.isolation import passes_gpus, with_gpus
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.state import Node


class Room:
    """What is free on a node; `devices` by their index, in thousandths."""

    def __init__(self, node: Node) -> None:
        """Begin with the node as if nothing ran there."""
        self.node = node
        self.cpu_millis = node.capacity.cpu_millis
        self.memory_mib = node.capacity.memory_mib
        self.devices = {gpu.index: WHOLE_MILLIS for gpu in node.gpus}
        self.gpu_millis = WHOLE_MILLIS * len(self.devices)
        """How much of all devices is free."""

        self.whole = len(self.devices)
        self._free: tuple[int, ...] | None = None
        self._models = {gpu.index: (gpu.model, gpu.memory_mib) for gpu in node.gpus}

    def copy(self) -> Room:
        """Return a room that is changed without this one."""
        other = Room.__new__(Room)
        other.node, other._models = self.node, self._models
        other.cpu_millis, other.memory_mib, other.devices = self.cpu_millis, self.memory_mib, dict(self.devices)
        other.gpu_millis, other.whole, other._free = self.gpu_millis, self.whole, self._free
        return other

    @property
    def free(self) -> tuple[int, ...]:
        """Return how much of each device is free, the fullest first."""
        if self._free is None:
            self._free = tuple(sorted(self.devices.values()))
        return self._free

    @property
    def most(self) -> int:
        """Return how much is free of the device with most."""
        return self.free[-1] if self.free else 0

    def offers(self, spec: JobSpec) -> bool:
        """Say whether the node is one of those on which the job may run: it has the image, or fetches it first."""
        node, image = self.node, spec.image
        if spec.isolation not in node.levels:
            return False
        if not passes_gpus(node, spec.isolation) and with_gpus(tuple(phase_need(spec, each) for each in spec.phases)):
            return False
        there = image in node.images or image in node.images.values()
        return there or (node.fetches_images and image not in node.unavailable)

    def fits(self, need: Resources, models: tuple[str, ...] = ()) -> bool:
        """Say whether one member fits."""
        if self.cpu_millis < need.cpu_millis or self.memory_mib < need.memory_mib or self.whole < need.gpus:
            return False
        if need.gpus:
            any_device = not models and not need.gpu_memory_mib
            return any_device or len(self._whole(need, models)) >= need.gpus
        if self.most < need.gpu_millis:
            return False
        return not (need.gpu_millis and (models or need.gpu_memory_mib)) or any(
            free >= need.gpu_millis and self._accepted(index, need, models) for index, free in self.devices.items()
        )

    def members(self, need: Resources, models: tuple[str, ...] = ()) -> int:
        """Return how many members fit that need something of what there is."""
        fits = [have // each for have, each in self._amounts(need, models) if each]
        return min(fits, default=0)

    def _amounts(self, need: Resources, models: tuple[str, ...]) -> list[tuple[int, int]]:
        whole = len(self._whole(need, models))
        parts = [free for index, free in self.devices.items() if self._accepted(index, need, models)]
        shares = sum(free // need.gpu_millis for free in parts) if need.gpu_millis else 0
        return [
            (self.cpu_millis, need.cpu_millis),
            (self.memory_mib, need.memory_mib),
            (whole, need.gpus),
            (shares, int(bool(need.gpu_millis))),
        ]

    def close(self) -> None:
        """Let nothing be free."""
        self.cpu_millis = self.memory_mib = 0
        self.devices = dict.fromkeys(self.devices, 0)
        self.gpu_millis = self.whole = 0
        self._free = None

    def take(self, need: Resources, models: tuple[str, ...] = ()) -> tuple[int, ...]:
        """Return the devices of one more member, which fits: a part is cut from the device that has least."""
        if need.gpus:
            return tuple(self._whole(need, models)[: need.gpus])
        if not need.gpu_millis:
            return ()
        return (
            min(
                (free, index)
                for index, free in self.devices.items()
                if free >= need.gpu_millis and self._accepted(index, need, models)
            )[1],
        )

    def occupy(self, need: Resources, indices: tuple[int, ...], sign: int = 1) -> None:
        """Let a member have its room; with `sign` -1 it gives it back."""
        self.cpu_millis -= sign * need.cpu_millis
        self.memory_mib -= sign * need.memory_mib
        each = sign * (need.gpu_millis or WHOLE_MILLIS)
        self._free = None
        for index in indices:
            if index in self.devices:
                before = self.devices[index]
                self.devices[index] = before - each
                self.gpu_millis -= each
                self.whole += (before - each == WHOLE_MILLIS) - (before == WHOLE_MILLIS)

    def _whole(self, need: Resources, models: tuple[str, ...]) -> list[int]:
        return [
            index
            for index, free in self.devices.items()
            if free == WHOLE_MILLIS and self._accepted(index, need, models)
        ]

    def _accepted(self, index: int, need: Resources, models: tuple[str, ...]) -> bool:
        model, memory_mib = self._models[index]
        return memory_mib >= need.gpu_memory_mib and (not models or model in models)
