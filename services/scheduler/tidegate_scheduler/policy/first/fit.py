"""Stage 3, fit: where a whole gang finds room: all members or none, on the tightest nodes, so big rooms stay whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from tidegate_events.resources import GpuDevice, Resources

from tidegate_scheduler.isolation import isolates
from tidegate_scheduler.policy.first.room import Space
from tidegate_scheduler.state import Job, Node, State


class Seat(msgspec.Struct, frozen=True):
    """A member's place: the node and the GPUs it gets there."""

    node: str
    gpu_indices: tuple[int, ...]


class Shape(msgspec.Struct, frozen=True):
    """All that decides where a job could ever run; jobs of one shape are alike to the nodes."""

    isolation: str
    image: str
    floor: Resources
    gang_size: int


class Suitable:
    """Which nodes could hold a job, worked out once per shape and pass."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[Shape, list[Node]] = {}
        self._open: dict[Shape, list[Node]] = {}
        self._shapes: dict[str, Shape] = {}
        self._hopeful: dict[Shape, bool] = {}

    def eligible(self, job: Job) -> list[Node]:
        """Return the nodes that are up, free of zombies, and could hold a member of `job` when empty, by name.

        Nodes that refused the job are left out as long as the others, when empty, could hold the whole gang.
        """
        shape = self._shape(job)
        if (nodes := self._open.get(shape)) is None:
            nodes = [node for node in self._suiting(job) if node.status == "up" and not node.zombies]
            self._open[shape] = nodes
        if not job.excluded_nodes:
            return nodes
        kept = [node for node in nodes if node.name not in job.excluded_nodes]
        return kept if len(kept) == len(nodes) or self.holds_gang(job, kept) else nodes

    def holds_gang(self, job: Job, nodes: list[Node]) -> bool:
        """Say whether `nodes`, each of which suits a member of `job`, could hold the whole gang when empty."""
        if self._state.specs[job.id].gang_size <= len(nodes):
            return True
        return seat_gang(self._state, job, nodes, lambda name: empty_space(self._state.nodes[name])) is not None

    def hopeless(self, job: Job) -> bool:
        """Say whether `job` would not fit even if every known node were up and empty."""
        shape = self._shape(job)
        if shape not in self._hopeful:
            self._hopeful[shape] = self.holds_gang(job, self._suiting(job))
        return not self._hopeful[shape]

    def _suiting(self, job: Job) -> list[Node]:
        shape = self._shape(job)
        if shape not in self._known:
            self._known[shape] = [node for _, node in sorted(self._state.nodes.items()) if _suits(shape, node)]
        return self._known[shape]

    def _shape(self, job: Job) -> Shape:
        if (shape := self._shapes.get(job.id)) is None:
            spec = self._state.specs[job.id]
            shape = Shape(spec.isolation, spec.image, self._state.floors[job.id], spec.gang_size)
            self._shapes[job.id] = shape
        return shape


def _suits(shape: Shape, node: Node) -> bool:
    """Say whether an empty `node` could hold one member: its level, its image and its size."""
    if not isolates(node, shape.isolation, (shape.floor,)):
        return False
    if shape.image not in node.images and shape.image not in node.images.values():
        return False
    return empty_space(node).takes(shape.floor)


def empty_space(node: Node) -> Space:
    """Return the room of the node when nothing runs there."""
    gpus: list[GpuDevice] = list(node.gpus)
    return Space(node.capacity.cpu_millis, node.capacity.memory_mib, gpus, len(gpus))


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
        spaces[name] = spaces[name].copied()
        seats.append(Seat(name, spaces[name].take(need)))
    return tuple(seats)
