"""A bound on bytes per second over everything that shares it: what moves checkpoints leaves room for who trains.

One bound may lie within another: that of a tier within that of all tiers.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

BURST_SECONDS = 0.5
"""So much of a second's bytes may go at once after a pause."""


class Bandwidth:
    """Lets so many bytes pass in a second; `bytes_per_second` 0 means no bound. Used by several threads."""

    def __init__(
        self,
        bytes_per_second: int = 0,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        within: "Optional[Bandwidth]" = None,
    ) -> None:
        if bytes_per_second < 0:
            raise ValueError(f"{bytes_per_second} bytes per second were refused: 0 (no bound) or more is accepted")
        self.bytes_per_second = bytes_per_second
        self._within = within
        self._now = now
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more may pass, here and in what this one lies within."""
        if self._within is not None:
            self._within.take(size_bytes)
        if self.bytes_per_second == 0:
            return
        with self._lock:
            now = self._now()
            self._free_at = max(self._free_at, now - BURST_SECONDS) + size_bytes / self.bytes_per_second
            wait_seconds = self._free_at - now
        if wait_seconds > 0:
            self._sleep(wait_seconds)
