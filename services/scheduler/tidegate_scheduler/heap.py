"""Python's collector of garbage, kept from pausing decisions: a state of a hundred thousand jobs has no cycles to find.

A full collection looks at every object, which takes a large fraction of a second at that size; one of the objects that
outlived twenty young ones still takes as long as five passes do. So what a scheduler starts from is set aside
(`gc.freeze`), what is young is collected between two passes and not in the middle of one, and the rest in a moment in
which nothing is to be decided: what cycles there are come from rare errors. Where there is no such moment, it is
collected between two passes all the same, only much later.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 20_000
"""How many objects are made before those are looked at: between two passes."""

MIDDLE_COLLECTIONS = 20
MIDDLE_COLLECTIONS_MAX = 200
"""After how many young collections what outlived them is looked at in an idle moment, and after how many in any."""

BACKSTOP_OBJECTS = 2_000_000
"""How many new objects are collected without being asked to, whatever goes on."""

NEVER = 1 << 30
FULL_INTERVAL_SECONDS = 3600.0
FULL_INTERVAL_MAX_SECONDS = 86_400.0
"""How long ago everything was looked at last when it is again in an idle moment, and when it is in any."""


class Heap:
    """When which part of the heap was looked at."""

    def __init__(self, now_seconds: float) -> None:
        """Set aside what is there at the start."""
        gc.set_threshold(BACKSTOP_OBJECTS, NEVER, NEVER)
        self._settle(now_seconds)

    def tidy(self, now_seconds: float) -> None:
        """Collect what is young if it is enough, and all if no moment was idle for long: between two passes."""
        if now_seconds - self._settled_seconds >= FULL_INTERVAL_MAX_SECONDS:
            self._settle(now_seconds)
            return
        young, collections, _ = gc.get_count()
        if collections >= MIDDLE_COLLECTIONS_MAX:
            gc.collect(1)
        elif young >= YOUNG_OBJECTS:
            gc.collect(0)

    def idle(self, now_seconds: float) -> bool:
        """Use a moment in which nothing is to be decided; say whether everything was looked at, as it is at times."""
        if now_seconds - self._settled_seconds >= FULL_INTERVAL_SECONDS:
            self._settle(now_seconds)
            return True
        if gc.get_count()[1] >= MIDDLE_COLLECTIONS:
            gc.collect(1)
        return False

    def _settle(self, now_seconds: float) -> None:
        gc.unfreeze()  # what was of use the last time may be of none by now
        gc.collect()
        gc.freeze()
        self._settled_seconds = now_seconds
