"""How many members of a job known nodes could hold when they are empty: each, those of one domain, all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from tidegate_events.resources import GpuDevice, Resources
from tidegate_events.spec import WidestDomain

from tidegate_gateway.view.model import Node

WHOLE_MILLIS = 1000
"""A device, in the thousandths in which shares of one are counted."""


class Wanted(msgspec.Struct, frozen=True):
    """What one member needs of its node."""

    level: str
    image: str
    floor: Resources
    gpu_models: tuple[str, ...] = ()


def has_image(node: Node, image: str) -> bool:
    """Say whether the node has an image of this name or of this digest."""
    return image in node.images or image in node.images.values()


def passes_gpus(node: Node, level: str) -> bool:
    """Say whether a sandbox of that level can have GPUs on the node."""
    return node.gpu_levels is None or level in node.gpu_levels


def devices(node: Node, models: tuple[str, ...] = ()) -> list[GpuDevice]:
    """Return the GPUs of the node, of these models where some are named; one that was only counted has no name."""
    if not node.gpus and not models:
        return [GpuDevice(index, "", "", node.capacity.gpu_memory_mib) for index in range(node.capacity.gpus)]
    return [gpu for gpu in node.gpus if not models or gpu.model in models]


def devices_with(node: Node, memory_mib: int, models: tuple[str, ...] = ()) -> int:
    """Return how many GPUs of the node have at least this much memory."""
    return sum(gpu.memory_mib >= memory_mib for gpu in devices(node, models))


def memory_of_each(node: Node, count: int, models: tuple[str, ...] = ()) -> int:
    """Return the most memory that each of `count` GPUs of the node has at least; 0 where there are fewer."""
    memories = sorted((gpu.memory_mib for gpu in devices(node, models)), reverse=True)
    return memories[count - 1] if len(memories) >= count else 0


def members_on(node: Node, wanted: Wanted, most: int) -> int:
    """Return how many members the empty node could hold, `most` at the most."""
    need, fits = wanted.floor, most
    if wanted.level not in node.levels or not has_image(node, wanted.image):
        return 0
    if (need.gpus or need.gpu_millis) and not passes_gpus(node, wanted.level):
        return 0
    if need.cpu_millis:
        fits = min(fits, node.capacity.cpu_millis // need.cpu_millis)
    if need.memory_mib:
        fits = min(fits, node.capacity.memory_mib // need.memory_mib)
    if need.gpus or need.gpu_millis:
        usable = devices_with(node, need.gpu_memory_mib, wanted.gpu_models)
        fits = min(fits, usable // need.gpus if need.gpus else usable * (WHOLE_MILLIS // need.gpu_millis))
    return max(0, fits)


def members_together(nodes: Sequence[Node], wanted: Wanted, most: int) -> int:
    """Return how many members all the nodes could hold, `most` at the most."""
    room = 0
    for node in nodes:
        room += members_on(node, wanted, most - room)
        if room >= most:
            break
    return room


def members_in_one_domain(nodes: Sequence[Node], wanted: Wanted, most: int, domain: WidestDomain) -> int:
    """Return the same for the best switch, or the best rack."""
    return _best_part(nodes, wanted, most, lambda node: _place(node, domain))


def members_on_one_model(nodes: Sequence[Node], wanted: Wanted, most: int, domain: WidestDomain | None) -> int:
    """Return the same for the best CPU model (in one domain); a node that tells none is like no other."""

    def part(node: Node) -> tuple[str, ...]:
        place = _place(node, domain) if domain is not None else ()
        return (node.cpu_model, "" if node.cpu_model else node.name, *place)

    return _best_part(nodes, wanted, most, part)


def _place(node: Node, domain: WidestDomain) -> tuple[str, ...]:
    """Return what tells the node's switch, or its rack, from others, as the scheduler does.

    A switch is told by its rack and its name; a switch that names no rack has one of its own, and so has a node that
    names neither.
    """
    if node.rack and domain == "rack":
        return (node.rack,)
    return (node.rack, node.switch) if node.switch else (node.rack, "", node.name)


def _best_part(nodes: Sequence[Node], wanted: Wanted, most: int, part_of: Callable[[Node], tuple[str, ...]]) -> int:
    parts: dict[tuple[str, ...], int] = {}
    for node in nodes:
        part = part_of(node)
        parts[part] = parts.get(part, 0) + members_on(node, wanted, most)
    return min(most, max(parts.values(), default=0))
