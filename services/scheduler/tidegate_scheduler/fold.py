"""The scheduler's fold: follows the journal into the state, and lets others wait until it got somewhere."""

from __future__ import annotations

import asyncio

from tidegate_events.journal.base import Journal

from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.state import State

FOLDS_BEFORE_YIELD_MAX = 500


class Fold:
    """Owns the state. An event that cannot be folded ends `run` loudly: to skip it would fork history."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._moved = asyncio.Condition()
        self.state = State()
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Fold every frame of the journal, for ever."""
        async for recorded in self._journal.follow(0):
            evolve(self.state, recorded)
            self.changed.set()
            async with self._moved:
                self._moved.notify_all()
            if recorded.seq % FOLDS_BEFORE_YIELD_MAX == 0:
                await asyncio.sleep(0)

    async def reach(self, seq: int) -> None:
        """Wait until the frame at `seq` is folded."""
        async with self._moved:
            while self.state.seq < seq:
                await self._moved.wait()
