"""The commit of a checkpoint: its chunks and manifests durable, then its root; or it never existed.

Order: packs, manifests and the root are written under temporary names and fsynced, side by side; packs and manifests
are renamed, then their directories are fsynced; the root is created if its name is free (a link, which never replaces)
and its directory is fsynced. Only then may anyone be told. So no root names anything that is not durable, and nothing
has a name whose bytes are not.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from tidegate import protocol
from tidegate.checkpoint import files
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.crew import SHARED, Crew
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.naming import Unnamed, name_all
from tidegate.checkpoint.pack import Index
from tidegate.checkpoint.packing import Packer
from tidegate.checkpoint.places import Places
from tidegate.errors import CheckpointError, UnsupportedObjectError


class LayerDraft(NamedTuple):
    """A layer whose chunks are packed; `parent` is its manifest in the checkpoint before."""

    name: str
    manifest: Manifest
    parent: Optional[str] = None


class Occasion(NamedTuple):
    """When and for whom a checkpoint is made."""

    step: int
    stamp: roots.Stamp
    predecessor: Optional[str] = None
    lost: Tuple[str, ...] = ()


def commit(packer: Packer, occasion: Occasion, layers: Sequence[LayerDraft]) -> roots.Root:
    """Name a checkpoint: on return it is durable. Raises CheckpointError, OSError; then there is no such checkpoint."""
    places = packer.places
    layouts = {layer.name: layer.manifest.layout for layer in layers if layer.manifest.layout}
    with ExitStack() as stack:
        unnamed = packer.finish()
        ids = _written(places, [layer.manifest for layer in layers], unnamed, stack)
        index = packer.above
        entries = [_entry(layer, manifest_id, index, layouts) for layer, manifest_id in zip(layers, ids)]  # noqa: B905
        root = drafted(occasion, entries)
        temporary = stack.enter_context(_written_root(places, root))
        name_all(places, packer.crew, unnamed, [places.packs, places.manifests], [temporary.descriptor])
        packer.named()
        _name_root(places.roots, root, temporary)
    return root


def store(packer: Packer, given: Sequence[Manifest]) -> List[str]:
    """Make what was packed and manifests durable, for a root that is made elsewhere; return the manifests' ids."""
    places = packer.places
    with ExitStack() as stack:
        unnamed = packer.finish()
        ids = _written(places, given, unnamed, stack)
        name_all(places, packer.crew, unnamed, [places.packs, places.manifests])
        packer.named()
    return ids


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


def write_manifests(places: Places, given: Sequence[Manifest], crew: Crew = SHARED) -> List[str]:
    """Make manifests durable; return their ids. One that is there already is not written again."""
    with ExitStack() as stack:
        unnamed: List[Unnamed] = []
        ids = _written(places, given, unnamed, stack)
        name_all(places, crew, unnamed, [places.manifests])
    return ids


def _written(places: Places, given: Sequence[Manifest], unnamed: List[Unnamed], stack: ExitStack) -> List[str]:
    """Write the manifests that are not there yet, and add them to those without a name; return the ids of all."""
    ids: List[str] = []
    for each in given:
        manifest_id, data = manifests.encode(each)
        if len(data) > manifests.MANIFEST_BYTES_MAX:
            raise UnsupportedObjectError(
                f"a layer whose manifest has {len(data)} bytes was refused: it has too many tensors or files; at most "
                f"{manifests.MANIFEST_BYTES_MAX} bytes are accepted"
            )
        if manifest_id not in ids and not _is_there(places, manifest_id, data):
            temporary = stack.enter_context(files.Temporary(places.staging))
            files.write_all(temporary.descriptor, memoryview(data))
            unnamed.append(Unnamed(temporary, places.manifests, manifest_id + manifests.SUFFIX))
        ids.append(manifest_id)
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
    with _written_root(places, root) as temporary:
        files.seal(temporary.descriptor)
        _name_root(places.roots if directory is None else directory, root, temporary)


@contextmanager
def _written_root(places: Places, root: roots.Root) -> Iterator[files.Temporary]:
    data = roots.encode(root)
    if len(data) > roots.ROOT_BYTES_MAX:
        raise UnsupportedObjectError(
            f"a root of {len(data)} bytes was refused: at most {roots.ROOT_BYTES_MAX} are read"
        )
    with files.Temporary(places.staging) as temporary:
        files.write_all(temporary.descriptor, memoryview(data))
        yield temporary


def _name_root(directory: int, root: roots.Root, temporary: files.Temporary) -> None:
    is_new = temporary.name_once(directory, root.name + roots.SUFFIX)
    if not is_new and roots.read(directory, root.name) != root:
        raise CheckpointError(f"{root.name} exists already: a checkpoint is never overwritten")
    os.fsync(directory)


def remove_root(places: Places, name: str) -> None:
    """Remove a checkpoint's name; what only it referred to is collected later."""
    files.unlink_quietly(places.roots, name + roots.SUFFIX)
