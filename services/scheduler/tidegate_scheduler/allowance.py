"""How much of the leader's time questions of one kind may take, so that no flood of them holds up decisions."""

from __future__ import annotations

import math


class Allowance:
    """A share of the time, of which some may be saved up. What is spent beyond it is made up for before the next one.

    Times are seconds of a clock that never goes back.
    """

    def __init__(self, share: float, saved_seconds_max: float) -> None:
        self._share = share
        self._most = self._left = saved_seconds_max
        self._counted_at: float | None = None

    def wait_seconds(self, now: float) -> int:
        """Return 0 where a question may be answered now, else after how many seconds it is worth asking again."""
        if self._counted_at is not None:
            self._left = min(self._most, self._left + (now - self._counted_at) * self._share)
        self._counted_at = now
        return 0 if self._left > 0 else max(1, math.ceil(-self._left / self._share))

    def spend(self, seconds: float) -> None:
        """Count what an answer took."""
        self._left -= seconds
