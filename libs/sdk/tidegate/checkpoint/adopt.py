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

import hashlib
import os
import re
import shutil
import stat
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import List, NamedTuple, Optional, Tuple

from tidegate.checkpoint import root as roots
from tidegate.checkpoint.commit import Temporary, clean_temporary, sync_directory
from tidegate.checkpoint.store import CheckpointStore, Committed
from tidegate.errors import CorruptCheckpointError, UnsupportedObjectError, UsageError
from tidegate.validation import STEP_MAX

MARKER = "COMPLETE"
MARKER_SUFFIX = ".COMPLETE"
RULES = ("marker", "rename")
LAYER = "model"

_TRAILING_NUMBER = re.compile(r"([0-9]{1,12})(?:\.[A-Za-z0-9]{1,8})?$")
_DEPTH_MAX = 64


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
    """Copy the newest complete checkpoint into the hot directory and commit it; None where there is none.

    Also None when the newest one is the one adopted last, unchanged. `stamp` says for which job and attempt.
    """
    candidates = find_complete(declared, rule)
    if not candidates:
        return None
    newest = candidates[0]
    stamp = replace(stamp, adopted=newest.path.name)
    store = CheckpointStore(store_directory, stamp, keep)
    store.open()
    # Other ranks of the job may be alive, and they own the store's directory: what is written here, with the rights
    # of the agent, is out of their reach until it is complete.
    working = store_directory.parent
    clean_temporary(working)
    with Temporary(store_directory, newest.step, working) as temporary:
        (temporary.path / LAYER).mkdir()
        _copy(newest.path, temporary.path / LAYER / newest.path.name, 0)
        layers = temporary.take_directories()
        if not layers or _is_known(store, layers):
            return None
        committed = Committed(*temporary.commit(stamp, layers))
    store.retain()
    return committed


def _is_known(store: CheckpointStore, layers: Tuple[roots.LayerEntry, ...]) -> bool:
    existing = store.committed()
    return bool(existing) and existing[0].root.layers == layers


def materialise(committed: Committed, declared: Path, owner: Optional[Tuple[int, int]] = None) -> Path:
    """Put an adopted checkpoint back into the declared directory, verified as it is read; return where it lies.

    Raises CorruptCheckpointError, and then nothing was put there. What stands under its name is replaced: it is the
    same one, or a damaged one. All of it is given to `owner` (uid, gid), the user that the job runs as.
    """
    name = committed.root.stamp.adopted
    if name is None or "/" in name or name.startswith("."):
        raise UsageError(f"{committed.directory.name} was refused: it was not taken over from a declared directory")
    declared.mkdir(parents=True, exist_ok=True)
    temporary = declared / f".tmp-{os.urandom(4).hex()}"
    try:
        _put_back(committed, name, temporary)
        target = declared / name
        _remove(target)
        os.rename(temporary, target)
        if target.is_file():
            (declared / f"{name}{MARKER_SUFFIX}").touch()
        if owner is not None:
            _give(declared, owner)
        sync_directory(declared)
    finally:
        _remove(temporary)
    return target


def _put_back(committed: Committed, name: str, target: Path) -> None:
    """Copy the files that the root names, and compare each with its hash: other ranks may be writing there."""
    layer = committed.root.layer(LAYER)
    prefix = PurePosixPath(LAYER, name)
    for entry in layer.files if layer is not None else ():
        try:
            relative = PurePosixPath(entry.path).relative_to(prefix)
        except ValueError as error:
            raise CorruptCheckpointError(f"{entry.path} does not belong to {name}, which was taken over") from error
        path = target / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        _copy_verified(committed.directory, entry, path)
    if not os.path.lexists(target):
        raise CorruptCheckpointError(f"{committed.directory.name} holds nothing of {name}, which was taken over")


def _copy_verified(directory: Path, entry: roots.FileEntry, target: Path) -> None:
    hashing = hashlib.sha256()
    try:
        reading = roots.open_inside(directory, entry.path)
    except OSError as error:
        raise CorruptCheckpointError(f"{directory.name}/{entry.path} cannot be read: {error}") from error
    with reading, open(target, "xb") as writing:
        roots.check_size(directory, entry, reading)
        for block in roots.blocks(reading, entry.bytes + 1):
            hashing.update(block)
            writing.write(block)
        roots.check_digest(directory, entry, hashing.hexdigest())
        writing.flush()
        os.fchmod(writing.fileno(), 0o644)
        os.fsync(writing.fileno())


def _give(directory: Path, owner: Tuple[int, int]) -> None:
    os.lchown(directory, *owner)
    for parent, directories, files in os.walk(directory):
        for name in [*directories, *files]:
            os.lchown(os.path.join(parent, name), *owner)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copy(source: Path, target: Path, depth: int) -> None:
    """Copy a tree of regular files and directories, following no link."""
    mode = os.lstat(source).st_mode
    if stat.S_ISDIR(mode) and depth < _DEPTH_MAX:
        target.mkdir()
        for entry in sorted(os.listdir(source)):
            _copy(source / entry, target / entry, depth + 1)
    elif stat.S_ISREG(mode):
        with roots.open_inside(source.parent, source.name) as reading, open(target, "xb") as writing:
            shutil.copyfileobj(reading, writing, roots.BLOCK_BYTES)
            writing.flush()
            os.fchmod(writing.fileno(), 0o644)
            os.fsync(writing.fileno())
    else:
        raise UnsupportedObjectError(
            f"{source.name} was refused: a checkpoint holds regular files and directories, at most {_DEPTH_MAX} deep"
        )
