"""Reads a layer that several ranks saved together: whole, or as one of any number of parts."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from tidegate.checkpoint import arrays, layer, shard, tensors
from tidegate.checkpoint.arrays import Buffer
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.reader import Reader, Want, wants_of
from tidegate.checkpoint.shard import Shard
from tidegate.errors import CorruptCheckpointError

Part = Optional[Tuple[int, int]]
"""(index, count): this one of so many parts, cut along the first dimension. None for the whole."""


class _Found(NamedTuple):
    manifest: Manifest
    piece: layer.Piece


def load(
    reader: Reader, name: str, manifests: Sequence[Manifest], map_location: Optional[Any] = None, part: Part = None
) -> Any:
    """Return the layer as rank 0 saved it, with whole tensors in the place of shards; with `part` a Shard of each.

    Of the shards only those that have something of the part are read.
    """
    first = manifests[0]
    by_path: Dict[str, List[_Found]] = {}
    for manifest in manifests:
        for piece in layer.pieces(manifest.tree):
            by_path.setdefault(piece.path, []).append(_Found(manifest, piece))
    whole = []
    for piece in layer.pieces(first.tree):
        wanted = shard.region(piece.shape, part)
        made = _assembled(reader, f"layer {name}, {piece.path}", wanted, by_path[piece.path])
        made = made.to(map_location) if map_location is not None and hasattr(made, "to") else made
        whole.append(made if part is None else Shard(made, wanted.offset, piece.shape))
    own = {id(piece.of) for piece in layer.pieces(first.tree)}
    plain = [leaf for leaf in layer.leaves(first.tree) if id(leaf.node) not in own]
    buffers = _read(reader, name, first, plain)
    return layer.value(first.tree, buffers, map_location, whole)


def _assembled(reader: Reader, what: str, wanted: shard.Region, found: Sequence[_Found]) -> Any:
    shards = []
    for manifest, piece in found:
        if piece.shape != wanted.shape:
            raise CorruptCheckpointError(f"{what}: ranks say that the whole is {piece.shape} and {wanted.shape}")
        ((tag, body),) = piece.of.items()
        if tag not in ("n", "x"):
            raise CorruptCheckpointError(f"{what}: it is a shard of nothing that can be cut")
        if shard.overlaps(wanted, piece.offset, body["shape"]):
            leaf = layer.Leaf(piece.path, piece.of, body["b"])
            data = layer.value(piece.of, _read(reader, what, manifest, [leaf]))
            shards.append(Shard(data, piece.offset, piece.shape))
    if not shards and 0 in wanted.size:  # there are more parts than rows
        ((tag, body),) = found[0].piece.of.items()
        return (tensors if tag == "x" else arrays).empty(body, wanted.size)
    return shard.assemble(what, wanted, shards)


def _read(reader: Reader, what: str, manifest: Manifest, leaves: Sequence[layer.Leaf]) -> Dict[int, Buffer]:
    buffers: Dict[int, Buffer] = {}
    wants: List[Want] = []
    for leaf in leaves:
        if leaf.blob in buffers:
            continue
        if type(leaf.blob) is not int or not 0 <= leaf.blob < len(manifest.blobs):
            raise CorruptCheckpointError(f"{what} refers to a blob that it lacks")
        blob = manifest.blobs[leaf.blob]
        buffer = buffers[leaf.blob] = layer.allocate(blob.kind, blob.size)
        if blob.inline:
            buffer.view[:] = blob.inline
        else:
            wants += wants_of(what, manifest.hash_name, blob, buffer.view)
    reader.read(wants)
    return buffers
