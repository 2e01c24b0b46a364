"""A register in memory: for tests of what stands on it, and for simulations; same contract as the real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidegate_events.register.base import Kept, Stale


class MemoryRegister:
    """Values in a dictionary, in the order of their revisions."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._revision = 0
        self._waiting: list[tuple[str, asyncio.Event]] = []

    async def get(self, key: str) -> Kept | None:
        """Return the key's value."""
        return self._kept.get(key)

    async def put(self, key: str, data: bytes, expected: int) -> int | Stale:
        """Write as the port says; never unavailable."""
        known = self._kept.get(key)
        actual = known.revision if known is not None else 0
        if actual != expected:
            return Stale(expected, actual)
        self._revision += 1
        self._kept.pop(key, None)  # so that the dictionary stays in the order of revisions
        self._kept[key] = Kept(key, data, self._revision)
        for under, changed in self._waiting:
            if _is_under(key, under):
                changed.set()
        return self._revision

    async def next(self, after: int, under: str = "") -> Kept | None:
        """Return the oldest value newer than `after`."""
        newer = (kept for kept in self._kept.values() if kept.revision > after and _is_under(kept.key, under))
        return next(newer, None)

    async def oldest(self) -> int:
        """Return the oldest revision that is kept."""
        return next((kept.revision for kept in self._kept.values()), self._revision + 1)

    @asynccontextmanager
    async def changes(self, under: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that every change sets."""
        waiting = (under, asyncio.Event())
        self._waiting.append(waiting)
        try:
            yield waiting[1]
        finally:
            self._waiting.remove(waiting)


def _is_under(key: str, under: str) -> bool:
    return not under or key.startswith(under + ".")
