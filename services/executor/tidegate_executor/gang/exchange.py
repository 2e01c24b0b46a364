"""The attempts of gangs on this node, and the way of their messages to the agents of other nodes and back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from tidegate_events import subjects
from tidegate_events.orders import SandboxOrder

from tidegate_executor.gang import messages
from tidegate_executor.gang.attempt import GangAttempt
from tidegate_executor.gang.messages import Joined, Led, Message

OUTGOING_MAX = 4096
"""Messages that wait for the bus. Beyond that they are dropped: what they say is said again."""
AGREED_MAX = 256
"""Ended attempts of which it is remembered where they stopped."""

Begun = Callable[[str, int], bool | None]

log = structlog.get_logger()


class GangExchange:
    """One per agent. An attempt is there from the first of its members here to the last."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._attempts: dict[tuple[str, int], tuple[GangAttempt, int]] = {}
        self._agreed: dict[tuple[str, int], dict[str, int]] = {}
        self._outgoing: asyncio.Queue[tuple[str, Message]] = asyncio.Queue(OUTGOING_MAX)

    def take(self, order: SandboxOrder) -> GangAttempt:
        """Return what the members of the order's attempt share, kept until it is given back as often as taken."""
        key = (order.job, order.attempt)
        attempt, users = self._attempts.get(key) or (GangAttempt(self._node, order, self._send), 0)
        self._attempts[key] = (attempt, users + 1)
        return attempt

    def give_back(self, job: str, attempt: int) -> None:
        """Say that one member is done with it."""
        shared, users = self._attempts.pop((job, attempt))
        if users > 1:
            self._attempts[job, attempt] = (shared, users - 1)
        else:
            if shared.stop_at is not None:
                # Members elsewhere may still wait for it when those here have saved and left.
                self._agreed[job, attempt] = shared.stop_at
                while len(self._agreed) > AGREED_MAX:
                    del self._agreed[next(iter(self._agreed))]
            shared.close()

    def on_message(self, subject: str, data: bytes, begun: Begun) -> None:
        """Take a message of another agent. `begun` says of an attempt that ended here whether it had begun."""
        sender = subjects.gang_sender(subject)
        try:
            message = messages.decode(data)
        except msgspec.MsgspecError as error:
            log.error("gang_message_unreadable", sender=sender, why=str(error))
            return
        held = self._attempts.get((message.job, message.attempt))
        if held is not None:
            held[0].on_message(sender, message)
        elif not message.gone and (had_begun := begun(message.job, message.attempt)) is not None:
            stop_at = self._agreed.get((message.job, message.attempt))
            self._send(sender, _farewell(message, stop_at, had_begun=had_begun))

    async def run(self, publish: Callable[[str, bytes], Awaitable[None]]) -> None:
        """Send what is to be sent, until cancelled."""
        while True:
            node, message = await self._outgoing.get()
            await publish(subjects.gang(self._node, node), messages.encode(message))

    def _send(self, node: str, message: Message) -> None:
        try:
            self._outgoing.put_nowait((node, message))
        except asyncio.QueueFull:
            log.debug("gang_message_dropped", to=node, job=message.job)


def _farewell(asked: Message, stop_at: dict[str, int] | None, *, had_begun: bool) -> Message:
    """Return the answer of a node on which every member of the attempt has ended."""
    if isinstance(asked, Joined):
        return Led(job=asked.job, attempt=asked.attempt, gone=True, go=had_begun, stop_at=stop_at)
    return Joined(job=asked.job, attempt=asked.attempt, gone=True, ready=had_begun, begun=had_begun, settled=True)
