"""Removes from a store what no checkpoint refers to, with its lock held alone: nobody saves or restores meanwhile."""

from __future__ import annotations

import logging
import os
from typing import List, Set

from tidegate.checkpoint import files, nodepart
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.pack import NAME, SUFFIX, Index, read_index
from tidegate.checkpoint.places import Places
from tidegate.errors import CorruptCheckpointError

_log = logging.getLogger("tidegate.checkpoint")


def collect(held: Places) -> List[str]:
    """Remove the packs and manifests that no root needs; return their names.

    Where a root or a manifest cannot be read nothing is removed: what it refers to may still be wanted.
    """
    try:
        live_manifests, live_packs = _live(held)
    except CorruptCheckpointError as error:
        _log.warning("nothing was removed from the checkpoint store: %s", error)
        return []
    removed = []
    for directory, suffix, live in (
        (held.packs, SUFFIX, live_packs),
        (held.manifests, manifests.SUFFIX, live_manifests),
    ):
        for name in sorted(os.listdir(directory)):
            if name.endswith(suffix) and name[: -len(suffix)] not in live:
                files.unlink_quietly(directory, name)
                removed.append(name)
    return removed


def _live(held: Places) -> "tuple[Set[str], Set[str]]":
    """Return the ids of the manifests and packs that roots need, and the parts of checkpoints of several nodes."""
    index = Index()
    for name in sorted(os.listdir(held.packs)):
        if NAME.match(name):
            index.add(read_index(held.packs, name))
    live_manifests: Set[str] = set()
    live_packs: Set[str] = set()
    names = (name[: -len(roots.SUFFIX)] for name in sorted(os.listdir(held.roots)) if name.endswith(roots.SUFFIX))
    for root in [*(roots.read(held.roots, name) for name in names), *nodepart.parts(held)]:
        for layer in root.layers:
            _mark(held, index, layer.manifest, live_manifests, live_packs)
    return live_manifests, live_packs


def _mark(held: Places, index: Index, manifest_id: str, marked: Set[str], packs: Set[str]) -> None:
    if manifest_id in marked:
        return
    manifest = manifests.read(held.manifests, manifest_id)
    marked.add(manifest_id)
    for part in manifest.parts:
        _mark(held, index, part, marked, packs)
    for blob in manifest.blobs:
        for chunk in blob.chunks:
            packs.update(located.pack.id for located in index.chain(manifest.hash_name, chunk))
