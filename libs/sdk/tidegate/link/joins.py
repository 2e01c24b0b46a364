"""The job's half of a checkpoint that is joined of several nodes' parts: who stored one waits until that is decided.

The agent remembers nothing of who waits: it is told again on each new connection.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from tidegate.checkpoint.nodepart import NotJoinedError
from tidegate.errors import SaveFailedError

LOOK_SECONDS_MAX = 0.2
"""How long it stays unseen that nothing will come of it."""


class JoinGate:
    """Thread-safe."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._awaited: Set[Tuple[str, str]] = set()
        self._said: Set[Tuple[str, str]] = set()
        self._decided: Dict[Tuple[str, str], Dict[str, Any]] = {}

    def rewind(self) -> None:
        """Say again who waits, on a new connection."""
        with self._condition:
            self._said.clear()

    def unsaid(self) -> List[Dict[str, Any]]:
        """Return the messages that tell the agent who waits; each once on a connection."""
        with self._condition:
            new = sorted(self._awaited - self._said)
            self._said |= self._awaited
            return [{"kind": "await_join", "save": save, "part": part} for save, part in new]

    def on_joined(self, message: Dict[str, Any]) -> None:
        """Take a `joined` message."""
        with self._condition:
            if (key := (message["save"], message["part"])) in self._awaited:
                self._decided[key] = message
                self._condition.notify_all()

    def wait(
        self,
        key: Tuple[str, str],
        seconds: float,
        began: Callable[[], None],
        hindrance: Callable[[], Optional[str]],
    ) -> Dict[str, Any]:
        """Return what was decided about a part of a save; `began` is called once it is to be asked for.

        Raises SaveFailedError where `hindrance` says why nobody was told of it, NotJoinedError where nothing is known
        after so long.
        """
        limit = time.monotonic() + seconds
        with self._condition:
            self._awaited.add(key)
        try:
            began()
            with self._condition:
                while key not in self._decided:
                    if (why := hindrance()) is not None:
                        raise SaveFailedError(f"nobody was told of the part: {why}")
                    left = limit - time.monotonic()
                    if left <= 0:
                        raise NotJoinedError(
                            f"nobody said within {seconds:.0f} s what became of the parts that the nodes stored"
                        )
                    self._condition.wait(min(left, LOOK_SECONDS_MAX))
                return self._decided[key]
        finally:
            with self._condition:
                self._awaited.discard(key)
                self._said.discard(key)
                self._decided.pop(key, None)
