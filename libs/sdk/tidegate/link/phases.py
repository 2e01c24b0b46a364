"""Phase changes on their way to the agent: sent one by one at a human pace, merged when they flip faster.

The agent (and the scheduler behind it) acts on the phase a process is in, so the newest state is never lost; how
many entries were merged into it is counted. Leaving a phase waits a moment, because the next one mostly follows.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Optional

PER_SECOND = 5.0
BURST = 20.0
"""Below protocol.PHASES_PER_SECOND and PHASES_BURST, so that the agent never has to refuse one."""
LEAVE_SECONDS = 0.05


class PhaseLane:
    """Thread-safe. `put` takes a message into the outbox."""

    def __init__(self, put: Callable[[Dict[str, Any]], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._put = put
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = BURST
        self._filled_at = clock()
        self._pending: Optional[Dict[str, Any]] = None
        self._ready_at = 0.0
        self._merged = 0

    def change(self, name: Optional[str], step: Optional[int], direct: bool) -> None:
        """Take a change; it goes out at once when it enters a phase, `direct` is true and the pace allows it."""
        message = {"kind": "phase", "at_ns": time.time_ns(), "phase": name, "step": step}
        with self._lock:
            if self._pending is not None and self._pending["phase"] is not None:
                self._merged += 1
            self._pending = message
            self._ready_at = self._clock() + (LEAVE_SECONDS if name is None else 0.0)
            if direct:
                self._send_if_ready()

    def tick(self) -> None:
        """Send what is due; called by the link's thread while it is connected."""
        with self._lock:
            self._send_if_ready()

    def flush(self) -> None:
        """Send the pending change whatever the pace; called before the last messages of a process."""
        with self._lock:
            if self._pending is not None:
                self._send()

    def _send_if_ready(self) -> None:
        now = self._clock()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * PER_SECOND)
        self._filled_at = now
        if self._pending is not None and now >= self._ready_at and self._tokens >= 1.0:
            self._tokens -= 1.0
            self._send()

    def _send(self) -> None:
        assert self._pending is not None
        self._put({**self._pending, "merged": self._merged})
        self._pending = None
        self._merged = 0
