"""The clock port: time is an argument of pure code, and shells get it from here."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where a shell takes the time from."""

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """Return Unix time in nanoseconds."""
        return time.time_ns()


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Return the time that was last set."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Move on by `seconds` (never back)."""
        if seconds < 0:
            raise ValueError("a clock does not go back")
        self._now_ns += int(seconds * 1_000_000_000)
