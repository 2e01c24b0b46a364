"""A checkpoint to continue from, as the job holds it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

from tidegate import protocol
from tidegate.checkpoint import files, places, reader, resharding, trees
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.crew import SHARED
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.reader import Reader
from tidegate.checkpoint.shelf import Shelf
from tidegate.checkpoint.store import Committed, layer_manifests, verify
from tidegate.errors import CorruptCheckpointError, UnknownLayerError, UsageError


class Checkpoint:
    """A committed checkpoint; every load compares hashes again."""

    def __init__(self, committed: Committed) -> None:
        self._root = committed.root
        self._store = committed.store

    def __repr__(self) -> str:
        return f"<tidegate checkpoint {self.id[:12]} at step {self.step}: {', '.join(self.layers)}>"

    @property
    def id(self) -> str:
        """Return the checkpoint's id."""
        return self._root.id

    @property
    def step(self) -> int:
        """Return the step it was saved at."""
        return self._root.step

    @property
    def attempt(self) -> int:
        """Return the attempt that saved it."""
        return self._root.stamp.attempt

    @property
    def layers(self) -> Tuple[str, ...]:
        """Return the names of its layers."""
        return tuple(entry.name for entry in self._root.layers)

    @property
    def lost(self) -> Tuple[str, ...]:
        """Return the layers that were to be saved and were not: the time before the deadline was too short."""
        return self._root.lost

    def load(
        self,
        *names: str,
        map_location: Optional[Any] = None,
        tensors: Optional[Sequence[str]] = None,
        part: resharding.Part = None,
    ) -> Dict[str, Any]:
        """Return the named layers (all of them if none is named) by name; tensors go to `map_location` (default CPU).

        With `tensors` (dotted names, or patterns with *) a layer is a dict of just those, and only they are read.
        A layer that several ranks saved has whole tensors in the place of shards, or with `part`, (index, count), a
        Shard of each: that one of so many parts along the first dimension, and only what lies in it is read.
        Raises UnknownLayerError for what is not there, CorruptCheckpointError when a hash does not match.
        """
        entries = [self._values(name) for name in names or self.layers]
        with self._reading(entries) as (held, reading):
            loaded = {}
            for entry in entries:
                found = layer_manifests(held, entry)
                if entry.kind == manifests.SHARDED:
                    if tensors is not None:
                        raise UsageError(f"layer {entry.name} is of several ranks: take a part of it, not tensors")
                    loaded[entry.name] = resharding.load(reading, entry.name, found, map_location, part)
                else:
                    loaded[entry.name] = reader.load(reading, entry.name, found[0], map_location, tensors)
            return loaded

    def _values(self, name: str) -> roots.LayerEntry:
        entry = self._root.layer(name)
        if entry is None:
            known = "is not a layer" if name not in protocol.LAYERS else "was not saved"
            raise UnknownLayerError(
                f"{name!r} {known}: this checkpoint holds {', '.join(self.layers)} (in checkpoint {self.id[:12]})"
            )
        if entry.kind == manifests.FILES:
            raise UnknownLayerError(
                f"layer {name!r} was saved as files: use `with ckpt.as_directory() as d:` and read d / {name!r}"
            )
        return entry

    @contextmanager
    def _reading(self, entries: Sequence[roots.LayerEntry]) -> Iterator[Tuple[Places, Reader]]:
        try:
            with places.opened(self._store) as held, places.in_use(held):
                shelf = Shelf()
                packs = [pack for entry in entries for pack in entry.packs]
                index = shelf.with_packs(held, packs)
                if any(pack not in index.packs for pack in packs):
                    index = shelf.refresh(held)  # the chunks were moved into other packs
                with reader.reading(held, index, SHARED) as reading:
                    yield held, reading
        except FileNotFoundError as error:
            raise CorruptCheckpointError(f"the store of checkpoint {self.id[:12]} is gone: {error}") from error

    def verify(self) -> None:
        """Read every byte and compare it; CorruptCheckpointError names layer, tensor, pack and offset."""
        with places.opened(self._store) as held, places.in_use(held):
            verify(held, Shelf().refresh(held), self._root)

    @contextmanager
    def as_directory(self) -> Iterator[Path]:
        """Give a directory with the files of every layer that was saved as files, below `<layer>/`; each is verified.

        The directory is a copy, and is removed at the end of the block.
        """
        entries = [entry for entry in self._root.layers if entry.kind == manifests.FILES]
        with places.opened(self._store) as staging, files.TemporaryDirectory(staging.base) as temporary:
            with self._reading(entries) as (held, reading):
                for entry in entries:
                    os.mkdir(entry.name, 0o755, dir_fd=temporary.descriptor)
                    target = os.open(entry.name, files.DIRECTORY_FLAGS, dir_fd=temporary.descriptor)
                    try:
                        (manifest,) = layer_manifests(held, entry)
                        trees.put_tree(reading, manifest, entry.name, target)
                    finally:
                        os.close(target)
            yield self._store / temporary.name
