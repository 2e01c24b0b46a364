"""Carries out the stop votes of one job's attempt on this node: the clock and the connections around stop_vote.py.

The agent makes one StopGroup for each (job, attempt) and gives it to the channel server of every rank it runs, so
that ranks in different sandboxes of this node vote together. Ranks on other nodes vote there, and the nodes bring what
they came to together (gang/stop_agreement.py).
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import structlog

from tidegate_executor.channel.stop_vote import Order, StopVote, Tell
from tidegate_executor.gang.stop_agreement import StopAgreement, Votes

VOTE_SECONDS_MAX, VOTE_SHARE = 5.0, 0.25
"""A member that has not answered by then (it is stopped, or holds the GIL) no longer keeps the others."""
LEAD_SECONDS_MAX, LEAD_SHARE = 10.0, 0.5
"""Then the leading node of a gang decides without the nodes that have not answered."""
FOLLOW_SECONDS_MAX, FOLLOW_SHARE = 12.5, 0.625
"""Then a node of a gang that heard no decision stops by its own vote. Each bound is also a share of the time that is
left until the deadline, and all lie below the time for which a process holds a call (tidegate/stop.py)."""
SETTLE_SECONDS = 1.0
"""No vote closes sooner after the group was made: processes that outlived an agent's restart come back first."""

Send = Callable[[dict[str, Any]], None]

_log = structlog.get_logger("tidegate.stop")


class StopGroup:
    """Used from one event loop only. With an `agreement`, `announce` is called when this node's part of it moved."""

    def __init__(
        self,
        settle_seconds: float = SETTLE_SECONDS,
        agreement: StopAgreement | None = None,
        announce: Callable[[], None] | None = None,
    ) -> None:
        self._settle_seconds = settle_seconds
        self._agreement = agreement
        self._announce = announce
        self._agreed = False
        self._made_at: float | None = None
        self._votes: dict[str, StopVote] = {}
        self._senders: dict[str, Send] = {}
        self._order: Order | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.polled = False

    def order(self, reason: str, deadline_ns: int, *, here_only: bool = False) -> None:
        """Order every process to stop; repeated orders are harmless, a new deadline is passed on.

        `here_only`: nobody ordered the members on other nodes to stop, so they are not asked.
        """
        now = self._now()
        settled = (self._made_at or now) + self._settle_seconds
        left = max(0.0, (deadline_ns - time.time_ns()) / 1e9)
        if self._agreement is not None and not here_only:
            follow_by = now + min(FOLLOW_SECONDS_MAX, left * FOLLOW_SHARE)
            self._agreement.order(now + min(LEAD_SECONDS_MAX, left * LEAD_SHARE), follow_by)
        self._order = Order(
            self._order.vote if self._order else uuid.uuid4().hex[:16],
            reason,
            deadline_ns,
            max(now, settled),
            now + min(VOTE_SECONDS_MAX, left * VOTE_SHARE),
            shared=self._agreement is not None and not here_only,
        )
        for group in self._votes.values():
            self._tell(group.order(self._order, now))
        self.look()

    def join(self, client: str, group: str, stop_at: int | None, send: Send) -> None:
        """A process connected, or came back."""
        now = self._now()
        self._senders[client] = send
        self._tell(self._vote(group, now).join(client, stop_at, now))
        self.look()

    def answer(self, client: str, group: str, answer: tuple[str, int, int | None]) -> None:
        """A process answered with (vote, calls made, decision it knows)."""
        vote, calls, stop_at = answer
        self.polled = self.polled or calls > 0
        self._tell(self._votes[group].answer(client, vote, calls, stop_at, self._now()))
        self.look()

    def leave(self, client: str, group: str, send: Send) -> None:
        """A process is gone; ignored when it has come back on another connection meanwhile."""
        if self._senders.get(client) is not send:
            return
        del self._senders[client]
        self._tell(self._votes[group].leave(client, self._now()))
        self.look()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Do what has become due: also called when another node of the gang said something."""
        self._agree(self._now())
        self._arm()

    def _vote(self, group: str, now: float) -> StopVote:
        vote = self._votes.get(group)
        if vote is None:
            vote = self._votes[group] = StopVote()
            if self._order is not None:
                vote.order(self._order, now)
            if self._agreed:
                vote.settle(None, now)
        return vote

    def _agree(self, now: float) -> None:
        """Tell the gang's nodes what the votes here came to, and the processes here what the nodes agreed on."""
        agreement = self._agreement
        if agreement is None or self._order is None or self._agreed:
            return
        agreement.note(self._so_far(self._order, now), now)
        if agreement.stop_at is not None:
            for group, stop_at in agreement.stop_at.items():
                self._tell(self._vote(group, now).settle(stop_at, now))
            self._agreed = True
            for vote in self._votes.values():
                self._tell(vote.settle(None, now))
            if agreement.without:
                _log.warning("stop_not_agreed_with_all", without=agreement.without, stop_at=agreement.stop_at)
        if self._announce is not None:
            self._announce()

    def _so_far(self, order: Order, now: float) -> Votes:
        known = {group: vote.stop_at for group, vote in self._votes.items() if vote.stop_at is not None}
        counts = {
            group: vote.count(now) for group, vote in self._votes.items() if vote.has_members and not vote.decided
        }
        if now < order.not_before or None in counts.values():
            return Votes(None, known)
        return Votes({group: count for group, count in counts.items() if count is not None}, known)

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
        now = self._now()
        times = [vote.wake_at() for vote in self._votes.values()]
        if self._agreement is not None and self._order is not None and not self._agreed:
            times += [self._order.not_before, self._agreement.wake_at()]
        # A vote that waits for other nodes has nothing to do by itself once its own time has passed.
        due = [at for at in times if at is not None and at > now]
        if due:
            self._timer = asyncio.get_running_loop().call_at(min(due), self._tick)

    def _tick(self) -> None:
        now = self._now()
        for vote in self._votes.values():
            self._tell(vote.tick(now))
        self.look()
