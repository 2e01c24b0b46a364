"""What holds a job's checkpoints, in whichever tier: roots, manifests and packs, read without believing any of them.

Two things do: a store on a node's disk, written by the job itself (HotHolding), and objects of a tier (tiers/job.py).
Everything that moves, compares or repairs goes through what they have in common.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Callable, ContextManager, Iterator, List, Protocol, Sequence, Set

from tidegate.checkpoint import commit, files, pack, places
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.pack import Index, Pack
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.root import LayerEntry, Root
from tidegate.checkpoint.shelf import Shelf
from tidegate.checkpoint.store import root_names
from tidegate.errors import CheckpointError, CorruptCheckpointError

OnMoved = Callable[[int], None]
"""Told how many bytes more were moved or compared."""


class Holding(Protocol):
    """Reads raise CorruptCheckpointError for what is missing or damaged, TierUnavailableError for a tier that fails."""

    name: str
    """Which tier it is, in words."""

    def roots(self) -> List[str]:
        """Return the names of the roots, whole or not."""

    def root(self, name: str) -> Root:
        """Return a root."""

    def manifest(self, manifest_id: str) -> Manifest:
        """Return a manifest, its hash compared."""

    def packs(self) -> Set[str]:
        """Return the ids of the packs that are there, whole or not."""

    def replaced(self) -> Set[str]:
        """Return the ids of packs that roots may name and whose chunks are in others by now: see repacking.py."""

    def index(self) -> Index:
        """Return the index over all packs; one whose index is damaged is left out."""

    def fill(self, pack_id: str, descriptor: int, on_moved: OnMoved) -> None:
        """Write the bytes of a pack into an open file, as they are."""

    def put_pack(self, pack_id: str, temporary: files.Temporary) -> None:
        """Take a pack over that was compared; durable on return."""

    def put_manifests(self, given: Sequence[Manifest]) -> None:
        """Take manifests over; durable on return."""

    def create_root(self, root: Root) -> None:
        """Create a root whose layers are there; durable on return. The very same root is a success."""

    def has_manifest(self, manifest_id: str) -> bool:
        """Say whether a manifest is there, whole or not."""

    def leased(self, layers: Sequence[LayerEntry], packs: Sequence[str]) -> ContextManager[None]:
        """Keep what layers consist of from being collected for the length of a block, although no root names it yet."""

    def remove_root(self, name: str) -> None:
        """Remove a checkpoint's name; what only it needed is collected later."""


class HotHolding:
    """A store on this node's disk, held open. Its job may change it at any time: what counts is compared in a copy."""

    def __init__(self, held: Places, name: str = "hot") -> None:
        self.name = name
        self._held = held

    def roots(self) -> List[str]:
        """Return the names of the roots."""
        return root_names(self._held)

    def root(self, name: str) -> Root:
        """Return a root."""
        return roots.read(self._held.roots, name)

    def manifest(self, manifest_id: str) -> Manifest:
        """Return a manifest."""
        return manifests.read(self._held.manifests, manifest_id)

    def packs(self) -> Set[str]:
        """Return the ids of the packs."""
        return {name[: -len(pack.SUFFIX)] for name in os.listdir(self._held.packs) if pack.NAME.match(name)}

    def replaced(self) -> Set[str]:
        """Return none: a job collects its own store."""
        return set()

    def index(self) -> Index:
        """Return the index over all packs."""
        return Shelf().refresh(self._held)

    def fill(self, pack_id: str, descriptor: int, on_moved: OnMoved) -> None:
        """Write the bytes of a pack into an open file."""
        try:
            with files.open_inside(self._held.packs, pack_id + pack.SUFFIX) as file:
                size = os.fstat(file.fileno()).st_size
                for block in files.blocks(file, min(size, 2 * pack.PACK_BYTES_MAX)):
                    files.write_all(descriptor, memoryview(block))
                    on_moved(len(block))
        except OSError as error:
            raise CorruptCheckpointError(f"pack {pack_id[:12]} cannot be read: {error.strerror or error}") from error

    def put_pack(self, pack_id: str, temporary: files.Temporary) -> None:
        """Take over a pack that lies in this store's staging directory."""
        files.seal(temporary.descriptor)
        temporary.name_as(self._held.packs, pack_id + pack.SUFFIX)
        os.fsync(self._held.packs)
        self._held.sync_staging()

    def put_manifests(self, given: Sequence[Manifest]) -> None:
        """Write manifests."""
        commit.write_manifests(self._held, given)

    def create_root(self, root: Root) -> None:
        """Create a root; one that has its name and is damaged gives way."""
        try:
            commit.create(self._held, root)
        except CorruptCheckpointError:
            commit.remove_root(self._held, root.name)
            commit.create(self._held, root)

    def leased(self, layers: Sequence[LayerEntry], packs: Sequence[str]) -> ContextManager[None]:
        """Hold the store's lock together with those who save and restore: who removes takes it alone."""
        return places.in_use(self._held)

    def remove_root(self, name: str) -> None:
        """Remove a checkpoint's name."""
        commit.remove_root(self._held, name)

    def has_manifest(self, manifest_id: str) -> bool:
        """Say whether a manifest is there."""
        try:
            with files.open_inside(self._held.manifests, manifest_id + manifests.SUFFIX):
                return True
        except OSError:
            return False


def manifests_of(holding: Holding, layers: Sequence[LayerEntry]) -> List[Manifest]:
    """Return every manifest that layers consist of, those of shards too."""
    found = []
    for layer in layers:
        manifest = holding.manifest(layer.manifest)
        if manifest.kind != layer.kind:
            raise CorruptCheckpointError(f"layer {layer.name} is of kind {manifest.kind}, not {layer.kind}")
        found.append(manifest)
        found += [holding.manifest(part) for part in manifest.parts]
    return found


def packs_of(holding: Holding, layers: Sequence[LayerEntry]) -> List[str]:
    """Return the packs that layers need here: those that the root names, or where their chunks are by now."""
    named = {pack_id for layer in layers for pack_id in layer.packs}
    if named <= holding.packs():
        return sorted(named)
    return list(commit.packs_of(holding.index(), manifests_of(holding, layers)))


def missing_of(holding: Holding, root: Root) -> List[str]:
    """Say what of a checkpoint is not there, a sentence each; what is there is not compared."""
    absent = [layer.manifest for layer in root.layers if not holding.has_manifest(layer.manifest)]
    if absent:
        return [f"manifest {manifest_id[:12]} is not in {holding.name}" for manifest_id in absent]
    try:
        packs_of(holding, root.layers)
    except CorruptCheckpointError as error:
        return [str(error)]
    return []


@contextmanager
def compared_pack(holding: Holding, pack_id: str, staging: int, on_moved: OnMoved) -> Iterator[files.Temporary]:
    """Yield a copy of a pack below `staging` of which every record was compared; it is removed unless it is taken.

    Raises CorruptCheckpointError naming the chunk and offset that are damaged.
    """
    name = pack_id + pack.SUFFIX
    with files.Temporary(staging) as temporary:
        holding.fill(pack_id, temporary.descriptor, on_moved)
        with os.fdopen(os.dup(temporary.descriptor), "rb", buffering=0) as file:
            index: Pack = pack.read_open_index(file, name)
            wrong = pack.verify_records(file, index)
        if wrong:
            raise CorruptCheckpointError("; ".join(wrong[:3]))
        yield temporary


def refused(what: str, tried: Sequence[CheckpointError]) -> CheckpointError:
    """Return the error that says why none of several holdings could give something."""
    said = "; ".join(str(error) for error in tried)
    damaged = any(isinstance(error, CorruptCheckpointError) for error in tried)
    kind = CorruptCheckpointError if damaged or not tried else type(tried[0])
    return kind(f"{what} could be taken from no tier: {said or 'none holds it'}")
