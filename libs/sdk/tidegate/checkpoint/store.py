"""The directory that holds a job's committed checkpoints: finding the one to continue from, and keeping few.

It never returns a checkpoint that does not verify, and never removes the newest one or the one resumed from.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import List, NamedTuple, Optional, Set

from tidegate.checkpoint import commit
from tidegate.checkpoint import root as roots
from tidegate.errors import CorruptCheckpointError

KEEP_DEFAULT = 3

_log = logging.getLogger("tidegate.checkpoint")


class Committed(NamedTuple):
    """A committed checkpoint and where it lies."""

    root: roots.Root
    directory: Path


class Found(NamedTuple):
    """The checkpoint to continue from; `skipped` others were refused before it, `why` says why."""

    committed: Committed
    skipped: int
    why: str


class CheckpointStore:
    """The checkpoints of one job, as one of its processes sees them."""

    def __init__(self, directory: Path, stamp: roots.Stamp, keep: int = KEEP_DEFAULT) -> None:
        self.directory = directory
        self._stamp = stamp
        self._keep = max(1, keep)
        self._resumed: Set[str] = set()
        self._reported: Set[str] = set()

    def open(self) -> None:
        """Make the directory where it is missing and remove what dead writers left."""
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True, exist_ok=True)
            commit.sync_directory(self.directory.parent)
        for name in commit.clean_temporary(self.directory):
            _log.info("removed %s: an unfinished checkpoint of a process that is gone", name)

    def committed(self) -> List[Committed]:
        """Return every checkpoint whose root is intact, newest first; what its layers hold is not read."""
        found = []
        for entry in list(os.scandir(self.directory)):
            if not roots.DIRECTORY_NAME.match(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            try:
                found.append(Committed(roots.read_root(Path(entry.path)), Path(entry.path)))
            except CorruptCheckpointError as error:
                self._report(entry.name, error)
        return sorted(found, key=lambda item: item.root.age_key, reverse=True)

    def _report(self, name: str, error: CorruptCheckpointError) -> None:
        if name not in self._reported:
            self._reported.add(name)
            _log.warning("checkpoint %s is not used: %s", name, error)

    def _mine(self, root: roots.Root) -> bool:
        stamp, mine = root.stamp, self._stamp
        return (stamp.rank, stamp.component, stamp.replica) == (mine.rank, mine.component, mine.replica)

    def find(self, wanted: Optional[str]) -> Optional[Found]:
        """Return the newest checkpoint that verifies, from the one with id `wanted` on when that is given.

        Without `wanted` these are the ones this process saved itself, or those of rank 0 if it never saved any.
        """
        candidates = self.committed()
        why: List[str] = []
        if wanted is None:
            own = [item for item in candidates if self._mine(item.root)]
            candidates = own or [item for item in candidates if item.root.stamp.rank == 0]
        else:
            candidates = self._from(candidates, wanted, why)
        for item in candidates:
            try:
                roots.verify(item.directory, item.root)
            except CorruptCheckpointError as error:
                self._report(item.directory.name, error)
                why.append(str(error))
                continue
            self._resumed.add(item.root.id)
            return Found(item, len(why), "; ".join(why)[:500])
        return None

    def _from(self, candidates: List[Committed], wanted: str, why: List[str]) -> List[Committed]:
        for index, item in enumerate(candidates):
            if item.root.id == wanted:
                writer = item.root.stamp
                rest = [
                    other
                    for other in candidates[index + 1 :]
                    if (other.root.stamp.rank, other.root.stamp.component) == (writer.rank, writer.component)
                ]
                return [item, *rest]
        why.append(f"checkpoint {wanted[:12]}, which the agent named, is not in the checkpoint directory or damaged")
        _log.warning("%s", why[-1])
        return candidates

    def retain(self) -> List[str]:
        """Remove this process's own checkpoints beyond the newest ones; return the names of those removed."""
        own = [item for item in self.committed() if self._mine(item.root)]
        removed = []
        for item in own[self._keep :]:
            if item.root.id not in self._resumed:
                commit.remove_committed(item.directory)
                removed.append(item.directory.name)
        return removed
