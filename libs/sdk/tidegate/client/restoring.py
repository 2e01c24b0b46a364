"""Carry out a plan to restore: copy the planned layers out of a tier that this machine can read.

Layers of files become files. Layers of values become a store of their own, which `tidegate.checkpoint` reads. Each byte
is compared with the hash that the checkpoint's id vouches for, and the target appears whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, List, Mapping, Sequence, Tuple

from tidegate.checkpoint import copying, files, places, reader, store, trees
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.copying import OnCopied
from tidegate.checkpoint.crew import SHARED
from tidegate.checkpoint.manifest import FILES
from tidegate.checkpoint.pack import Index
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.root import LayerEntry, Root
from tidegate.checkpoint.shelf import Shelf
from tidegate.client.errors import ClientError
from tidegate.errors import CorruptCheckpointError
from tidegate.tiers import reading as tier_reading

if TYPE_CHECKING:
    from tidegate.tiers.tiers import Tiers


class RestoreError(ClientError):
    """The planned checkpoint cannot be read here, or the target cannot be written."""


def carry_out(
    plan: Mapping[str, Any], tier: Path, target: Path, on_copied: OnCopied = lambda count: None
) -> List[Path]:
    """Copy the planned layers into `target`, which must not exist or be empty; return the files.

    Raises RestoreError for what cannot be read or written, CorruptCheckpointError for bytes that were not saved so.
    """
    return copy_out(plan, _source(plan, tier), target, on_copied)


def from_tiers(plan: Mapping[str, Any], tiers: Tiers, target: Path, on_copied: OnCopied) -> List[Path]:
    """Carry a plan out from the nearest of a cluster's tiers that has the layers whole. Raises as `carry_out`."""
    tenant, job = _store_parts(plan)
    with tiers.holdings(tenant, job) as held:
        found = [each.root for each in tier_reading.known(held) if each.root.id == plan["checkpoint_id"]]
    if not found:
        message = f"No tier that can be read here ({', '.join(tiers.names())}) has the planned checkpoint whole."
        raise RestoreError(message, "Run this where a tier that has it is mounted, and name it (--tier-dir).")
    target = target.expanduser().absolute()
    names = [str(layer["name"]) for layer in plan["layers"]]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        wanted = tier_reading.Wanted(tenant, job, found[0], names, target.parent)
        return tier_reading.read_from(tiers, wanted, lambda store: copy_out(plan, store, target, on_copied))
    except OSError as error:
        raise RestoreError(f"{target} cannot be made: {error.strerror}.", "Name a directory you may write.") from error


def copy_out(plan: Mapping[str, Any], source: Path, target: Path, on_copied: OnCopied) -> List[Path]:
    """Carry a plan out from the store in `source`. Raises as `carry_out`."""
    target = target.expanduser().absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RestoreError(f"{target} is not empty.", "Accepted is a directory that is empty or not there yet.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise RestoreError(f"{target} cannot be made: {error.strerror}.", "Name a directory you may write.") from error
    try:
        with places.opened(source) as held:
            _restore(held, _planned_root(held, plan), plan, partial, on_copied)
        written = sorted(path.relative_to(partial) for path in partial.rglob("*") if path.is_file())
        partial.chmod(0o755)
        partial.rename(target)
    except OSError as error:
        raise RestoreError(
            f"Copying to {target} failed: {error.strerror or error}.", "Nothing was left behind."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [target / name for name in written]


def _planned_root(held: Places, plan: Mapping[str, Any]) -> Root:
    root = roots.read(held.roots, str(plan["root"]))
    if root.id != plan["checkpoint_id"]:
        raise CorruptCheckpointError(f"{root.name} is checkpoint {root.id[:12]}, not {plan['checkpoint_id'][:12]}")
    return root


def _restore(held: Places, root: Root, plan: Mapping[str, Any], partial: Path, on_copied: OnCopied) -> None:
    layers = [_layer(root, str(planned["name"])) for planned in plan["layers"]]
    index = Shelf().refresh(held)
    values = [entry for entry in layers if entry.kind != FILES]
    if values:
        with places.opened(partial, create=True) as target:
            copying.copy_layers(held, target, index, values, on_copied)
            copying.copy_root(target, root)
            with reader.reading(target, Shelf().refresh(target), SHARED) as reading:
                for entry in values:
                    for manifest in store.layer_manifests(target, entry):
                        reader.verify(reading, entry.name, manifest)
    _restore_trees(held, index, [entry for entry in layers if entry.kind == FILES], partial, on_copied)


def _restore_trees(
    held: Places, index: Index, layers: Sequence[LayerEntry], partial: Path, on_copied: OnCopied
) -> None:
    with reader.reading(held, index, SHARED) as reading:
        for entry in layers:
            below = partial / entry.name
            below.mkdir()
            target = os.open(below, files.DIRECTORY_FLAGS)
            try:
                (manifest,) = store.layer_manifests(held, entry)
                trees.put_tree(reading, manifest, entry.name, target, on_copied)
            finally:
                os.close(target)


def _store_parts(plan: Mapping[str, Any]) -> Tuple[str, str]:
    parts = PurePosixPath(str(plan["store"])).parts
    if len(parts) != 2 or ".." in parts or parts[0] == "/":
        raise RestoreError(f"The plan names the store {plan['store']!r}.", "Accepted is TENANT/JOB.")
    return parts[0], parts[1]


def _source(plan: Mapping[str, Any], tier: Path) -> Path:
    source = tier.joinpath(*_store_parts(plan))
    if not source.is_dir():
        message = f"The {plan['tier']} tier of node {plan['node']} cannot be read here: there is no {source}."
        raise RestoreError(message, "Run this where that tier is mounted, and name it (--tier-dir).")
    return source


def _layer(root: Root, name: str) -> LayerEntry:
    layer = root.layer(name)
    if layer is None:
        raise CorruptCheckpointError(f"checkpoint {root.id[:12]} was planned with a layer {name!r} that it lacks")
    return layer
