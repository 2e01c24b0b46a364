"""A histogram in memory. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values up to each bound, and their sum; negative values (clocks differ) count as 0."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Take one value."""
        value = max(0.0, value)
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Return how many values there were."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, number of values up to it), as Prometheus wants them."""
        return cumulated(self._bounds, self._counts)


def cumulated(bounds: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """Return cumulative buckets of `counts`, of which there is one more than bounds."""
    running, found = 0.0, []
    for name, count in zip([*(f"{bound:g}" for bound in bounds), "+Inf"], counts, strict=True):
        running += count
        found.append((name, running))
    return found
