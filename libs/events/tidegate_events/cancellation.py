"""Honours a cancellation that somebody else's code swallowed.

`asyncio.wait_for` of Python 3.11, and with it nats-py's `request` and `next_msg`, returns its result and drops a
cancellation that comes at the same moment (https://github.com/python/cpython/issues/86296). The task then lives on,
and the task group that cancelled it waits for ever: a service that neither works nor ends. So loops around such calls
ask here at each turn.
"""

from __future__ import annotations

import asyncio


def honour_cancellation() -> None:
    """Raise CancelledError if the running task was asked to end and is still there."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
