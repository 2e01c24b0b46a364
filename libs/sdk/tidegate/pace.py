"""A token bucket that waits: so many a second, with bursts."""

from __future__ import annotations

import threading
import time


class Pace:
    """Thread-safe."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = burst
        self._filled_at = time.monotonic()
        self._lock = threading.Lock()

    def take(self, wait_seconds: float) -> bool:
        """Take a token, waiting for at most `wait_seconds`; False when it would take longer."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            delay = (1.0 - self._tokens) / self._per_second
            if delay > wait_seconds:
                return False
            self._tokens -= 1.0
        if delay > 0:
            time.sleep(delay)
        return True
