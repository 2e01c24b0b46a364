"""A checkpoint to continue from, as the job holds it."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

from tidegate import protocol
from tidegate.checkpoint import layer as layers
from tidegate.checkpoint import root as roots
from tidegate.errors import CorruptCheckpointError, UnknownLayerError


class Checkpoint:
    """A committed checkpoint; every load compares hashes again."""

    def __init__(self, root: roots.Root, directory: Path) -> None:
        self._root = root
        self._directory = directory

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

    def load(self, *names: str, map_location: Optional[Any] = None) -> Dict[str, Any]:
        """Return the named layers (all of them if none is named) by name; tensors go to `map_location` (default CPU).

        Raises UnknownLayerError for a layer that is not there, CorruptCheckpointError when a hash does not match.
        """
        entries = [self._entry(name) for name in names or self.layers]
        return {entry.name: self._load(entry, map_location) for entry in entries}

    def _entry(self, name: str) -> roots.LayerEntry:
        entry = self._root.layer(name)
        if entry is None:
            known = "is not a layer" if name not in protocol.LAYERS else "was not saved"
            raise UnknownLayerError(
                f"{name!r} {known}: this checkpoint holds {', '.join(self.layers)} (in checkpoint {self.id[:12]})"
            )
        if entry.kind != "layer":
            raise UnknownLayerError(
                f"layer {name!r} was saved as files: use `with ckpt.as_directory() as d:` and read d / {name!r}"
            )
        return entry

    def _load(self, entry: roots.LayerEntry, map_location: Optional[Any]) -> Any:
        file_entry = entry.files[0]
        hashing = hashlib.sha256()
        try:
            with roots.open_inside(self._directory, file_entry.path) as file:
                roots.check_size(self._directory, file_entry, file)
                stored = layers.read(file, hashing.update)
        except OSError as error:
            raise CorruptCheckpointError(f"{self._directory.name}/{file_entry.path} cannot be read: {error}") from error
        roots.check_digest(self._directory, file_entry, hashing.hexdigest())
        return stored.value(map_location)

    @contextmanager
    def as_directory(self) -> Iterator[Path]:
        """Verify every file and give the directory that holds them, to read from.

        A tree written with `job.checkpoint` lies below `<layer>/`. The files are read-only; they are the checkpoint.
        """
        roots.verify(self._directory, self._root)
        yield self._directory
