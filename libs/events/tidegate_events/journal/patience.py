"""Asking a journal that may be away for a moment: a bus that lost a server elects another leader within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidegate_events.cancellation import honour_cancellation
from tidegate_events.journal.base import JournalUnavailableError

RETRY_WAIT_SECONDS = 0.2
T = TypeVar("T")


async def patiently(
    ask: Callable[[], Awaitable[T]], seconds_max: float, away: Callable[[JournalUnavailableError], None]
) -> T:
    """Return what `ask` answers: it is asked again while the journal is away, `seconds_max` at most.

    So it may be repeated without harm: it reads, or makes sure of something. `away` is told of each time.
    Raises JournalUnavailableError, the last one, once the time is over.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds_max
    while True:
        honour_cancellation()
        try:
            return await ask()
        except JournalUnavailableError as error:
            if loop.time() >= deadline:
                raise
            away(error)
        await asyncio.sleep(RETRY_WAIT_SECONDS)
