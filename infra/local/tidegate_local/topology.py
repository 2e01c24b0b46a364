"""How many processes of each kind a stack has, and what each of them is called."""

from __future__ import annotations

import msgspec

NATS = "nats"
SCHEDULER = "scheduler"
EXECUTOR = "executor"
CHECKPOINT = "checkpoint"
# What the only process of its kind calls itself; the only node, too.
INSTANCE = "local"
BUS_SERVERS = (1, 3)
SCHEDULERS_MAX = 9
NODES_MAX = 9
"""An agent's range of uids follows from its directory's CRC, which differs for sure where only one digit does."""


class Process(msgspec.Struct, frozen=True):
    """One process of the stack: `name` is that of its service, its log and its login, `instance` what it calls itself.

    Of several of a kind, `number` counts from 1; the only one of its kind has 0.
    """

    kind: str
    name: str
    instance: str
    number: int = 0


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How many of those kinds that a stack may have several of."""

    bus_servers: int = 1
    schedulers: int = 1
    nodes: int = 1
    checkpoint_nodes: tuple[str, ...] = ()
    """Nodes whose hot directory is their own, each with a checkpoint service; none: one service for all."""

    def processes(self, kind: str) -> tuple[Process, ...]:
        """Return the processes of one kind."""
        if kind == CHECKPOINT and self.checkpoint_nodes:
            return tuple(Process(kind, f"{kind}-{node}", node) for node in self.checkpoint_nodes)
        count = {NATS: self.bus_servers, SCHEDULER: self.schedulers, EXECUTOR: self.nodes}.get(kind, 1)
        if count == 1:
            return (Process(kind, kind, INSTANCE),)
        noun = "node" if kind == EXECUTOR else kind
        return tuple(Process(kind, f"{kind}-{n}", f"{noun}-{n}", n) for n in range(1, count + 1))

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return what the nodes are called."""
        return tuple(process.instance for process in self.processes(EXECUTOR))


ONE_OF_EACH = Topology()


class TopologyError(ValueError):
    """Such a stack cannot be; says what can."""


def check(topology: Topology) -> None:
    """Raise TopologyError for numbers that make no stack."""
    if topology.bus_servers not in BUS_SERVERS:
        raise TopologyError(
            f"{topology.bus_servers} bus servers refused: 1, or 3, of which one may be away (of two none may)"
        )
    for what, count, most in (
        ("schedulers", topology.schedulers, SCHEDULERS_MAX),
        ("nodes", topology.nodes, NODES_MAX),
    ):
        if not 1 <= count <= most:
            raise TopologyError(f"{count} {what} refused: 1 to {most} are accepted on one machine")
