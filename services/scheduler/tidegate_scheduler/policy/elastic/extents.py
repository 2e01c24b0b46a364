"""How much a shape asks for, to say of two that one finds room wherever the other does: the larger one then need not be
tried where the smaller one found none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from tidegate_events.resources import Resources

if TYPE_CHECKING:
    from tidegate_scheduler.policy.elastic.shapes import Shape

Kin = tuple[object, ...]
"""All that decides where a shape fits but how much it needs: only shapes that are alike in that are compared."""

Amounts = tuple[int, int, int, int, int, int]
"""CPU in thousandths, memory in MiB, whole devices, memory of each in MiB, share of one in thousandths; members."""

CPU, MEMORY, GPUS, GPU_MEMORY, SHARE, MEMBERS = range(6)


class Extent(msgspec.Struct, frozen=True, gc=False):
    """What one member needs at most in any of its phases, what it holds at least, and how many members there are.

    Shapes of one `kin` differ in nothing else. One whose `most` is in no amount more than what another one has `held`
    finds room wherever that one does: who has room there for so much was large enough, when empty, for all its phases.
    """

    kin: Kin
    most: Amounts
    held: Amounts


def extent_of(shape: Shape) -> Extent:
    """Return the extent of a shape."""
    kin = (
        shape.isolation,
        shape.image,
        shape.any_image,
        shape.gpu_models,
        shape.cpu_model,
        shape.alike,
        shape.intensive,
        shape.rack_wide,
    )
    needs = [_amounts(need, shape.gang_size) for need in (shape.need, *shape.phases)]
    cpu, memory, gpus, gpu_memory, share, members = (max(each) for each in zip(*needs, strict=True))
    return Extent(kin, (cpu, memory, gpus, gpu_memory, share, members), needs[0])


def _amounts(need: Resources, members: int) -> Amounts:
    return (need.cpu_millis, need.memory_mib, need.gpus, need.gpu_memory_mib, need.gpu_millis, members)
