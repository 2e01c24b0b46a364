"""Copies a checkpoint from one store into another: its packs, then its manifests, then its root, each verified."""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Sequence

from tidegate.checkpoint import commit, files, pack, store
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.pack import Index
from tidegate.checkpoint.places import Places
from tidegate.errors import CorruptCheckpointError

OnCopied = Callable[[int], None]
"""Told how many bytes more were copied."""


def copy_layers(
    source: Places, target: Places, index: Index, layers: Sequence[roots.LayerEntry], on_copied: OnCopied
) -> List[str]:
    """Copy what layers consist of; return the names of the packs. `index` is that of the source.

    Raises CorruptCheckpointError for what is not whole: what was copied by then stays, and no root names it.
    """
    found: Dict[str, None] = {}
    given: Dict[str, manifests.Manifest] = {}
    for entry in layers:
        parts = store.layer_manifests(source, entry)
        for manifest in (manifests.read(source.manifests, entry.manifest), *parts):
            given[manifests.encode(manifest)[0]] = manifest
    for pack_id in commit.packs_of(index, given.values()):
        found[copy_pack(source, target, pack_id, on_copied)] = None
    commit.write_manifests(target, list(given.values()))
    return list(found)


def copy_pack(source: Places, target: Places, pack_id: str, on_copied: OnCopied) -> str:
    """Copy a pack, every record of it compared on the way back from the copy; return its name."""
    name = pack_id + pack.SUFFIX
    try:
        reading = files.open_inside(source.packs, name)
    except OSError as error:
        raise CorruptCheckpointError(f"pack {pack_id[:12]} cannot be read: {error.strerror or error}") from error
    with reading, files.Temporary(target.staging) as temporary:
        size = pack.read_open_index(reading, name).size_bytes
        for block in files.blocks(reading, size):
            files.write_all(temporary.descriptor, memoryview(block))
            on_copied(len(block))
        with os.fdopen(os.dup(temporary.descriptor), "rb", buffering=0) as written:
            wrong = pack.verify_records(written, pack.read_open_index(written, name))
        if wrong:
            raise CorruptCheckpointError(wrong[0])
        files.seal(temporary.descriptor)
        temporary.name_as(target.packs, name)
    os.fsync(target.packs)
    target.sync_staging()
    return name


def copy_root(target: Places, root: roots.Root) -> None:
    """Create the very same root, once what it names is there."""
    commit.create(target, root)
