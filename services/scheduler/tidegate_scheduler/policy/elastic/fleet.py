"""The nodes by what they are in: those that are up, that are cordoned, that are away, that are being emptied."""

from __future__ import annotations

from tidegate_scheduler.policy.elastic.table import Kind
from tidegate_scheduler.state import Node


class Fleet:
    """Names of nodes; each node is in those that its state says."""

    def __init__(self) -> None:
        self.up: dict[str, None] = {}
        self.cordoned: dict[str, None] = {}
        """Of the nodes that are up, those that are cordoned."""

        self.unreachable: dict[str, None] = {}
        self.clearing: dict[str, None] = {}
        self.lost: dict[str, int] = {}
        """Of the nodes that are lost and of which nothing was asked, the time from which on they were not heard."""

    def put(self, node: Node) -> None:
        """Take in a node, or what became of it."""
        self.drop(node.name)
        name, asked = node.name, bool(node.drain_deadline_ns)
        if node.status == "up":
            self.up[name] = None
            if node.cordoned:
                self.cordoned[name] = None
        elif node.status == "unreachable":
            self.unreachable[name] = None
        elif not asked and not node.cordoned:
            self.lost[name] = node.unreachable_since_ns
        if asked and node.status != "lost":
            self.clearing[name] = None

    def drop(self, name: str) -> None:
        """Take out a node."""
        for names in (self.up, self.cordoned, self.unreachable, self.clearing):
            names.pop(name, None)
        self.lost.pop(name, None)


def kind_of(node: Node) -> Kind:
    """Return what of the node decides whether a job could ever run there."""
    return Kind(
        cpu_millis=node.capacity.cpu_millis,
        memory_mib=node.capacity.memory_mib,
        levels=node.levels,
        images=tuple(sorted(node.images.items())),
        devices=tuple(sorted((gpu.model, gpu.memory_mib) for gpu in node.gpus)),
        cpu_model=node.cpu_model,
        unavailable=tuple(sorted(node.unavailable)),
        fetches_images=node.fetches_images,
        gpu_levels=node.gpu_levels,
    )
