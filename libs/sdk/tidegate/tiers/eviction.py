"""Makes room in the hot tier: checkpoints that a shared tier holds as well leave a node's disk, the oldest first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, NamedTuple, Set, Tuple

from tidegate.checkpoint import commit, files, nodepart, places, retention, store
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.root import Root
from tidegate.errors import CheckpointError, CorruptCheckpointError
from tidegate.tiers.holding import missing_of
from tidegate.tiers.tiers import STAGING, Tiers

HIGH_DEFAULT_PERCENT = 90
LOW_DEFAULT_PERCENT = 75


class Watermarks(NamedTuple):
    """Above `high_bytes` room is made until no more than `low_bytes` are used."""

    high_bytes: int
    low_bytes: int


def watermarks(capacity_bytes: int) -> Watermarks:
    """Return the watermarks for so much room."""
    return Watermarks(capacity_bytes * HIGH_DEFAULT_PERCENT // 100, capacity_bytes * LOW_DEFAULT_PERCENT // 100)


def used_bytes(hot: Path) -> int:
    """Return the bytes of all stores of a node."""
    return sum(_store_bytes(path) for path in _stores(hot))


def _stores(hot: Path) -> List[Path]:
    return sorted(path for path in hot.glob("*/*") if path.parent.name != STAGING and path.is_dir())


def _store_bytes(path: Path) -> int:
    total = 0
    for _, _, names, held in os.fwalk(path, follow_symlinks=False):
        for name in names:
            try:
                total += os.stat(name, dir_fd=held, follow_symlinks=False).st_size
            except FileNotFoundError:
                continue  # removed meanwhile
    return total


def make_room(tiers: Tiers, limits: Watermarks, running: Set[str]) -> List[Tuple[str, str]]:
    """Remove checkpoints from the node's disk where it is fuller than it should be; return (job, root) of each.

    Only what is whole in a shared tier goes, never the newest of a job in `running`, and nothing of a store that
    somebody reads or writes now. First of all goes what jobs that have ended stored as parts: nobody joins them.
    """
    used = used_bytes(tiers.hot)
    if used <= limits.high_bytes:
        return []
    used -= _drop_parts(tiers.hot, running)
    removed: List[Tuple[str, str]] = []
    for root, path in sorted(_candidates(tiers, running), key=lambda each: each[0].created_ns):
        if used <= limits.low_bytes:
            break
        before = _store_bytes(path)
        if _remove(path, root.name):
            removed.append((path.name, root.name))
            used -= before - _store_bytes(path)
    return removed


def _drop_parts(hot: Path, running: Set[str]) -> int:
    """Remove what jobs that have ended left of checkpoints of several nodes; return how many bytes that freed."""
    freed = 0
    for path in _stores(hot):
        if path.name in running:
            continue
        before = _store_bytes(path)
        try:
            with places.opened(path) as held, places.alone(held) as is_alone:
                if is_alone and nodepart.retain(held, lambda part: True, 0):
                    retention.collect(held)
        except (OSError, CorruptCheckpointError):
            continue  # not a store, or its job is changing it
        freed += before - _store_bytes(path)
    return freed


def _candidates(tiers: Tiers, running: Set[str]) -> List[Tuple[Root, Path]]:
    found = []
    for path in _stores(tiers.hot):
        try:
            shared = tiers.of_job(path.parent.name, path.name)
            with places.opened(path) as held:
                known = _roots(held)
        except (OSError, CorruptCheckpointError):
            continue  # not a store, or its job is changing it
        newest = {root.stamp.rank: root for root in sorted(known, key=lambda root: root.age_key)}
        spared = {root.name for root in newest.values()} if path.name in running else set()
        for root in known:
            if root.name in spared:
                continue
            if any(root.name in tier.roots() and not missing_of(tier, root) for tier in shared):
                found.append((root, path))
    return found


def _roots(held: Places) -> List[Root]:
    found = []
    for name in store.root_names(held):
        try:
            found.append(roots.read(held.roots, name))
        except CheckpointError:
            continue  # damaged: it is somebody else's to repair
    return found


def _remove(path: Path, name: str) -> bool:
    try:
        with places.opened(path) as held, places.alone(held) as is_alone:
            if is_alone:
                commit.remove_root(held, name)
                files.sync_directory(held.roots)
                retention.collect(held)
            return is_alone
    except (OSError, CorruptCheckpointError):
        return False
