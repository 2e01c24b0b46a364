"""The sandbox's history: one JSON event per line, on disk before anyone acts on it."""

from __future__ import annotations

import json
import os
import time

FILE_NAME = "events.jsonl"


class History:
    """Append-only; an offset is a byte position at the start of a line."""

    def __init__(self, state_dir: str) -> None:
        self._path = os.path.join(state_dir, FILE_NAME)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._descriptor).st_size
        directory = os.open(state_dir, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def append(self, kind: str, fields: dict[str, object]) -> dict[str, object]:
        """Stamp, write and sync one event; return it."""
        event: dict[str, object] = {"type": kind, "at_ns": time.time_ns(), **fields}
        line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
        os.write(self._descriptor, line)
        os.fdatasync(self._descriptor)
        self.size += len(line)
        return event

    def read_from(self, offset: int) -> bytes:
        with open(self._path, "rb") as reading:
            reading.seek(offset)
            return reading.read()
