"""How the first process of a node has its ranks' part of a checkpoint joined with those of the gang's other nodes."""

from __future__ import annotations

import time
from typing import Dict, Optional, Tuple

from tidegate import protocol
from tidegate.checkpoint.nodepart import NotJoinedError
from tidegate.checkpoint.occasions import ANSWER_SECONDS_MAX, JOIN_SECONDS_MAX, OnNode
from tidegate.checkpoint.root import Root
from tidegate.environment import Identity
from tidegate.link.base import Link


class GangSaves:
    """Implements checkpoint.nodepart.Gang over the way to the agent."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._told: Dict[str, int] = {}

    def stored(self, save: str, part: Root, ranks: Tuple[int, ...]) -> None:
        """Tell the agent of the part: it looks at it, and journals that it is there."""
        self._told[save] = self._link.control(
            {
                "kind": "part_saved",
                "at_ns": time.time_ns(),
                "save": save,
                "id": part.id,
                "directory": part.name,
                "step": part.step,
                "ranks": list(ranks),
            }
        )

    def failed(self, save: str, step: int, rank: int, why: str) -> None:
        """Tell the agent that this node has no part: that vetoes the save on all nodes."""
        text = why.encode(errors="replace").decode()[: protocol.TEXT_CHARS_MAX]
        message = {"kind": "part_failed", "at_ns": time.time_ns(), "save": save, "step": step, "rank": rank}
        self._link.control({**message, "error": text})

    def outcome(self, save: str, part: Root) -> str:
        """Wait until the save is decided; return the name of its root."""
        seconds = JOIN_SECONDS_MAX + ANSWER_SECONDS_MAX
        said = self._link.joined(self._told.pop(save), (save, part.id), seconds)
        if said.get("failed"):
            raise NotJoinedError(f"the checkpoint of all nodes at step {part.step} was vetoed: {said['failed']}")
        return str(said["root"])


def on_node(identity: Identity, link: Link) -> Optional[OnNode]:
    """Return this process's place on its node, None unless its gang is on several."""
    if identity.local_size is None or identity.local_size >= identity.world_size:
        return None
    return OnNode(identity.node_rank, identity.local_rank, identity.local_size, GangSaves(link))
