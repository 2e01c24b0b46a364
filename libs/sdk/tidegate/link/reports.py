"""Metrics between report() and the wire: calls are merged, and windows that cannot leave are dropped, oldest first."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Deque, Dict, Optional

from tidegate import protocol

WINDOW_SECONDS = 0.1
"""Calls within this time become one message."""
WINDOWS_MAX = 30
"""Windows kept while the agent is away; below protocol.REPORTS_BURST, so that they all pass when it is back."""


class Reports:
    """Thread-safe; `add` is on the training loop's hottest path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metrics: Dict[str, float] = {}
        self._step: Optional[int] = None
        self._progress: Optional[float] = None
        self._calls = 0
        self._windows: Deque[Dict[str, Any]] = deque()
        self._unsaid = 0
        self.dropped = 0

    def add(self, metrics: Dict[str, float], step: Optional[int], progress: Optional[float]) -> None:
        """Merge one report into the open window."""
        with self._lock:
            self._metrics.update(metrics)
            self._calls += 1
            if step is not None:
                self._step = step
            if progress is not None:
                self._progress = progress

    def close_window(self) -> None:
        """End the open window, if anything was reported in it."""
        with self._lock:
            if not self._calls:
                return
            metrics, calls = self._metrics, self._calls
            step, progress = self._step, self._progress
            self._metrics, self._calls, self._step, self._progress = {}, 0, None, None
            self._windows.append(_message(metrics, step, progress, calls - 1))
            if len(self._windows) > WINDOWS_MAX:
                self._lose(int(self._windows.popleft()["merged"]) + 1)

    def take(self) -> Optional[Dict[str, Any]]:
        """Return the oldest closed window as a message, or None."""
        with self._lock:
            if not self._windows:
                return None
            message = self._windows.popleft()
            message["dropped"], self._unsaid = self._unsaid, 0
            return message

    def lost(self, count: int) -> None:
        """Count reports that the agent refused."""
        with self._lock:
            self._lose(count)

    def _lose(self, count: int) -> None:
        self.dropped += count
        self._unsaid += count


def _message(metrics: Dict[str, float], step: Optional[int], progress: Optional[float], merged: int) -> Dict[str, Any]:
    # More names than a message takes can only come from several calls: the newest ones stay.
    names = list(metrics)[-protocol.METRICS_MAX :]
    return {
        "kind": "report",
        "at_ns": time.time_ns(),
        "metrics": {name: protocol.encode_metric(metrics[name]) for name in names},
        "step": step,
        "progress": progress,
        "merged": merged,
    }
