"""Turns copied layers into a committed checkpoint, and remembers them: the next save is stored as what changed."""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from tidegate.checkpoint import hashes
from tidegate.checkpoint.commit import LayerDraft, Occasion, commit
from tidegate.checkpoint.manifest import VALUES, BlobEntry, Manifest
from tidegate.checkpoint.packing import Base, Blob, Packer
from tidegate.checkpoint.root import Root
from tidegate.checkpoint.snapshot import Copied, LayerCopy, Snapshot

Key = Tuple[str, str, str, int, int]


class Kept(NamedTuple):
    """The save before, still in memory: its blobs by layer, name, kind, size and item, and its manifests by layer."""

    snapshot: Snapshot
    bases: Dict[Key, Base]
    manifests: Dict[str, str]
    root_id: str


def write(packer: Packer, occasion: Occasion, snapshot: Snapshot, kept: Optional[Kept] = None) -> Tuple[Root, Kept]:
    """Commit a snapshot under the store's shared lock. Returns its root, and what the next save may build on."""
    drafts, bases = _drafts(packer, snapshot, kept)
    packer.seal()
    root = commit(packer.places, packer.index, occasion, drafts)
    return root, Kept(snapshot, bases, {layer.name: layer.manifest for layer in root.layers}, root.id)


def _drafts(packer: Packer, snapshot: Snapshot, kept: Optional[Kept]) -> Tuple[List[LayerDraft], Dict[Key, Base]]:
    """Store the chunks of every layer, all of them side by side; return what the layers consist of."""
    before = kept.bases if kept is not None else {}
    parents = kept.manifests if kept is not None else {}
    blobs = [
        Blob(snapshot.arena, copied.offset, copied.size, copied.item, before.get(_key(each, number, copied)))
        for each, number, copied in _large(snapshot)
    ]
    stored = packer.put(blobs)
    chunks: Dict[Tuple[str, int], Tuple[bytes, ...]] = {}
    bases: Dict[Key, Base] = {}
    for (each, number, copied), blob, ids in zip(_large(snapshot), blobs, stored):  # noqa: B905
        chunks[each.name, number] = ids
        bases[_key(each, number, copied)] = Base(blob.view, ids)
    drafts = [LayerDraft(each.name, _manifest(each, chunks), parents.get(each.name)) for each in snapshot.layers]
    return drafts, bases


def _large(snapshot: Snapshot) -> Iterator[Tuple[LayerCopy, int, Copied]]:
    for each in snapshot.layers:
        for number, copied in enumerate(each.blobs):
            if copied.inline is None:
                yield each, number, copied


def _key(each: LayerCopy, number: int, copied: Copied) -> Key:
    return each.name, each.names[number], copied.kind, copied.size, copied.item


def _manifest(each: LayerCopy, chunks: Dict[Tuple[str, int], Tuple[bytes, ...]]) -> Manifest:
    blobs = tuple(
        BlobEntry(copied.kind, copied.size, copied.item, chunks.get((each.name, number), ()), copied.inline)
        for number, copied in enumerate(each.blobs)
    )
    return Manifest(VALUES, hashes.BEST, blobs, each.tree, each.layout)
