"""The sandbox's history: one JSON event per line, written before anyone acts on it, and an end on disk before that.

What begins is not synced, for only a power cut could lose it, and that ends the sandbox itself: it is found lost, with
or without its beginnings. An exit is what the job will be judged by, so it and all before it outlast a power cut.
"""

from __future__ import annotations

import json
import os
import time

FILE_NAME = "events.jsonl"
ENDS = ("exited", "ended")


class History:
    """Append-only; an offset is a byte position at the start of a line."""

    def __init__(self, state_dir: str) -> None:
        self._path = os.path.join(state_dir, FILE_NAME)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._descriptor).st_size
        self._named = False

    def append(self, kind: str, fields: dict[str, object]) -> dict[str, object]:
        """Stamp and write one event, synced if it is an end; return it."""
        event: dict[str, object] = {"type": kind, "at_ns": time.time_ns(), **fields}
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        os.write(self._descriptor, line)
        if kind in ENDS:
            self._sync()
        self.size += len(line)
        return event

    def _sync(self) -> None:
        os.fdatasync(self._descriptor)
        if not self._named:
            directory = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
            self._named = True

    def read_from(self, offset: int) -> bytes:
        with open(self._path, "rb") as reading:
            reading.seek(offset)
            return reading.read()
