"""Stage 3, fit: where a whole gang finds room: all members or none, on the tightest nodes, so big rooms stay whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from tidegate_events.resources import GpuDevice

from tidegate_scheduler.policy.room import Space
from tidegate_scheduler.state import Job, Node, State


class Seat(msgspec.Struct, frozen=True):
    """A member's place: the node and the GPUs it gets there."""

    node: str
    gpu_indices: tuple[int, ...]


def eligible_nodes(state: State, job: Job) -> list[Node]:
    """Return the nodes that could ever hold a member of `job` and are up, by name.

    Nodes that refused the job are left out as long as the others, when empty, could hold the whole gang.
    """
    nodes = [
        node
        for _, node in sorted(state.nodes.items())
        if node.status == "up" and not node.zombies and suits(state, job, node)
    ]
    kept = [node for node in nodes if node.name not in job.excluded_nodes]
    return kept if len(kept) == len(nodes) or seat_when_empty(state, job, kept) else nodes


def suits(state: State, job: Job, node: Node) -> bool:
    """Say whether an empty `node` could hold one member: its level, its image and its size."""
    spec = state.specs[job.id]
    if spec.isolation not in node.levels:
        return False
    if spec.image not in node.images and spec.image not in node.images.values():
        return False
    return empty_space(node).takes(state.floors[job.id])


def empty_space(node: Node) -> Space:
    """Return the room of the node when nothing runs there."""
    gpus: list[GpuDevice] = list(node.gpus)
    return Space(node.capacity.cpu_millis, node.capacity.memory_mib, gpus, len(gpus))


def seat_when_empty(state: State, job: Job, nodes: Iterable[Node]) -> bool:
    """Say whether the whole gang fits on `nodes` when nothing runs there."""
    return seat_gang(state, job, nodes, lambda name: empty_space(state.nodes[name])) is not None


def seat_gang(
    state: State, job: Job, nodes: Iterable[Node], space_on: Callable[[str], Space]
) -> tuple[Seat, ...] | None:
    """Return a seat for every member of `job`, or None when they do not all fit.

    Members are alike, so seating them one after the other finds room whenever there is any.
    """
    need = state.floors[job.id]
    spaces = {node.name: space_on(node.name) for node in nodes}
    seats: list[Seat] = []
    for _ in range(state.specs[job.id].gang_size):
        open_nodes = [
            (space.gpu_count - need.gpus, space.cpu_millis - need.cpu_millis, name)
            for name, space in spaces.items()
            if space.takes(need)
        ]
        if not open_nodes:
            return None
        name = min(open_nodes)[2]
        seats.append(Seat(name, spaces[name].take(need)))
    return tuple(seats)
