"""Which members wait for their sandbox here: what can wait does not take the disk and the network from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Starts:
    """Counts the members whose sandbox is being made."""

    def __init__(self) -> None:
        self._waiting = 0
        self._none = asyncio.Event()
        self._none.set()

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return self._waiting

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more until the end of the block."""
        self._waiting += 1
        self._none.clear()
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._none.set()

    async def over(self) -> None:
        """Return when nobody waits."""
        while self._waiting:
            await self._none.wait()
