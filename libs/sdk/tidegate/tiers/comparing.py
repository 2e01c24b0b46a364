"""What two checkpoints of a job have in common, by layer and tensor, told from their manifests alone."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from tidegate.checkpoint import layer as layers
from tidegate.checkpoint.manifest import VALUES, BlobEntry, Manifest, canonical
from tidegate.checkpoint.pack import CHUNK_BYTES
from tidegate.checkpoint.root import LayerEntry, Root
from tidegate.errors import CheckpointError
from tidegate.tiers.holding import Holding, refused

Content = Tuple[Any, ...]


class LayerDiff(NamedTuple):
    """One layer in two checkpoints. `shared_bytes` is what both have as the same chunks."""

    name: str
    status: str
    """`same`, `changed`, `only in A` or `only in B`"""
    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    changed: Sequence[str] = ()
    size_bytes: int = 0
    shared_bytes: int = 0


def diff(first: Root, second: Root, held: Sequence[Holding]) -> List[LayerDiff]:
    """Compare two checkpoints. Raises CorruptCheckpointError where no holding has a manifest whole."""
    found = []
    names = dict.fromkeys([layer.name for layer in (*first.layers, *second.layers)])
    for name in names:
        before, after = first.layer(name), second.layer(name)
        if before is None or after is None:
            only = before or after
            assert only is not None
            found.append(LayerDiff(name, f"only in {'A' if before else 'B'}", size_bytes=only.bytes))
        elif before.manifest == after.manifest:
            found.append(LayerDiff(name, "same", size_bytes=after.bytes, shared_bytes=after.bytes))
        else:
            found.append(_changed(name, _parts(before, held), _parts(after, held)))
    return found


def _parts(entry: LayerEntry, held: Sequence[Holding]) -> List[Manifest]:
    manifest = _manifest(entry.manifest, held)
    return [_manifest(part, held) for part in manifest.parts] if manifest.parts else [manifest]


def _manifest(manifest_id: str, held: Sequence[Holding]) -> Manifest:
    tried: List[CheckpointError] = []
    for holding in held:
        try:
            return holding.manifest(manifest_id)
        except CheckpointError as error:
            tried.append(error)
    raise refused(f"manifest {manifest_id[:12]}", tried)


def _changed(name: str, before: Sequence[Manifest], after: Sequence[Manifest]) -> LayerDiff:
    old, new = _contents(before), _contents(after)
    both = [path for path in new if path in old]
    chunks = {chunk for manifest in before for blob in manifest.blobs for chunk in blob.chunks}
    return LayerDiff(
        name,
        "changed",
        added=[path for path in new if path not in old],
        removed=[path for path in old if path not in new],
        changed=[path for path in both if old[path] != new[path]],
        size_bytes=sum(manifest.size for manifest in after),
        shared_bytes=sum(_shared(blob, chunks) for manifest in after for blob in manifest.blobs),
    )


def _shared(blob: BlobEntry, chunks: "set[bytes]") -> int:
    sizes = (min(CHUNK_BYTES, blob.size - at * CHUNK_BYTES) for at in range(len(blob.chunks)))
    return sum(size for chunk, size in zip(blob.chunks, sizes) if chunk in chunks)  # noqa: B905


def _contents(parts: Sequence[Manifest]) -> Dict[str, Content]:
    """Return what each tensor, array or file consists of, and of each tree the values without bytes of their own."""
    found: Dict[str, Content] = {}
    for number, manifest in enumerate(parts):
        rank = f"rank {number}: " if len(parts) > 1 else ""
        if manifest.kind != VALUES:
            found.update({f"{rank}{blob.path}": _content(blob) for blob in manifest.blobs})
            continue
        for leaf in layers.leaves(manifest.tree):
            described = {key: value for key, value in _body(leaf.node).items() if key != "b"}
            found[f"{rank}{leaf.path}"] = (canonical(described), *_content(manifest.blobs[leaf.blob]))
        found[f"{rank}(other values)"] = (canonical(_plain(manifest.tree)),)
    return found


def _content(blob: BlobEntry) -> Content:
    return (blob.size, blob.chunks, blob.inline)


def _body(node: Any) -> Dict[str, Any]:
    (body,) = node.values()
    return body if isinstance(body, dict) else {}


def _plain(tree: Any) -> Optional[Any]:
    """Return a tree without what has bytes of its own: the numbers of blobs differ where the content does not."""
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    if isinstance(tree, dict):
        ((tag, body),) = tree.items()
        return None if tag in ("y", "n", "x") else {tag: _plain(body)}
    return tree
