"""Turns copied layers into a committed checkpoint, and remembers them: the next save is stored as what changed."""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from tidegate.checkpoint import hashes
from tidegate.checkpoint.commit import LayerDraft, Occasion, commit
from tidegate.checkpoint.grace import ORDER, Budget, OutOfTimeError
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


def write(
    packer: Packer,
    occasion: Occasion,
    snapshot: Snapshot,
    kept: Optional[Kept] = None,
    budget: Optional[Budget] = None,
) -> Tuple[Root, Kept]:
    """Commit a snapshot under the store's shared lock. Returns its root, and what the next save may build on.

    With a budget the layers are stored one after the other, and the root names those that were finished; raises
    OutOfTimeError where that is none.
    """
    drafts, bases = store_layers(packer, snapshot, kept, budget)
    finished = {draft.name for draft in drafts}
    lost = tuple(each.name for each in snapshot.layers if each.name not in finished)
    root = commit(packer, occasion._replace(lost=lost), drafts)
    return root, kept_of(snapshot, bases, root)


def kept_of(snapshot: Snapshot, bases: Dict[Key, Base], root: Root) -> Kept:
    """Return what the save after this one may build on; what was borrowed goes back to its owner."""
    manifests = {layer.name: layer.manifest for layer in root.layers}
    return Kept(snapshot._replace(borrowed=None), bases, manifests, root.id)


def store_layers(
    packer: Packer, snapshot: Snapshot, kept: Optional[Kept] = None, budget: Optional[Budget] = None
) -> Tuple[List[LayerDraft], Dict[Key, Base]]:
    """Store the layers of a snapshot, with a budget those that there is time for.

    Returns what the layers consist of, and what the next save may build on. Raises OutOfTimeError where there is time
    for none.
    """
    if budget is None:
        return _drafts(packer, snapshot.layers, snapshot, kept)
    return _in_time(packer, snapshot, kept, budget)


def _in_time(
    packer: Packer, snapshot: Snapshot, kept: Optional[Kept], budget: Budget
) -> Tuple[List[LayerDraft], Dict[Key, Base]]:
    drafts: List[LayerDraft] = []
    bases: Dict[Key, Base] = {}
    packer.check_time = budget.check
    for each in sorted(snapshot.layers, key=lambda each: ORDER.index(each.name)):
        if not budget.allows(sum(blob.size for blob in each.blobs if blob.inline is None)):
            continue  # a smaller one may still fit
        try:
            stored, added = _drafts(packer, (each,), snapshot, kept)
        except OutOfTimeError:
            break
        drafts += stored
        bases.update(added)
    if not drafts:
        raise OutOfTimeError("no layer could be stored before the deadline")
    return drafts, bases


def _drafts(
    packer: Packer, layers: Sequence[LayerCopy], snapshot: Snapshot, kept: Optional[Kept]
) -> Tuple[List[LayerDraft], Dict[Key, Base]]:
    """Store the chunks of layers, all of them side by side; return what the layers consist of."""
    before = kept.bases if kept is not None else {}
    parents = kept.manifests if kept is not None else {}
    blobs = [
        Blob(
            snapshot.arena,
            copied.offset,
            copied.size,
            copied.item,
            before.get(_key(each, number, copied)),
            copied.address,
        )
        for each, number, copied in _large(layers)
    ]
    stored = packer.put(blobs)
    if snapshot.borrowed is not None:
        snapshot.borrowed.check()  # from here on all of it is copied
    chunks: Dict[Tuple[str, int], Tuple[bytes, ...]] = {}
    bases: Dict[Key, Base] = {}
    for (each, number, copied), blob, ids in zip(_large(layers), blobs, stored):  # noqa: B905
        chunks[each.name, number] = ids
        bases[_key(each, number, copied)] = Base(blob.view, ids)
    drafts = [LayerDraft(each.name, _manifest(each, chunks), parents.get(each.name)) for each in layers]
    return drafts, bases


def _large(layers: Sequence[LayerCopy]) -> Iterator[Tuple[LayerCopy, int, Copied]]:
    for each in layers:
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
