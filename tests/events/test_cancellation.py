"""A cancellation that something below swallowed still ends a loop that obeys."""

from __future__ import annotations

import asyncio

import pytest
from tidegate_events import cancellation


async def test_a_swallowed_cancellation_ends_the_loop() -> None:
    rounds = 0

    async def loop() -> None:
        nonlocal rounds
        while True:
            cancellation.obey()
            rounds += 1
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                continue  # as wait_for of Python 3.11 does

    async with asyncio.timeout(20):
        task = asyncio.ensure_future(loop())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert rounds == 1


async def test_nothing_happens_to_a_task_that_nobody_cancelled() -> None:
    cancellation.obey()
