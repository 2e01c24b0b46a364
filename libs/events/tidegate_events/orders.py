"""What the scheduler wants a node to do, derived from its state; never journaled, sent again at will.

An order message is **level-triggered**: it holds all that the scheduler wants of the node, so a lost, repeated or
reordered one does no harm. The agent drops messages older than the newest it saw, by (epoch, at_seq).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tidegate_events.events import CheckpointRef, Quota
from tidegate_events.spec import JobSpec

LOOPBACK = "127.0.0.1"
"""The address of a node that names none: right where all nodes are one machine."""


FORGOTTEN_INCARNATION = 0
"""Orders for it, which no agent has, say that the scheduler knows no such node: its agent joins again, as it is."""


class GangPlace(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where one member of a gang stands in it.

    `nodes` are all nodes of the attempt in the order of their first ranks, so the first is that of rank 0, whose
    address is `master_address`; `node_rank` is the place of the member's own node there. `local_rank` counts the
    `local_size` members on that node, in the order of their ranks.
    """

    nodes: tuple[str, ...]
    node_rank: int = 0
    local_rank: int = 0
    local_size: int = 1
    master_address: str = LOOPBACK


class SandboxOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The desired state of one member's sandbox.

    `run`: start it if (job, attempt, rank) was never started here, and apply `quotas`. `suspend`: ask it to save and
    leave by `deadline_ns`, then end it. `stop`: ask it to leave by `deadline_ns`, then end it.

    `gang` is there for each member of a job that has several. `phase` is the one that it may enter when `quotas` hold;
    `hand_back_ns`: by then it shall have left its phase, whose lease is recalled (0: it is not).
    """

    job: str
    tenant: str
    attempt: int
    rank: int
    desired: Literal["run", "suspend", "stop"]
    spec: JobSpec
    quotas: tuple[Quota, ...]
    gpu_indices: tuple[int, ...] = ()
    resume: CheckpointRef | None = None
    deadline_ns: int = 0
    reason: str = ""
    traceparent: str = ""
    gang: GangPlace | None = None
    phase: str = ""
    hand_back_ns: int = 0


class NodeOrders(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All that the scheduler wants of one node. A sandbox it does not mention is left alone.

    `prefetch` are images that jobs which wait will probably need there; one that is not mentioned any more is not
    needed.
    """

    node: str
    incarnation: int
    epoch: int
    at_seq: int
    sandboxes: tuple[SandboxOrder, ...]
    prefetch: tuple[str, ...] = ()


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life of a node's agent."""

    node: str
    incarnation: int
    at_ns: int


_orders_encoder = msgspec.json.Encoder()
_orders_decoder = msgspec.json.Decoder(NodeOrders)
_heartbeat_decoder = msgspec.json.Decoder(Heartbeat)


def encode(message: NodeOrders | Heartbeat) -> bytes:
    """Return the wire form (JSON)."""
    return _orders_encoder.encode(message)


def decode_orders(data: bytes) -> NodeOrders:
    """Return the orders in `data`; raises msgspec.MsgspecError for anything else."""
    return _orders_decoder.decode(data)


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Return the heartbeat in `data`; raises msgspec.MsgspecError for anything else."""
    return _heartbeat_decoder.decode(data)
