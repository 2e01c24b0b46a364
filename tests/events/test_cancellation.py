"""A cancellation that comes together with an answer still ends who waits: what awaits inside may swallow it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.deadletter import DeadLetters
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.register.base import Kept
from tidegate_events.register.memory import MemoryRegister

WAIT_SECONDS = 5


async def swallow() -> None:
    """What asyncio.wait_for of Python 3.11 does where the answer comes at the same moment."""
    try:
        await asyncio.sleep(WAIT_SECONDS)
    except asyncio.CancelledError:
        return


class _Client:
    is_closed = False

    async def request(self, *_args: Any, **_options: Any) -> Any:
        await swallow()
        return SimpleNamespace(data=b'{"streams": []}')


async def cancel(task: asyncio.Task[None]) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=WAIT_SECONDS / 2)
    assert done, "it lives on"
    with pytest.raises(asyncio.CancelledError):
        task.result()


async def test_a_swallowed_cancellation_is_honoured() -> None:
    async def work() -> None:
        while True:
            honour_cancellation()
            await swallow()

    await cancel(asyncio.create_task(work()))


async def test_following_the_journal_ends_though_the_client_swallows() -> None:
    async def follow() -> None:
        async for _ in NatsJournal(_Client()).follow(0):  # type: ignore[arg-type]
            pass

    await cancel(asyncio.create_task(follow()))


async def test_following_dead_letters_ends_though_the_register_swallows() -> None:
    class Register(MemoryRegister):
        async def next(self, _after: int, _under: str = "") -> Kept | None:
            await swallow()
            return None

    async def follow() -> None:
        async for _ in DeadLetters(Register()).follow("mailer", 0):
            pass

    await cancel(asyncio.create_task(follow()))


async def test_a_timeout_around_is_still_a_timeout() -> None:
    async def work() -> None:
        async with asyncio.timeout(0.01):
            await swallow()
            honour_cancellation()

    with pytest.raises(TimeoutError):
        await work()
