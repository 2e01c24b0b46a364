"""Metrics between report() and the wire: calls are merged, and windows that cannot leave are dropped, oldest first."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Mapping, Optional

from tidegate import protocol
from tidegate.link.base import ReportCall

WINDOW_SECONDS = 0.25
"""Calls within this time become one message."""
WINDOWS_MAX = 30
"""Windows kept while the agent is away; below protocol.REPORTS_BURST, so that they all pass when it is back."""


INBOX_MAX = 32
"""Calls kept between two merges. They all name the same metrics, so an older one that goes is only superseded."""


class Reports:
    """Thread-safe. `add` is on the training loop's hottest path: one append (which is atomic), no lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inbox: Deque[ReportCall] = deque(maxlen=INBOX_MAX)
        self.add: Callable[[ReportCall], None] = self._inbox.append
        self._metrics: Dict[str, float] = {}
        self._step: Optional[int] = None
        self._progress: Optional[float] = None
        self._calls = 0
        self._last_number = 0
        self._windows: Deque[Dict[str, Any]] = deque()
        self._unsaid = 0
        self.dropped = 0

    def merge(self) -> None:
        """Fold the calls so far into the open window, before others that name other metrics."""
        with self._lock:
            self._merge()

    def _merge(self) -> None:
        calls = [self._inbox.popleft() for _ in range(len(self._inbox))]
        for metrics, step, progress, number in calls:
            self._metrics.update(metrics)
            self._step = self._step if step is None else step
            self._progress = self._progress if progress is None else progress
            # By their numbers, because the ones that were superseded count as well.
            self._calls += max(0, number - self._last_number)
            self._last_number = max(self._last_number, number)

    def close_window(self) -> None:
        """End the open window, if anything was reported in it."""
        with self._lock:
            self._merge()
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


def _message(
    metrics: Mapping[str, float], step: Optional[int], progress: Optional[float], merged: int
) -> Dict[str, Any]:
    # More names than a message takes can only come from several calls: the newest ones stay.
    # What is no float was put into the caller's dict after the call that checked it.
    names = [name for name, value in metrics.items() if type(value) is float][-protocol.METRICS_MAX :]
    return {
        "kind": "report",
        "at_ns": time.time_ns(),
        "metrics": {name: protocol.encode_metric(metrics[name]) for name in names},
        "step": step,
        "progress": progress,
        "merged": merged,
    }
