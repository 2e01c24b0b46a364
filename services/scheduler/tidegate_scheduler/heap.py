"""Python's collector of garbage, kept from pausing decisions: a state of a hundred thousand jobs has no cycles to find.

A full collection looks at every object, which takes a large fraction of a second at that size, in the middle of a pass.
So what a scheduler starts from is set aside (`gc.freeze`), young objects are collected as ever, and all of them only in
a moment when nothing is to be decided, at most once an hour: what cycles there are come from rare errors.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000
MIDDLE_COLLECTIONS = 20
NEVER = 1 << 30
FULL_INTERVAL_SECONDS = 3600.0


class Heap:
    """When the heap was looked at as a whole."""

    def __init__(self, now_seconds: float) -> None:
        """Set aside what is there at the start."""
        gc.set_threshold(YOUNG_OBJECTS, MIDDLE_COLLECTIONS, NEVER)
        self._settle(now_seconds)

    def idle(self, now_seconds: float) -> bool:
        """Use a moment in which nothing is to be decided, if it is time; say whether it was."""
        if now_seconds - self._settled_seconds < FULL_INTERVAL_SECONDS:
            return False
        self._settle(now_seconds)
        return True

    def _settle(self, now_seconds: float) -> None:
        gc.collect()
        gc.freeze()
        self._settled_seconds = now_seconds
