"""Control messages that the agent has not acknowledged: numbered, bounded, and sent again after a reconnect.

None is ever dropped: when the outbox is full the caller waits, and then gets an error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, Deque, Dict, Optional, Tuple

from tidegate import protocol
from tidegate.errors import AgentUnreachableError, MessageRefusedError, TidegateError

MESSAGES_MAX = 1024
BYTES_MAX = 4 << 20
WAIT_SECONDS_MAX = 30.0
REFUSALS_MAX = 100


class Outbox:
    """Thread-safe. `cursor` counts the messages already sent on the present connection."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._entries: Deque[Tuple[int, bytes]] = deque()
        self._bytes = 0
        self._last_seq = 0
        self._cursor = 0
        self._refused: Dict[int, str] = {}
        self._failure: Optional[TidegateError] = None

    def put(self, message: Dict[str, Any], wait_seconds: float = WAIT_SECONDS_MAX) -> int:
        """Number and keep a message; raises AgentUnreachableError when there is no room for `wait_seconds`."""
        limit = time.monotonic() + wait_seconds
        with self._condition:
            while len(self._entries) >= MESSAGES_MAX or self._bytes >= BYTES_MAX:
                if self._failure is not None:
                    raise self._failure
                left = limit - time.monotonic()
                if left <= 0:
                    raise AgentUnreachableError(
                        f"a {message['kind']!r} message was refused: {len(self._entries)} earlier ones wait for the "
                        f"agent, which has not acknowledged any for {wait_seconds:g} s"
                    )
                self._condition.wait(left)
            frame = protocol.encode_frame({**message, "seq": self._last_seq + 1})
            self._last_seq += 1
            self._entries.append((self._last_seq, frame))
            self._bytes += len(frame)
            return self._last_seq

    @property
    def first_seq(self) -> int:
        """Return the oldest number that may still be sent."""
        with self._condition:
            return self._entries[0][0] if self._entries else self._last_seq + 1

    @property
    def empty(self) -> bool:
        """Return whether everything was acknowledged."""
        with self._condition:
            return not self._entries

    def next_frame(self) -> Optional[bytes]:
        """Return the next frame not yet sent on this connection, or None."""
        with self._condition:
            if self._cursor >= len(self._entries):
                return None
            self._cursor += 1
            return self._entries[self._cursor - 1][1]

    def rewind(self, seq: int = 0) -> None:
        """Send again from `seq` on (from the oldest kept one by default)."""
        with self._condition:
            first = self._entries[0][0] if self._entries else self._last_seq + 1
            self._cursor = min(self._cursor, max(0, seq - first))

    def acknowledge(self, seq: int) -> None:
        """Forget every message up to `seq`."""
        with self._condition:
            while self._entries and self._entries[0][0] <= seq:
                self._bytes -= len(self._entries.popleft()[1])
                self._cursor = max(0, self._cursor - 1)
            self._condition.notify_all()

    def refuse(self, seq: int, why: str) -> None:
        """Forget a message that the agent refused for good; whoever waits for it is told."""
        with self._condition:
            self._refused[seq] = why
            while len(self._refused) > REFUSALS_MAX:
                self._refused.pop(next(iter(self._refused)))
        self.acknowledge(seq)

    def refusal(self, seq: int) -> Optional[str]:
        """Return why the agent refused the message, None where it did not."""
        with self._condition:
            return self._refused.get(seq)

    def fail(self, error: Optional[TidegateError]) -> None:
        """Let nobody wait any longer: the link is gone for good."""
        with self._condition:
            self._failure = error or AgentUnreachableError("the connection to the agent was closed")
            self._condition.notify_all()

    def wait_acknowledged(self, seq: int, seconds: float) -> bool:
        """Wait until everything up to `seq` was acknowledged; False after `seconds` or when the link is gone."""
        with self._condition:
            self._condition.wait_for(lambda: self._gone(seq) or self._failure is not None, max(0.0, seconds))
            if seq in self._refused:
                raise MessageRefusedError(f"the agent refused the message: {self._refused[seq]}")
            return self._gone(seq)

    def _gone(self, seq: int) -> bool:
        return not self._entries or self._entries[0][0] > seq
