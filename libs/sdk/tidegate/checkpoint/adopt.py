"""Checkpoints of jobs that do not use the SDK: taken over from their declared directory, and put back into it.

The agent calls `adopt` when such a job has exited (never while it runs) and `materialise` before its next attempt.
What is not complete by the rule in force is never adopted:

- `marker` (the default): a directory that contains a file `COMPLETE`, or a file `x` beside a file `x.COMPLETE`.
- `rename`: the job promises that it writes under a name that starts with `.tmp` and renames when it is done, so every
  other name is complete.

Names that start with a dot, or that are not printable, are never candidates. The newest candidate is the one with the
largest number at the end of its name (checkpoint-500), then the latest modification. It becomes the layer `model` of a
checkpoint, whole.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import List, NamedTuple, Optional, Sequence, Tuple

from tidegate.checkpoint import files, places, reader, trees
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.commit import LayerDraft, Occasion
from tidegate.checkpoint.crew import SHARED
from tidegate.checkpoint.manifest import FILES, Manifest
from tidegate.checkpoint.manifest import encode as encode_manifest
from tidegate.checkpoint.packing import Packer
from tidegate.checkpoint.shelf import Shelf
from tidegate.checkpoint.store import CheckpointStore, Committed, layer_manifests
from tidegate.errors import CorruptCheckpointError, UsageError
from tidegate.validation import STEP_MAX

MARKER = "COMPLETE"
MARKER_SUFFIX = ".COMPLETE"
RULES = ("marker", "rename")
LAYER = "model"

_TRAILING_NUMBER = re.compile(r"([0-9]{1,12})(?:\.[A-Za-z0-9]{1,8})?$")


class Candidate(NamedTuple):
    """A complete checkpoint in a declared directory."""

    step: int
    modified_ns: int
    path: Path


def find_complete(declared: Path, rule: str = "marker") -> List[Candidate]:
    """Return what is complete in the declared directory, newest first; links and special files never are."""
    if rule not in RULES:
        raise UsageError(f"rule {rule!r} was refused: {' and '.join(RULES)} are accepted")
    if not declared.is_dir() or declared.is_symlink():
        return []
    entries = {entry.name: entry for entry in os.scandir(declared)}
    found = []
    for name, entry in entries.items():
        if name.startswith(".") or name.endswith(MARKER_SUFFIX) or not name.isprintable() or not _is_plain(entry):
            continue
        if rule == "rename" or _is_marked(entry, f"{name}{MARKER_SUFFIX}" in entries):
            modified = entry.stat(follow_symlinks=False).st_mtime_ns
            found.append(Candidate(_step_of(name), modified, Path(entry.path)))
    return sorted(found, reverse=True)


def _is_plain(entry: "os.DirEntry[str]") -> bool:
    return entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)


def _is_marked(entry: "os.DirEntry[str]", has_marker_beside: bool) -> bool:
    if entry.is_dir(follow_symlinks=False):
        marker = Path(entry.path) / MARKER
        return marker.is_file() and not marker.is_symlink()
    return has_marker_beside


def _step_of(name: str) -> int:
    match = _TRAILING_NUMBER.search(name)
    return min(int(match.group(1)), STEP_MAX) if match else 0


def adopt(
    declared: Path, store_directory: Path, stamp: roots.Stamp, rule: str = "marker", keep: int = 3
) -> Optional[Committed]:
    """Take the newest complete checkpoint into the store and commit it; None where there is none.

    Also None when the newest one is the one adopted last, unchanged. `stamp` says for which job and attempt.
    """
    candidates = find_complete(declared, rule)
    if not candidates:
        return None
    newest = candidates[0]
    # Other ranks of the job may be alive, and they own the store's directory: what is written here, with the rights
    # of the agent, is out of their reach until it has its name.
    store = CheckpointStore(store_directory, replace(stamp, adopted=newest.path.name), keep, store_directory.parent)
    store.open()
    known = store.committed()
    before = known[0].root.layers[0].manifest if known else None

    def take(packer: Packer) -> Sequence[LayerDraft]:
        manifest = _taken(packer, newest.path)
        return [] if encode_manifest(manifest)[0] == before else [LayerDraft(LAYER, manifest, before)]

    occasion = Occasion(newest.step, replace(stamp, adopted=newest.path.name))
    committed = store.commit_drafts(occasion, take)
    if committed is not None:
        store.retain()
    return committed


def _taken(packer: Packer, path: Path) -> Manifest:
    held = os.open(path.parent, files.DIRECTORY_FLAGS)
    try:
        return trees.take_tree(packer, held, path.name)
    finally:
        os.close(held)


def materialise(committed: Committed, declared: Path, owner: Optional[Tuple[int, int]] = None) -> Path:
    """Put an adopted checkpoint back into the declared directory, verified as it is read; return where it lies.

    Raises CorruptCheckpointError, and then nothing was put there. What stands under its name is replaced: it is the
    same one, or a damaged one. All of it is given to `owner` (uid, gid), the user that the job runs as.
    """
    name = committed.root.stamp.adopted
    if name is None or "/" in name or name.startswith("."):
        raise UsageError(f"{committed.name} was refused: it was not taken over from a declared directory")
    declared.mkdir(parents=True, exist_ok=True)
    held = os.open(declared, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with files.TemporaryDirectory(held) as temporary:
            is_file = _put_back(committed, name, temporary.descriptor)
            files.remove_tree(held, name)
            files.unlink_quietly(held, name)
            os.rename(name, name, src_dir_fd=temporary.descriptor, dst_dir_fd=held)
        if is_file:
            (declared / f"{name}{MARKER_SUFFIX}").touch()
        if owner is not None:
            _give(declared, owner)
        os.fsync(held)
    finally:
        os.close(held)
    return declared / name


def _put_back(committed: Committed, name: str, directory: int) -> bool:
    """Write the files of the layer below `directory`, under their name; return whether it is one file."""
    entry = committed.root.layer(LAYER)
    if entry is None or entry.kind != FILES:
        raise CorruptCheckpointError(f"{committed.name} holds nothing of {name}, which was taken over")
    try:
        with places.opened(committed.store) as store, places.in_use(store):
            (manifest,) = layer_manifests(store, entry)
            is_file = [blob.path for blob in manifest.blobs] == [name]
            with reader.reading(store, Shelf().refresh(store), SHARED) as reading:
                target = directory if is_file else _made(directory, name)
                try:
                    trees.put_tree(reading, manifest, LAYER, target)
                finally:
                    if target != directory:
                        os.close(target)
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"the store of {committed.name} is gone: {error}") from error
    if not manifest.blobs:
        raise CorruptCheckpointError(f"{committed.name} holds nothing of {name}, which was taken over")
    return is_file


def _made(directory: int, name: str) -> int:
    os.mkdir(name, 0o755, dir_fd=directory)
    return os.open(name, files.DIRECTORY_FLAGS, dir_fd=directory)


def _give(directory: Path, owner: Tuple[int, int]) -> None:
    os.lchown(directory, *owner)
    for parent, directories, plain in os.walk(directory):
        for name in [*directories, *plain]:
            os.lchown(os.path.join(parent, name), *owner)
