"""Where the saves of several ranks meet: each process counts its own, so that all name each occasion alike."""

from __future__ import annotations

import itertools
from typing import NamedTuple, Optional, Tuple

from tidegate.checkpoint import sharding
from tidegate.checkpoint.gathering import GATHER_SECONDS_MAX, Meeting
from tidegate.checkpoint.nodepart import Gang, Spread
from tidegate.checkpoint.root import Stamp

JOIN_SECONDS_MAX = 600.0
"""How long the parts of several nodes may take to be stored, promoted and joined, from the first one on."""
ANSWER_SECONDS_MAX = 60.0
"""How much longer a rank waits to be told what became of it: who decides, decides before that."""


class OnNode(NamedTuple):
    """Where a process stands in a gang on several nodes: `rank` of the `size` members on its node, from 0."""

    node_rank: int
    rank: int
    size: int
    gang: Gang


class Occasions:
    """Names the occasions of one process. Without a place on a node, all ranks meet in one store."""

    def __init__(self, on_node: Optional[OnNode] = None) -> None:
        self._on_node = on_node
        self._numbers = itertools.count(1)

    @property
    def is_spread(self) -> bool:
        """Say whether the ranks are on several nodes."""
        return self._on_node is not None

    def next(self, step: int, stamp: Stamp) -> Tuple[Meeting, Optional[Spread]]:
        """Return where the next such save meets those of other ranks, and how it is joined with other nodes' parts."""
        number, place = next(self._numbers), self._on_node
        save = sharding.key(step, stamp, number)
        if place is None:
            return Meeting(save, stamp.rank, stamp.world_size), None
        seconds = JOIN_SECONDS_MAX + ANSWER_SECONDS_MAX
        key = sharding.key_on_node(step, stamp, number, place.node_rank)
        return Meeting(key, place.rank, place.size, GATHER_SECONDS_MAX, seconds), Spread(save, place.gang, seconds)
