"""The job's half of the stop vote: should_stop() answers alike on every rank, by counting calls.

When a stop is ordered the agent asks every process how many calls it has made; a process that has answered holds its
next call until the agent says `stop_at`, the largest count. The call with index `stop_at` (from 0) is the first to
return True, on each rank. A held call waits a bounded time: without an answer it returns True, because a process that
does not leave is killed at the deadline, and a checkpoint is worth more than agreement by then.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import Any, Dict, Optional

HOLD_SECONDS_MAX = 20.0

_log = logging.getLogger("tidegate.stop")


class StopGate:
    """Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        # Counting without a lock: next() on it is atomic, and a call that has its number looks for an order only
        # then. So a call is either counted in the answer to an order, or it sees the order and is held.
        self._counter = itertools.count()
        self._held_since: Optional[float] = None
        self._stop_at: Optional[int] = None
        self._deadline_ns = 0
        self.reason: Optional[str] = None

    def should_stop(self) -> bool:
        """Count one call and answer it."""
        index = next(self._counter)
        return False if self._held_since is None else self._answer(index)

    def _calls(self) -> int:
        # "count(7)": the only way to look at a counter without advancing it that every Python version has.
        return int(repr(self._counter)[6:-1])

    def _answer(self, index: int) -> bool:
        with self._condition:
            if self._stop_at is None and not self._condition.wait_for(
                lambda: self._stop_at is not None, self._hold_seconds()
            ):
                _log.warning("the agent did not finish the stop vote: this process stops at call %d", index)
                self._stop_at = index
            assert self._stop_at is not None
            return index >= self._stop_at

    def _hold_seconds(self) -> float:
        assert self._held_since is not None
        left = self._held_since + HOLD_SECONDS_MAX - time.monotonic()
        return max(0.0, min(left, (self._deadline_ns - time.time_ns()) / 1e9))

    def on_stop(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Take a `stop` message (a proposal, or a decision when it has a `stop_at`); return the answer to send."""
        with self._condition:
            self._deadline_ns = message["deadline_ns"]
            self.reason = message["reason"]
            if self._held_since is None:
                self._held_since = time.monotonic()
            if self._stop_at is None and message.get("stop_at") is not None:
                self._stop_at = message["stop_at"]
                self._condition.notify_all()
            return {
                "kind": "stop_count",
                "vote": message["vote"],
                "calls": self._calls(),
                "stop_at": self._stop_at,
            }

    @property
    def stop_at(self) -> Optional[int]:
        """Return the decided call index, for the hello after a reconnect."""
        with self._condition:
            return self._stop_at

    @property
    def seconds_left(self) -> Optional[float]:
        """Return the time until the deadline, None while no stop is ordered."""
        if self._held_since is None:
            return None
        return max(0.0, (self._deadline_ns - time.time_ns()) / 1e9)
