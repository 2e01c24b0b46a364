"""The facts about checkpoints: what was saved, where, and what became of it.

Of a gang on several nodes each node stores a part, and one root is joined of all:
`save` names the occasion, the same on every node of the attempt; `nodes` are those whose parts make the whole, that of
rank 0 first. What became of a save is said by a CheckpointSaved or a CheckpointFailed that names it.
"""

from __future__ import annotations

from typing import Literal

from tidegate_events.envelope import AttemptEvent
from tidegate_events.records import CheckpointRef, Reason


class CheckpointSaved(AttemptEvent, frozen=True, kw_only=True):
    """A checkpoint was committed and is durable in `tier`; one joined of several nodes' parts names its `save`."""

    rank: int
    node: str
    checkpoint: CheckpointRef
    tier: Literal["hot", "warm", "cold"] = "hot"
    save: str = ""


class CheckpointFailed(AttemptEvent, frozen=True, kw_only=True):
    """A checkpoint could not be written (`stage="save"`) or did not verify (`stage="verify"`).

    With `save`, the save of a gang on several nodes was vetoed: no part of it becomes a checkpoint.
    """

    stage: Literal["save", "verify"]
    reason: Reason
    checkpoint_id: str = ""
    step: int | None = None
    save: str = ""


class CheckpointVerified(AttemptEvent, frozen=True, kw_only=True):
    """Every byte of a saved checkpoint was read back and its hashes agree."""

    checkpoint_id: str
    size_bytes: int


class CheckpointPartSaved(AttemptEvent, frozen=True, kw_only=True):
    """All ranks of the job on `node` stored their part of a save, durably there. No checkpoint is named by that."""

    rank: int
    node: str
    save: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    part: CheckpointRef


class CheckpointPartFailed(AttemptEvent, frozen=True, kw_only=True):
    """A rank on `node` could not store what it holds, or the node's part cannot be brought where nodes share it."""

    rank: int
    node: str
    save: str
    nodes: tuple[str, ...]
    reason: Reason
    step: int | None = None


class CheckpointPartPromoted(AttemptEvent, frozen=True, kw_only=True):
    """Every byte of `node`'s part was compared and is durable in a tier that nodes share."""

    save: str
    node: str
    part_id: str
    tier: Literal["warm", "cold"]
