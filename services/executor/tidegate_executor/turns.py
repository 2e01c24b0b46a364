"""One thing at a time: who wants what another is fetching waits for it, and finds it there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Turns:
    """Those who want one key, one after the other."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._turns

    def users(self, key: str) -> int:
        """Return how many want it, the one whose turn it is included."""
        return self._turns[key].users if key in self._turns else 0

    @asynccontextmanager
    async def take(self, key: str) -> AsyncIterator[None]:
        """Wait for the turn, and have it until the end of the block."""
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if turn.users == 0:
                del self._turns[key]


async def to_its_end(work: Callable[..., T], *arguments: object, given_up: threading.Event | None = None) -> T:
    """Do it in a thread; a cancelled caller waits for the thread, which must not go on while its files are removed.

    Where there is `given_up`, the thread is told by it that nobody wants its result any more.
    """
    future = asyncio.get_running_loop().run_in_executor(None, lambda: work(*arguments))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if given_up is not None:
            given_up.set()
        while not future.done():
            with suppress(asyncio.CancelledError):  # another one of the same; the first is raised at the end
                await asyncio.wait([future])
        raise
