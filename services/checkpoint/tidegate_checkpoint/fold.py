"""Follows the journal into the catalogue, and lets others wait until it got somewhere."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from tidegate_events.journal.base import Journal

from tidegate_checkpoint.catalogue import Catalogue

FOLDS_BEFORE_YIELD_MAX = 500


class Fold:
    """Owns the catalogue. What cannot be folded ends `run` loudly: to skip it would lose a checkpoint."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._moved = asyncio.Condition()
        self.catalogue = Catalogue()

    async def run(self) -> None:
        """Fold every frame of the journal, for ever."""
        async with aclosing(self._journal.follow(0)) as frames:
            async for recorded in frames:
                self.catalogue.apply(recorded)
                async with self._moved:
                    self._moved.notify_all()
                if recorded.seq % FOLDS_BEFORE_YIELD_MAX == 0:
                    await asyncio.sleep(0)

    async def reach(self, seq: int) -> None:
        """Wait until the frame at `seq` is folded."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.catalogue.seq >= seq)
