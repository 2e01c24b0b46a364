"""The newest value of each key, one file per key: where state goes when the log segment that held it is deleted."""

from __future__ import annotations

import re
from pathlib import Path

from tidegate_executor.spool.segments import sync_directory, write_durably

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,190}\Z")


class StateStore:
    """JSON values in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> dict[str, bytes]:
        """Return every value by its key."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        return {path.name.removesuffix(".json"): path.read_bytes() for path in sorted(self._directory.glob("*.json"))}

    def write(self, key: str, value: bytes | None) -> None:
        """Make the value durable; None removes the key."""
        if not _KEY.match(key):
            raise ValueError(f"{key!r} cannot be a file name: use A-Z a-z 0-9 _ . - and at most 191 characters")
        path = self._directory / f"{key}.json"
        if value is None:
            path.unlink(missing_ok=True)
            sync_directory(self._directory)
        else:
            write_durably(path, value)
