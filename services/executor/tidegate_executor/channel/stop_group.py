"""Carries out the stop votes of one job's attempt on this node: the clock and the connections around stop_vote.py.

The agent makes one StopGroup for each (job, attempt) and gives it to the channel server of every rank it runs, so
that ranks in different sandboxes of this node vote together. Ranks on other nodes vote there.
"""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from tidegate_executor.channel.stop_vote import Order, StopVote, Tell

VOTE_SECONDS_MAX = 5.0
"""A member that has not answered by then (it is stopped, or holds the GIL) no longer keeps the others."""
SETTLE_SECONDS = 1.0
"""No vote closes sooner after the group was made: processes that outlived an agent's restart come back first."""

Send = Callable[[dict[str, Any]], None]


class StopGroup:
    """Used from one event loop only."""

    def __init__(self, settle_seconds: float = SETTLE_SECONDS) -> None:
        self._settle_seconds = settle_seconds
        self._made_at: float | None = None
        self._votes: dict[str, StopVote] = {}
        self._senders: dict[str, Send] = {}
        self._order: Order | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.polled = False

    def order(self, reason: str, deadline_ns: int) -> None:
        """Order every process to stop; repeated orders are harmless, a new deadline is passed on."""
        now = self._now()
        settled = (self._made_at or now) + self._settle_seconds
        vote = self._order.vote if self._order else uuid.uuid4().hex[:16]
        self._order = Order(vote, reason, deadline_ns, max(now, settled), now + VOTE_SECONDS_MAX)
        for group in self._votes.values():
            self._tell(group.order(self._order, now))
        self._arm()

    def join(self, client: str, group: str, stop_at: int | None, send: Send) -> None:
        """A process connected, or came back."""
        now = self._now()
        vote = self._votes.get(group)
        if vote is None:
            vote = self._votes[group] = StopVote()
            if self._order is not None:
                vote.order(self._order, now)
        self._senders[client] = send
        self._tell(vote.join(client, stop_at, now))
        self._arm()

    def answer(self, client: str, group: str, answer: tuple[str, int, int | None]) -> None:
        """A process answered with (vote, calls made, decision it knows)."""
        vote, calls, stop_at = answer
        self.polled = self.polled or calls > 0
        self._tell(self._votes[group].answer(client, vote, calls, stop_at, self._now()))
        self._arm()

    def leave(self, client: str, group: str, send: Send) -> None:
        """A process is gone; ignored when it has come back on another connection meanwhile."""
        if self._senders.get(client) is not send:
            return
        del self._senders[client]
        self._tell(self._votes[group].leave(client, self._now()))
        self._arm()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._made_at is None:
            self._made_at = now
        return now

    def opened(self) -> None:
        """Note that processes can connect from now on; called when a server starts to listen."""
        self._now()

    def _tell(self, tells: list[Tell]) -> None:
        for tell in tells:
            message = {
                "kind": "stop",
                "vote": tell.order.vote,
                "reason": tell.order.reason,
                "deadline_ns": tell.order.deadline_ns,
                "stop_at": tell.stop_at,
            }
            self._senders[tell.member](message)

    def _arm(self) -> None:
        self.close()
        times = [at for vote in self._votes.values() if (at := vote.wake_at()) is not None]
        if times:
            self._timer = asyncio.get_running_loop().call_at(min(times), self._tick)

    def _tick(self) -> None:
        now = self._now()
        for vote in self._votes.values():
            self._tell(vote.tick(now))
        self._arm()
