"""One agent per data directory: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

POLL_SECONDS = 0.05


class DataDirectoryInUseError(Exception):
    """Another process holds the data directory."""


def hold(path: Path, wait_seconds: float) -> int:
    """Return a descriptor that holds the lock for this process's life. Blocks. Raises DataDirectoryInUseError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise DataDirectoryInUseError(
                    f"another agent (or sweep) uses {path.parent}: end it first, or give another data directory"
                ) from None
            time.sleep(POLL_SECONDS)
        else:
            return descriptor
