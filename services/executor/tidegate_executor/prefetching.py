"""Follows the scheduler's hints: gets images that jobs will probably need here, one at a time and after the starts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set

import structlog
from tidegate_events.cancellation import honour_cancellation

from tidegate_executor.image_shelf import ImageShelf
from tidegate_executor.images import find
from tidegate_executor.starts import Starts

log = structlog.get_logger()


class Prefetcher:
    """What is hinted now: each message with orders names all of it, so a hint that is left out is withdrawn."""

    def __init__(self, shelf: ImageShelf, starts: Starts) -> None:
        self._shelf = shelf
        self._starts = starts
        self._hinted: tuple[str, ...] = ()
        self._told = asyncio.Event()

    def hint(self, named: Sequence[str]) -> None:
        """Take the hints of the newest orders in place of those before."""
        if self._hinted != tuple(named):
            log.info("images_hinted", images=named)
            self._hinted = tuple(named)
            self._shelf.hinted = frozenset(named)
            self._told.set()

    async def run(self) -> None:
        """Follow the hints until cancelled."""
        while True:
            await self._told.wait()
            self._told.clear()
            tried: set[str] = set()  # once for each change of the hints: what leaves again is not fetched again
            while (named := await self._next(tried)) is not None:
                honour_cancellation()
                await self._starts.over()
                if named in self._hinted:  # it was not withdrawn meanwhile
                    tried.add(named)
                    await self._shelf.prefetch(named)

    async def _next(self, tried: Set[str]) -> str | None:
        """Return what is hinted first, is not here, and was not tried in vain."""
        known = await self._shelf.here()
        tried = tried | self._shelf.unavailable.keys()
        return next((n for n in self._hinted if find(known, n) is None and n not in tried), None)
