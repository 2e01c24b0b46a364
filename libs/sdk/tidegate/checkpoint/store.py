"""The store of a job's checkpoints, as one of its processes sees it: saving, finding where to continue, keeping few.

It never returns a checkpoint that does not verify, and never removes the newest one or the one resumed from.
"""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Callable, ContextManager, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from tidegate.checkpoint import commit, files, gathering, nodepart, places, reader, retention, sharding
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.crew import SHARED, Crew
from tidegate.checkpoint.gathering import Meeting
from tidegate.checkpoint.grace import Budget
from tidegate.checkpoint.nodepart import Spread
from tidegate.checkpoint.pack import Index
from tidegate.checkpoint.packing import OnStored, Packer
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.shelf import Shelf
from tidegate.checkpoint.snapshot import Snapshot, refuse_shards
from tidegate.checkpoint.writing import Kept, write
from tidegate.errors import CheckpointError, CorruptCheckpointError, UsageError

KEEP_DEFAULT = 3

_log = logging.getLogger("tidegate.checkpoint")


class Committed(NamedTuple):
    """A committed checkpoint and the store that it lies in."""

    root: roots.Root
    store: Path

    @property
    def name(self) -> str:
        """Return the name of its root."""
        return self.root.name


class Found(NamedTuple):
    """The checkpoint to continue from; `skipped` others were refused before it, `why` says why."""

    committed: Committed
    skipped: int
    why: str


class CheckpointStore:
    """The checkpoints of one job. `working` is where files are written first, see Places."""

    def __init__(
        self,
        directory: Path,
        stamp: roots.Stamp,
        keep: int = KEEP_DEFAULT,
        working: Optional[Path] = None,
        crew: Crew = SHARED,
    ) -> None:
        self.directory = directory
        self._stamp = stamp
        self._keep = max(1, keep)
        self._working = working
        self._crew = crew
        self._shelf = Shelf()
        self._resumed: Set[str] = set()
        self._reported: Set[str] = set()

    def open(self) -> None:
        """Make the directory where it is missing and remove what dead writers left."""
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True, exist_ok=True)
            files.sync_directory(self.directory.parent)
        with self._places() as held:
            for name in files.clean_temporary(held.staging):
                _log.info("removed %s: an unfinished part of a checkpoint of a process that is gone", name)

    def _places(self) -> ContextManager[Places]:
        return places.opened(self.directory, create=True, working=self._working)

    @contextmanager
    def in_use(self) -> Iterator[Tuple[Places, Index]]:
        """Hold the store open and shared, with its index brought up to date."""
        with self._places() as held, places.in_use(held):
            yield held, self._shelf.refresh(held)

    def save(
        self,
        occasion: commit.Occasion,
        snapshot: Snapshot,
        kept: Optional[Kept] = None,
        on_stored: OnStored = lambda size: None,
        budget: Optional[Budget] = None,
    ) -> Tuple[Committed, Kept]:
        """Write a snapshot, or what there is time for; on return it is durable. Raises UsageError for shards."""
        refuse_shards(snapshot)
        with self.in_use() as (held, index), Packer(held, index, self._crew, on_stored) as packer:
            root, now = write(packer, occasion, snapshot, kept, budget)
        return Committed(root, self.directory), now

    def save_part(
        self,
        occasion: commit.Occasion,
        snapshot: Snapshot,
        meeting: Meeting,
        *,
        kept: Optional[Kept] = None,
        budget: Optional[Budget] = None,
        spread: Optional[Spread] = None,
        on_stored: OnStored = lambda size: None,
    ) -> Tuple[Committed, Kept]:
        """Write this rank's part of a checkpoint of several ranks; on return all of it is durable.

        With `spread` the ranks are on several nodes, and what is durable is so in a tier that they share.
        """
        with ExitStack() as stack:
            try:
                held, index = stack.enter_context(self.in_use())
                packer = stack.enter_context(Packer(held, index, self._crew, on_stored))
            except (OSError, CheckpointError) as error:
                if spread is not None:  # nobody on the other nodes need wait for a rank that cannot even begin
                    why = f"{type(error).__name__}: {error}"[: gathering.REASON_CHARS_MAX]
                    spread.gang.failed(spread.save, occasion.step, occasion.stamp.rank, why)
                raise
            packer.refresh = lambda: setattr(packer, "index", self._shelf.refresh(held))
            root, now = sharding.save(packer, occasion, snapshot, meeting, kept=kept, budget=budget, spread=spread)
        return Committed(root, self.directory), now

    def refuse_part(
        self, occasion: commit.Occasion, meeting: Meeting, why: str, spread: Optional[Spread] = None
    ) -> None:
        """Say to the other ranks that this one stores no part. Raises SaveFailedError once they know, OSError."""
        with self._places() as held:
            sharding.refuse(held, occasion, meeting, why, spread)

    def commit_drafts(
        self, occasion: commit.Occasion, take: Callable[[Packer], Sequence[commit.LayerDraft]]
    ) -> Optional[Committed]:
        """Commit the layers that `take` stores with a packer; None where it stores none."""
        with self.in_use() as (held, index), Packer(held, index, self._crew) as packer:
            drafts = take(packer)
            return Committed(commit.commit(packer, occasion, drafts), self.directory) if drafts else None

    def committed(self) -> List[Committed]:
        """Return every checkpoint whose root is intact, newest first; what its layers hold is not read."""
        with self._places() as held:
            return self._committed(held)

    def _committed(self, held: Places) -> List[Committed]:
        found = []
        for name in root_names(held):
            try:
                found.append(Committed(roots.read(held.roots, name), self.directory))
            except CorruptCheckpointError as error:
                self._report(name, error)
        return sorted(found, key=lambda item: item.root.age_key, reverse=True)

    def _report(self, name: str, error: CorruptCheckpointError) -> None:
        if name not in self._reported:
            self._reported.add(name)
            _log.warning("checkpoint %s is not used: %s", name, error)

    def _mine(self, root: roots.Root) -> bool:
        stamp, mine = root.stamp, self._stamp
        return (stamp.rank, stamp.component, stamp.replica) == (mine.rank, mine.component, mine.replica)

    def find(self, wanted: Optional[str], use: Optional[Callable[[Committed], None]] = None) -> Optional[Found]:
        """Return the newest checkpoint that verifies, from the one with id `wanted` on when that is given.

        Without `wanted` these are the ones this process saved itself, or those of rank 0 if it never saved any. With
        `use` a checkpoint is the right one when that raises no CorruptCheckpointError; nothing else is read then.
        """
        with self._places() as held, places.in_use(held):
            # The packs after the roots: those of a checkpoint that somebody saves in between are known, not missed.
            candidates, why = self._candidates(self._committed(held), wanted)
            index = self._shelf.refresh(held)
            for item in candidates:
                try:
                    if use is None:
                        verify(held, index, item.root, self._crew)
                    else:
                        use(item)
                except CorruptCheckpointError as error:
                    self._report(item.name, error)
                    self._shelf.distrust(getattr(error, "located", None))
                    why.append(str(error))
                    continue
                self._resumed.add(item.root.id)
                return Found(item, len(why), "; ".join(why)[:500])
        return None

    def named(self, at: Union[int, str]) -> Committed:
        """Return the newest checkpoint of that step, or the one whose id begins so or that has that name.

        Raises UsageError, naming those that are there.
        """
        known = self.committed()
        for item in known:
            root = item.root
            if at in (root.step, root.name) or (isinstance(at, str) and at and root.id.startswith(at)):
                return item
        there = ", ".join(f"{item.root.id[:12]} (step {item.root.step})" for item in known[:10]) or "none"
        raise UsageError(f"there is no checkpoint {at!r}: a step or an id is accepted; there are {there}")

    def _candidates(self, known: List[Committed], wanted: Optional[str]) -> Tuple[List[Committed], List[str]]:
        if wanted is None:
            own = [item for item in known if self._mine(item.root)]
            return own or [item for item in known if item.root.stamp.rank == 0], []
        for index, item in enumerate(known):
            if item.root.id == wanted:
                writer = item.root.stamp
                rest = [
                    other
                    for other in known[index + 1 :]
                    if (other.root.stamp.rank, other.root.stamp.component) == (writer.rank, writer.component)
                ]
                return [item, *rest], []
        why = f"checkpoint {wanted[:12]}, which the agent named, is not in the checkpoint directory or damaged"
        _log.warning("%s", why)
        return known, [why]

    def retain(self) -> List[str]:
        """Remove this process's own checkpoints beyond the newest ones, and what nothing refers to any more.

        Returns the names of the checkpoints removed: none while somebody else saves or restores, the next time then.
        """
        with self._places() as held, places.alone(held) as is_alone:
            if not is_alone:
                return []
            own = [item for item in self._committed(held) if self._mine(item.root)]
            removed = [item.name for item in own[self._keep :] if item.root.id not in self._resumed]
            for name in removed:
                commit.remove_root(held, name)
            if removed:
                os.fsync(held.roots)
            parts = nodepart.retain(held, self._mine, self._keep)
            if removed or parts:
                retention.collect(held)
            return removed


def root_names(held: Places) -> List[str]:
    """Return the names of the roots in a store, whole or not."""
    found = (name[: -len(roots.SUFFIX)] for name in os.listdir(held.roots) if name.endswith(roots.SUFFIX))
    return sorted(name for name in found if roots.NAME.match(name))


def layer_manifests(held: Places, entry: roots.LayerEntry) -> List[manifests.Manifest]:
    """Return the manifests of one layer that have chunks: one, or one for each rank that saved a shard."""
    manifest = manifests.read(held.manifests, entry.manifest)
    if manifest.kind != entry.kind:
        raise CorruptCheckpointError(f"layer {entry.name} is of kind {manifest.kind}, not {entry.kind}")
    if manifest.kind != manifests.SHARDED:
        return [manifest]
    return [manifests.read(held.manifests, part) for part in manifest.parts]


def verify(
    held: Places,
    index: Index,
    root: roots.Root,
    crew: Crew = SHARED,
    on_read: Callable[[int], None] = lambda size: None,
) -> None:
    """Read every byte of a checkpoint and compare it; CorruptCheckpointError names layer, tensor, pack and offset."""
    with reader.reading(held, index, crew) as reading:
        for entry in root.layers:
            for manifest in layer_manifests(held, entry):
                reader.verify(reading, entry.name, manifest, on_read)
