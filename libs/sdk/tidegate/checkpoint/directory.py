"""A checkpoint of files while the job writes it: a directory for each layer, taken into the store at the end."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Optional

from tidegate import protocol
from tidegate.checkpoint import files, trees
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.root import Stamp
from tidegate.checkpoint.saver import Done, retain
from tidegate.checkpoint.store import CheckpointStore


class DirectorySave:
    """Leaving the `with` block removes the directory, whether it was committed or not."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._base = os.open(store.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._temporary = files.TemporaryDirectory(self._base)

    def __enter__(self) -> "DirectorySave":
        try:
            self._temporary.__enter__()
        except BaseException:
            os.close(self._base)
            raise
        for name in protocol.LAYERS:
            (self.path / name).mkdir()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._temporary.__exit__(*error)
        finally:
            os.close(self._base)

    @property
    def path(self) -> Path:
        """Return the directory to write below."""
        return self._store.directory / self._temporary.name

    def commit(self, step: int, stamp: Stamp) -> Optional[Done]:
        """Commit what was written; None where that is nothing."""
        started = time.monotonic()
        committed = self._store.commit_drafts(
            Occasion(step, stamp), lambda packer: trees.take_layers(packer, self._temporary.descriptor)
        )
        if committed is None:
            return None
        retain(self._store)
        return Done(committed, 0, int((time.monotonic() - started) * 1000))
