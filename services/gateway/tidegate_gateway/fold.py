"""Keeps the read model up to date: follows the journal, folds each frame, and lets readers wait for a place in it.

It stops loudly on history it cannot read: to skip a frame would be to show what never was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import nats.errors
import structlog
from tidegate_events.frame import UnreadableFrameError
from tidegate_events.journal.base import Journal, JournalError, JournalGapError

from tidegate_gateway.view.projection import View

RETRIES_MAX = 240
RETRY_WAIT_SECONDS = 0.25
END_SECONDS_MAX = 2.0
FRAMES_PER_BREATH = 200
"""Frames folded before others get their turn: a long history must not starve the health checks."""

log = structlog.get_logger()


class NotCaughtUpError(Exception):
    """The read model did not reach the asked place within the bound. Retriable."""


class Fold:
    """The view and its follower. `view.seq` is where the fold stands."""

    def __init__(self, journal: Journal, view: View) -> None:
        self.view = view
        self._journal = journal
        self._target: int | None = None
        self._moved = asyncio.Condition()

    @property
    def caught_up(self) -> bool:
        """Say whether everything that was in the journal at the start is folded."""
        return self._target is not None and self.view.seq >= self._target

    @property
    def target(self) -> int | None:
        """Return the end of the journal at the start, None while it is not known."""
        return self._target

    async def run(self) -> None:
        """Follow for ever. Raises what cannot be mended; a journal that is away is tried RETRIES_MAX times."""
        failures = 0
        while True:
            before = self.view.seq
            try:
                if self._target is None:
                    self._target = await self._journal.end()
                    await self._notify()
                await self._follow()
            except (JournalGapError, UnreadableFrameError):
                raise
            except (JournalError, nats.errors.Error, TimeoutError) as error:
                failures = 0 if self.view.seq > before else failures + 1
                if failures >= RETRIES_MAX:
                    raise
                if failures % 20 == 1:
                    log.warning("journal_away", error=str(error), after=self.view.seq, failures=failures)
            await asyncio.sleep(RETRY_WAIT_SECONDS)

    async def _follow(self) -> None:
        async with aclosing(self._journal.follow(self.view.seq)) as frames:
            async for recorded in frames:
                self.view.apply(recorded)
                await self._notify()
                if recorded.seq % FRAMES_PER_BREATH == 0:
                    await asyncio.sleep(0)

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def wait_for(self, seq: int, timeout_seconds: float) -> None:
        """Return when `seq` is folded. Raises NotCaughtUpError."""
        await self._wait(lambda: self.view.seq >= seq, timeout_seconds, f"sequence {seq}")

    async def until_caught_up(self) -> None:
        """Return when what was there at the start is folded, however long that takes."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.caught_up)

    async def wait_caught_up(self, timeout_seconds: float) -> None:
        """Return when what was there at the start is folded. Raises NotCaughtUpError."""
        await self._wait(lambda: self.caught_up, timeout_seconds, "the journal's end at start")

    async def wait_for_end(self, timeout_seconds: float) -> None:
        """Return when all that is in the journal now is folded. Raises NotCaughtUpError and JournalError."""
        try:
            async with asyncio.timeout(timeout_seconds):
                end = await self._journal.end()
        except TimeoutError as error:
            raise NotCaughtUpError(f"the journal did not say its end within {timeout_seconds:g} s") from error
        await self.wait_for(end, timeout_seconds)

    async def _wait(self, reached: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        if reached():
            return
        try:
            async with asyncio.timeout(timeout_seconds), self._moved:
                await self._moved.wait_for(reached)
        except TimeoutError as error:
            raise NotCaughtUpError(
                f"the read model stands at {self.view.seq} and did not reach {what} within {timeout_seconds:g} s"
            ) from error
