"""How long the leader's work took since this process began, for whoever watches; it never influences a decision.

A *pass* is what is computed; a *wake* is all of it: silence looked for, the pass, its frame written, nodes told.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class PassTimes(msgspec.Struct):
    """Passes, or wakes, by duration: `counts[i]` took up to `bounds_seconds[i]`, the last one longer; and their sum."""

    bounds_seconds: tuple[float, ...] = BOUNDS_SECONDS
    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS_SECONDS) + 1))
    total_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds_seconds, seconds)] += 1
        self.total_seconds += seconds
