"""Rolls layers of a checkpoint back: a new root with the layers of an older one, beside the rest of the newest."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from tidegate import protocol
from tidegate.checkpoint.root import Draft, Root
from tidegate.errors import CheckpointError, UnknownLayerError
from tidegate.tiers.holding import missing_of
from tidegate.tiers.job import JobTier


def rolled_back(newest: Root, older: Root, layers: Sequence[str], now_ns: int) -> Root:
    """Return the root that continues where `newest` stands, with these layers as they were in `older`.

    Raises UnknownLayerError for a layer that `older` lacks, CheckpointError for layers that do not fit each other.
    """
    absent = [name for name in layers if older.layer(name) is None]
    if absent or not layers:
        there = ", ".join(layer.name for layer in older.layers)
        named = ", ".join(absent) or "(none)"
        raise UnknownLayerError(f"layer {named} is not in checkpoint {older.id[:12]}: accepted are {there}")
    taken = {name: layer for name in layers if (layer := older.layer(name)) is not None}
    held = {layer.name: layer for layer in newest.layers} | {
        name: replace(layer, parent=before.manifest if (before := newest.layer(name)) else None)
        for name, layer in taken.items()
    }
    ordered = tuple(held[name] for name in protocol.LAYERS if name in held)
    lost = tuple(name for name in newest.lost if name not in held)
    stamp = newest.stamp
    if "model" in taken and older.stamp.policy_version is not None:
        stamp = replace(stamp, policy_version=older.stamp.policy_version)
    try:
        return Draft(newest.step, now_ns, stamp, ordered, newest.id, lost).finished()
    except ValueError as error:
        raise CheckpointError(f"rolling back {', '.join(layers)} was refused: {error}") from error


def roll_back(tier: JobTier, newest: str, older: str, layers: Sequence[str], now_ns: int) -> Root:
    """Create the rolled-back root in a tier that holds both checkpoints, by their names; durable on return.

    Raises CheckpointError where the tier does not hold all of both.
    """
    both = [tier.root(newest), tier.root(older)]
    lacking = [why for root in both for why in missing_of(tier, root)]
    if lacking:
        raise CheckpointError(f"the {tier.name} tier lacks a part of them: {lacking[0]}")
    root = rolled_back(both[0], both[1], layers, now_ns)
    with tier.leased(root.layers, [pack for layer in root.layers for pack in layer.packs]):
        tier.create_root(root)
    return root
