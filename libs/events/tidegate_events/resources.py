"""Amounts of compute, always integers: thousandths of a CPU, MiB of memory, whole GPUs or thousandths of one."""

from __future__ import annotations

import msgspec


class Resources(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """An amount of each resource.

    `cpu_millis` are thousandths of one CPU, `memory_mib` MiB of memory, `gpus` whole devices, and
    `gpu_memory_mib` the memory that **each** of those devices must have (so it is compared, never summed).
    `gpu_millis` is a share of **one** device, in thousandths of it: whoever has whole devices asks for no share.
    """

    cpu_millis: int = 0
    memory_mib: int = 0
    gpus: int = 0
    gpu_memory_mib: int = 0
    gpu_millis: int = 0

    def plus(self, other: Resources) -> Resources:
        """Return the sum; the GPU memory per device is the larger of the two."""
        return Resources(
            self.cpu_millis + other.cpu_millis,
            self.memory_mib + other.memory_mib,
            self.gpus + other.gpus,
            max(self.gpu_memory_mib, other.gpu_memory_mib),
            self.gpu_millis + other.gpu_millis,
        )

    def times(self, count: int) -> Resources:
        """Return this amount `count` times (GPU memory per device stays)."""
        return Resources(
            self.cpu_millis * count,
            self.memory_mib * count,
            self.gpus * count,
            self.gpu_memory_mib,
            self.gpu_millis * count,
        )

    def ceiling(self, other: Resources) -> Resources:
        """Return the larger of both in each dimension."""
        return Resources(
            max(self.cpu_millis, other.cpu_millis),
            max(self.memory_mib, other.memory_mib),
            max(self.gpus, other.gpus),
            max(self.gpu_memory_mib, other.gpu_memory_mib),
            max(self.gpu_millis, other.gpu_millis),
        )


class GpuDevice(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One GPU of a node as its driver names it."""

    index: int
    uuid: str
    model: str
    memory_mib: int
