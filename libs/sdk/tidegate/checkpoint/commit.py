"""The commit of a checkpoint: its chunks durable, then its manifests, then its root; or it never existed.

Order: each pack is fsynced under a temporary name and renamed, then their directory is fsynced; manifests likewise; the
root is created if its name is free (a link, which never replaces) and its directory is fsynced. Only then may anyone be
told. So nothing that is named durably names anything that is not.
"""

from __future__ import annotations

import os
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from tidegate import protocol
from tidegate.checkpoint import files
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.pack import Index
from tidegate.checkpoint.places import Places
from tidegate.errors import CheckpointError, UnsupportedObjectError


class LayerDraft(NamedTuple):
    """A layer whose chunks are durable; `parent` is its manifest in the checkpoint before."""

    name: str
    manifest: Manifest
    parent: Optional[str] = None


class Occasion(NamedTuple):
    """When and for whom a checkpoint is made."""

    step: int
    stamp: roots.Stamp
    predecessor: Optional[str] = None
    lost: Tuple[str, ...] = ()


def commit(places: Places, index: Index, occasion: Occasion, layers: Sequence[LayerDraft]) -> roots.Root:
    """Name a checkpoint: on return it is durable. Raises CheckpointError, OSError; then there is no such checkpoint."""
    layouts = {layer.name: layer.manifest.layout for layer in layers if layer.manifest.layout}
    written = write_manifests(places, [layer.manifest for layer in layers])
    entries = [_entry(layer, manifest_id, index, layouts) for layer, manifest_id in zip(layers, written)]  # noqa: B905
    return publish_layers(places, occasion, entries)


def publish_layers(places: Places, occasion: Occasion, entries: Sequence[roots.LayerEntry]) -> roots.Root:
    """Create a root over layers that are durable. Raises as `commit`."""
    root = drafted(occasion, entries)
    create(places, root)
    return root


def drafted(occasion: Occasion, entries: Sequence[roots.LayerEntry], created_ns: Optional[int] = None) -> roots.Root:
    """Return a root that is not written yet; CheckpointError for layers that do not fit each other."""
    ordered = tuple(sorted(entries, key=lambda entry: protocol.LAYERS.index(entry.name)))
    at_ns = time.time_ns() if created_ns is None else created_ns
    draft = roots.Draft(occasion.step, at_ns, occasion.stamp, ordered, occasion.predecessor, occasion.lost)
    try:
        return draft.finished()
    except ValueError as error:
        raise CheckpointError(f"a checkpoint at step {occasion.step} was refused: {error}") from error


def write_manifests(places: Places, given: Sequence[Manifest]) -> List[str]:
    """Make manifests durable; return their ids. One that is there already is not written again."""
    ids = []
    for each in given:
        manifest_id, data = manifests.encode(each)
        if len(data) > manifests.MANIFEST_BYTES_MAX:
            raise UnsupportedObjectError(
                f"a layer whose manifest has {len(data)} bytes was refused: it has too many tensors or files; at most "
                f"{manifests.MANIFEST_BYTES_MAX} bytes are accepted"
            )
        if not _is_there(places, manifest_id, data):
            with files.Temporary(places.staging) as temporary:
                files.write_all(temporary.descriptor, memoryview(data))
                files.seal(temporary.descriptor)
                temporary.name_as(places.manifests, manifest_id + manifests.SUFFIX)
        ids.append(manifest_id)
    # Also where all were there: the process that wrote them may not have come this far.
    os.fsync(places.manifests)
    places.sync_staging()
    return ids


def _is_there(places: Places, manifest_id: str, data: bytes) -> bool:
    try:
        found = files.read_bounded(places.manifests, manifest_id + manifests.SUFFIX, len(data))
    except (OSError, CheckpointError):
        return False
    return found == data


def _entry(layer: LayerDraft, manifest_id: str, index: Index, layouts: Dict[str, str]) -> roots.LayerEntry:
    manifest = layer.manifest
    # What an optimizer holds is laid out for one model; the other layers go with any.
    requires = (("model", layouts["model"]),) if layer.name == "optimizer" and "model" in layouts else ()
    return roots.LayerEntry(
        name=layer.name,
        kind=manifest.kind,
        manifest=manifest_id,
        bytes=manifest.size,
        packs=packs_of(index, [manifest]),
        layout=manifest.layout or None,
        requires=requires,
        parent=layer.parent,
    )


def packs_of(index: Index, given: Iterable[Manifest]) -> Tuple[str, ...]:
    """Return the packs in which the chunks of manifests lie, and the bases of those."""
    found: Dict[str, None] = {}
    for each in given:
        for blob in each.blobs:
            for chunk in blob.chunks:
                for located in index.chain(each.hash_name, chunk):
                    found[located.pack.id] = None
    return tuple(sorted(found))


def create(places: Places, root: roots.Root, directory: Optional[int] = None) -> None:
    """Create a root's file; on return it is durable. Where the very same is there already, that is a success.

    In another `directory` of the store than that of its roots it names no checkpoint: see nodepart.py.
    """
    named_in = places.roots if directory is None else directory
    data = roots.encode(root)
    if len(data) > roots.ROOT_BYTES_MAX:
        raise UnsupportedObjectError(
            f"a root of {len(data)} bytes was refused: at most {roots.ROOT_BYTES_MAX} are read"
        )
    with files.Temporary(places.staging) as temporary:
        files.write_all(temporary.descriptor, memoryview(data))
        files.seal(temporary.descriptor)
        is_new = temporary.name_once(named_in, root.name + roots.SUFFIX)
        if not is_new and roots.read(named_in, root.name) != root:
            raise CheckpointError(f"{root.name} exists already: a checkpoint is never overwritten")
        os.fsync(named_in)


def remove_root(places: Places, name: str) -> None:
    """Remove a checkpoint's name; what only it referred to is collected later."""
    files.unlink_quietly(places.roots, name + roots.SUFFIX)
