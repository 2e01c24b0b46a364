"""Reads the shared store in threads of its own: a file server that is away holds up no other work of the agent."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from tidegate_executor.image_store import StoreError

THREADS_MAX = 4
ANSWER_SECONDS_MAX = 60.0
"""How long a look-up, or a part of a copy, may take; waiting for a thread that is free included."""

GIVE_UP_SECONDS = 2.0
"""How long a thread that was told to stop is waited for: one that is in the kernel does not hear it."""

T = TypeVar("T")


class StoreThreads:
    """See the module. A thread that hangs keeps its place, so there are never more; none keeps the process alive."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(THREADS_MAX)

    async def run(self, work: Callable[[], T], given_up: threading.Event) -> T:
        """Do it in a thread; `given_up` is set when nobody waits for it any more. Raises StoreError when it hangs."""
        future: asyncio.Future[T] | None = None
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                await self._free.acquire()
                future = self._begin(work)
                return await asyncio.shield(future)
        except TimeoutError as error:
            await _given_up(future, given_up)
            raise StoreError(f"the image store did not answer within {ANSWER_SECONDS_MAX} s") from error
        except asyncio.CancelledError:
            await _given_up(future, given_up)
            raise

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def finish(deliver: Callable[[], None]) -> None:
            self._free.release()
            if not future.done():
                deliver()

        def run() -> None:
            try:
                deliver = partial(future.set_result, work())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
                deliver = partial(future.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed: the agent has ended meanwhile
                loop.call_soon_threadsafe(finish, deliver)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(run,), name="image-store", daemon=True).start()
        return future


async def _given_up(future: asyncio.Future[T] | None, given_up: threading.Event) -> None:
    given_up.set()
    loop = asyncio.get_running_loop()
    until = loop.time() + GIVE_UP_SECONDS
    while future is not None and not future.done() and loop.time() < until:
        with suppress(asyncio.CancelledError):  # the caller raises what ended it
            await asyncio.wait([future], timeout=until - loop.time())
    if future is not None and not future.cancel():
        future.exception()  # it is nobody's concern any more
