"""Saves what several ranks hold together as one checkpoint: a manifest for each rank, and one root over all."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from tidegate.checkpoint import gathering, hashes, layer, shard
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.commit import Occasion, packs_of, publish_layers, write_manifests
from tidegate.checkpoint.gathering import Meeting
from tidegate.checkpoint.manifest import SHARDED, Manifest, canonical
from tidegate.checkpoint.packing import Base, Packer
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.snapshot import Snapshot
from tidegate.checkpoint.writing import Kept, Key, kept_of, store_layers
from tidegate.errors import SaveFailedError, UsageError


def key(step: int, stamp: roots.Stamp, number: int) -> str:
    """Return what names the occasion on every rank: the `number`-th such save of the attempt."""
    group = hashes.sha256(f"{stamp.component}/{stamp.replica}".encode())[:8]
    return f"{step:012d}-{stamp.attempt}-{group}-{number}"


class Stored(NamedTuple):
    """A rank's part: what it says about it to the others, and what its next save may build on."""

    said: Dict[str, Any]
    bases: Dict[Key, Base]


def store_part(packer: Packer, snapshot: Snapshot, kept: Optional[Kept] = None) -> Stored:
    """Store what this rank holds, durably; what it says may be that it failed. Raises nothing but that the process
    ends."""
    try:
        drafts, bases = store_layers(packer, snapshot, kept)
        packer.seal()
        ids = write_manifests(packer.places, [draft.manifest for draft in drafts])
    except Exception as error:  # noqa: BLE001 - said to the other ranks, and raised here after that
        return Stored({"failed": f"{type(error).__name__}: {error}"[: gathering.REASON_CHARS_MAX]}, {})
    said = {"layers": {draft.name: manifest_id for draft, manifest_id in zip(drafts, ids)}}  # noqa: B905
    return Stored(said, bases)


def save(
    packer: Packer, occasion: Occasion, snapshot: Snapshot, meeting: Meeting, kept: Optional[Kept] = None
) -> Tuple[roots.Root, Kept]:
    """Store this rank's part and wait for the others, with the store's shared lock held.

    Returns the root, the same on every rank, and what this rank's next save may build on. Raises SaveFailedError on
    every rank when one failed or did not come.
    """
    part = store_part(packer, snapshot, kept)
    with gathering.announced(packer.places, meeting, part.said) as gathered:
        if meeting.rank == 0:
            name = gathered.lead(lambda parts: _make_root(packer, occasion, parts).name)
        else:
            name = gathered.follow()
    root = roots.read(packer.places.roots, name)
    return root, kept_of(snapshot, part.bases, root)


def _make_root(packer: Packer, occasion: Occasion, parts: List[Dict[str, Any]]) -> roots.Root:
    names = sorted(parts[0]["layers"])
    if any(sorted(part["layers"]) != names for part in parts):
        raise SaveFailedError("the ranks stored different layers: each saves the same ones, empty where it has nothing")
    packer.refresh()
    entries = [_entry(packer, name, [str(part["layers"][name]) for part in parts]) for name in names]
    return publish_layers(packer.places, occasion, _with_requirements(entries))


def _entry(packer: Packer, name: str, ids: List[str]) -> roots.LayerEntry:
    places: Places = packer.places
    parts = [manifests.read(places.manifests, part) for part in ids]
    _check_pieces(name, parts)
    (manifest_id,) = write_manifests(places, [Manifest(SHARDED, parts=tuple(ids))])
    return roots.LayerEntry(
        name=name,
        kind=SHARDED,
        manifest=manifest_id,
        bytes=sum(part.size for part in parts),
        packs=packs_of(packer.index, parts),
        layout=_layout(parts),
    )


def _check_pieces(name: str, parts: List[Manifest]) -> None:
    """Raise UsageError where what the ranks hold does not make up whole tensors: nobody could load them."""
    held: Dict[str, List[Tuple[List[int], List[int]]]] = {}
    shapes: Dict[str, Tuple[int, ...]] = {}
    for part in parts:
        for piece in layer.pieces(part.tree):
            ((_, body),) = piece.of.items()
            if shapes.setdefault(piece.path, piece.shape) != piece.shape:
                said = f"ranks say that the whole is {shapes[piece.path]} and {piece.shape}"
                raise UsageError(f"{name}.{piece.path} was refused: {said}")
            held.setdefault(piece.path, []).append((list(piece.offset), list(body["shape"])))
    known = {piece.path for piece in layer.pieces(parts[0].tree)}
    if lacking := sorted(set(held) - known):
        raise UsageError(f"{name}.{lacking[0]} was refused: rank 0 has no shard of it, not even an empty one")
    for path, pieces in held.items():
        shard.check_whole(f"{name}.{path}", shapes[path], pieces)


def _layout(parts: List[Manifest]) -> str:
    """Return the hash of names, types and whole shapes: the same however many ranks saved it."""
    found: Dict[str, Tuple[Optional[str], List[int]]] = {}
    for part in parts:
        for piece in layer.pieces(part.tree):
            ((_, body),) = piece.of.items()
            found[piece.path] = (body["dtype"], list(piece.shape))
    for leaf in layer.leaves(parts[0].tree):
        ((tag, body),) = leaf.node.items()
        if tag != "y":
            found.setdefault(leaf.path, (body["dtype"], body["shape"]))
    return hashes.sha256(canonical(sorted(found.items())))


def _with_requirements(entries: List[roots.LayerEntry]) -> List[roots.LayerEntry]:
    model = next((entry.layout for entry in entries if entry.name == "model"), None)
    if model is None:
        return entries
    return [
        roots.LayerEntry(**{**vars(entry), "requires": (("model", model),)}) if entry.name == "optimizer" else entry
        for entry in entries
    ]
