"""Which samples were heard already: each node numbers its own, so a late duplicate is known. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate_events.telemetry import Sample

NODES_MAX = 20_000

Mark = tuple[str, int, int]
"""node, incarnation, seq"""


class Marks:
    """The newest (incarnation, seq) of each node; anything not above it is old."""

    def __init__(self, marks: Iterable[Mark] = ()) -> None:
        self._newest: dict[str, tuple[int, int]] = {node: (incarnation, seq) for node, incarnation, seq in marks}
        self._changed: set[str] = set()

    def is_news(self, sample: Sample) -> bool:
        """Say whether the sample was not heard before, and remember it."""
        mark = (sample.incarnation, sample.seq)
        if mark <= self._newest.get(sample.node, (0, 0)):
            return False
        if sample.node not in self._newest and len(self._newest) >= NODES_MAX:
            del self._newest[next(iter(self._newest))]
        self._newest[sample.node] = mark
        self._changed.add(sample.node)
        return True

    def take(self) -> list[Mark]:
        """Return the marks that changed since the last time."""
        changed = [(node, *self._newest[node]) for node in self._changed if node in self._newest]
        self._changed.clear()
        return changed
