"""Numbers the samples of one start of the agent, so that a redelivered one is known."""

from __future__ import annotations

from typing import Any


class Stamp:
    """Gives each sample its place: node, incarnation, and a number that counts up."""

    def __init__(self, *, node: str, incarnation: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._seq = 0

    def next(self, at_ns: int) -> dict[str, Any]:
        """Return the fields of the next sample, taken at `at_ns`."""
        self._seq += 1
        return {"node": self._node, "incarnation": self._incarnation, "seq": self._seq, "at_ns": at_ns}
