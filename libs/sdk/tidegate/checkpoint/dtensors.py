"""DTensors, as FSDP2 and tensor parallelism hold their parameters: what this rank has of one, as a Shard.

torch is used only where the job has imported it itself. A DTensor that every rank has whole is a plain tensor; where
only some dimensions of the mesh replicate it, the first of those that hold the same stores it. Refused by name: partial
sums, strided shards, and a DTensor of a mesh without this rank.
"""

from __future__ import annotations

import sys
from typing import Any

from tidegate.checkpoint.shard import Shard
from tidegate.errors import UnsupportedObjectError


def is_dtensor(value: Any) -> bool:
    """Return whether `value` is a DTensor."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local(value: Any, path: str) -> Any:
    """Return this rank's part of a DTensor as a Shard, or a plain tensor where every rank has all of it."""
    module: Any = sys.modules["torch.distributed.tensor"]
    for placement in value.placements:
        if type(placement) not in (module.Shard, module.Replicate):
            raise UnsupportedObjectError(
                f"{path} was refused: it is a DTensor placed as {placement!r}; accepted are Shard and Replicate: "
                "redistribute it first"
            )
    coordinate = value.device_mesh.get_coordinate()
    if coordinate is None:
        raise UnsupportedObjectError(f"{path} was refused: it is a DTensor of a mesh that this rank is not in")
    held = value.to_local().detach()
    if not any(placement.is_shard() for placement in value.placements):
        return held
    chunks = value.__create_chunk_list__()  # what torch's own distributed checkpoints go by
    if len(chunks) != 1 or tuple(chunks[0].sizes) != tuple(held.shape):
        raise UnsupportedObjectError(f"{path} was refused: what this rank holds of the DTensor is not one piece of it")
    is_copy = any(
        placement.is_replicate() and position > 0
        for placement, position in zip(value.placements, coordinate)  # noqa: B905
    )
    return Shard(held[:0] if is_copy else held, tuple(chunks[0].offsets), tuple(value.shape))
