"""The scheduler's fold: follows the journal into the state, and lets others wait until it got somewhere."""

from __future__ import annotations

import asyncio
import time

from tidegate_events.cancellation import honour_cancellation
from tidegate_events.journal.base import Journal

from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.state import State

SLICE_SECONDS_MAX = 0.02
"""What lies ready is worked on for this long at a stretch: who renews a lease beside it cannot wait for all."""


class Slice:
    """The time that one task takes at a stretch, before it lets others have a turn."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    async def pause(self) -> None:
        """Let others have a turn if this one was long enough."""
        if time.monotonic() - self._began > SLICE_SECONDS_MAX:
            await asyncio.sleep(0)
            self._began = time.monotonic()


class Fold:
    """Owns the state. An event that cannot be folded ends `run` loudly: to skip it would fork history."""

    def __init__(self, journal: Journal, state: State | None = None) -> None:
        """Begin from `state` (a snapshot's), or from nothing."""
        self._journal = journal
        self._moved = asyncio.Condition()
        self.state = State() if state is None else state
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Fold every frame of the journal after the state's, for ever."""
        turn = Slice()
        async for recorded in self._journal.follow(self.state.seq):
            evolve(self.state, recorded)
            self.changed.set()
            async with self._moved:
                self._moved.notify_all()
            await turn.pause()

    async def reach(self, seq: int) -> None:
        """Wait until the frame at `seq` is folded."""
        async with self._moved:
            while self.state.seq < seq:
                honour_cancellation()  # may be lost on its way; a fold that ended moves no more
                await self._moved.wait()
