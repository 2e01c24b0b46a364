"""Cancellation that cannot be lost on the way up.

Before Python 3.12 `asyncio.wait_for` swallows a cancellation that arrives together with its result, and the bus client
waits with it. A loop that was cancelled would then run for ever, and its service never end.
"""

from __future__ import annotations

import asyncio


def obey() -> None:
    """Raise CancelledError if the running task was cancelled, whoever swallowed that; call it once per round."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
