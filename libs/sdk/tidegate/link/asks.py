"""The job's half of asking for a phase: one call waits, until the agent grants it or nothing will come of it."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from tidegate.errors import PhaseTimeoutError, TidegateError
from tidegate.link.base import Patience

LOOK_SECONDS_MAX = 0.2
"""How long it stays unseen that nobody waits any longer."""


class AskGate:
    """Thread-safe. An ask is known by the number of its message, so an answer to an earlier one is not taken for it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._granted_seq = 0
        self._devices: Mapping[str, str] = {}

    def on_granted(self, message: Dict[str, Any]) -> None:
        """Take a `granted` message."""
        with self._condition:
            self._granted_seq = message["seq"]
            self._devices = message["environment"]
            self._condition.notify_all()

    def look(self) -> None:
        """Have who waits look again whether it still may."""
        with self._condition:
            self._condition.notify_all()

    def wait(
        self,
        ask: Tuple[str, int],
        patience: Patience,
        hindrance: Callable[[str, int], Optional[TidegateError]],
    ) -> Mapping[str, str]:
        """Return the variables of the granted phase; raises what `hindrance` names, or PhaseTimeoutError."""
        name, seq = ask
        seconds = patience.seconds
        limit = None if seconds is None else time.monotonic() + seconds
        with self._condition:
            while True:
                if (error := hindrance(name, seq)) is not None:
                    raise error
                if self._granted_seq == seq:
                    return self._devices
                if patience.given_up.is_set():
                    raise PhaseTimeoutError(f"phase {name!r} is not asked for any longer: who waited was cancelled")
                left = LOOK_SECONDS_MAX if limit is None else min(LOOK_SECONDS_MAX, limit - time.monotonic())
                if left <= 0:
                    raise PhaseTimeoutError(
                        f"phase {name!r} was not granted within {seconds:g} s and is not asked for any longer: ask "
                        "again, or pass timeout=None to wait until it is granted"
                    )
                self._condition.wait(left)
