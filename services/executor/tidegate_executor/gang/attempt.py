"""What the members of one attempt on this node share, and how its node speaks with the gang's others.

Whatever is not known to have arrived is said again, so messages may be lost; the pure parts know what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate_events.orders import SandboxOrder

from tidegate_executor.attempts.state import Failure
from tidegate_executor.channel.stop_group import StopGroup
from tidegate_executor.gang.messages import Joined, Led, Message
from tidegate_executor.gang.start_barrier import StartBarrier
from tidegate_executor.gang.stop_agreement import StopAgreement, Votes

REPEAT_SECONDS = 0.5

Send = Callable[[str, Message], None]


class GangAttempt:
    """One (job, attempt) on one node; used from one event loop only. `anomaly`: why its members leave unordered."""

    def __init__(self, node: str, order: SandboxOrder, send: Send) -> None:
        self._job, self._attempt = order.job, order.attempt
        self._nodes = order.gang.nodes if order.gang is not None else (node,)
        self._leader = self._nodes[0]
        self._leads = node == self._leader
        self._send = send
        self._barrier = StartBarrier(node, order.gang) if order.gang is not None else None
        self._agreement = StopAgreement(node, self._nodes) if len(self._nodes) > 1 else None
        self.stops = StopGroup(agreement=self._agreement, announce=self._announce)
        self.anomaly: Failure | None = None
        self._waiting: list[asyncio.Event] = []
        self._said: Message | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # ---- beginning together ----

    @property
    def may_begin(self) -> bool:
        """Say whether the members here may run their commands."""
        return self._barrier is None or self._barrier.open

    @property
    def awaited(self) -> str:
        """Return whom the members here wait for, in words."""
        missing = self._barrier.missing if self._barrier is not None else []
        return f"node {', '.join(missing)}" if missing else "another member on this node"

    @property
    def stop_at(self) -> dict[str, int] | None:
        """Return at which call each stop group of the gang stops, None while that is not agreed on."""
        return self._agreement.stop_at if self._agreement is not None else None

    def stands(self, rank: int, changed: asyncio.Event) -> None:
        """A member's sandbox is made; `changed` is set when it may begin."""
        if self._barrier is not None:
            self._waiting.append(changed)
            self._barrier.stands(rank)
            self._moved()

    def has_begun(self) -> None:
        """A member began before this agent did."""
        if self._barrier is not None:
            self._barrier.has_begun()
            self._moved()

    # ---- what the nodes say ----

    def on_message(self, sender: str, message: Message) -> None:
        """Take what another node of the gang says; whoever may not say it is not heard."""
        if isinstance(message, Led):
            if sender == self._leader and not self._leads:
                self._on_led(message)
        elif self._leads and sender in self._nodes[1:]:
            self._on_joined(sender, message)

    def _on_led(self, message: Led) -> None:
        if message.go and self._barrier is not None:
            self._barrier.on_go()
        if self._agreement is not None:
            if message.stop_at is not None:
                self._agreement.on_decision(message.stop_at)
            if message.gone:
                self._agreement.on_leader_gone(asyncio.get_running_loop().time())
            self.stops.look()
        self._moved()
        if not message.gone:
            self._send(self._leader, self._joined())

    def _on_joined(self, sender: str, message: Joined) -> None:
        if message.ready and self._barrier is not None:
            self._barrier.on_ready(sender)
        if self._agreement is not None:
            votes = Votes(message.counts, message.known)
            now = asyncio.get_running_loop().time()
            self._agreement.on_votes(sender, votes, now, settled=message.settled, gone=message.gone)
            self.stops.look()
        self._moved()
        answer = self._led()
        lacks_go = answer.go and message.ready and not message.begun
        lacks_decision = answer.stop_at is not None and message.counts is not None and not message.settled
        if not message.gone and (lacks_go or lacks_decision):
            self._send(sender, answer)

    def close(self) -> None:
        """No member is left here: nothing more is said, also when a connection is only now found to have ended."""
        self._closed = True
        self.stops.close()
        if self._timer is not None:
            self._timer.cancel()

    # ---- what this node says ----

    def _joined(self) -> Joined:
        own = self._agreement.own if self._agreement is not None else Votes()
        return Joined(
            job=self._job,
            attempt=self._attempt,
            ready=self._barrier is not None and self._barrier.ready,
            begun=self.may_begin,
            counts=dict(own.counts) if own.counts is not None else None,
            known=dict(own.known),
            settled=self._agreement is not None and self._agreement.stop_at is not None,
        )

    def _led(self) -> Led:
        return Led(job=self._job, attempt=self._attempt, go=self.may_begin, stop_at=self.stop_at)

    def _moved(self) -> None:
        if self.may_begin:
            for changed in self._waiting:
                changed.set()
            self._waiting.clear()
        self._announce()

    def _announce(self) -> None:
        """Say what is new, and from then on again what is not known to have arrived."""
        if self._closed or len(self._nodes) == 1:
            return
        new: Message = self._led() if self._leads else self._joined()
        if new != self._said:
            self._said = new
            decided = isinstance(new, Led) and (new.go or new.stop_at is not None)
            for node in self._nodes[1:] if decided else self._unsure():
                self._send(node, new)
        self._arm()

    def _unsure(self) -> list[str]:
        """Return to whom the present state is to be said: they wait for it, or this node waits for them."""
        barrier, agreement = self._barrier, self._agreement
        if self._leads:
            missing = set(barrier.missing) if barrier is not None and barrier.ready else set()
            return sorted(missing.union(agreement.untold if agreement is not None else ()))
        waits_to_begin = barrier is not None and barrier.ready and not barrier.open
        waits_to_stop = agreement is not None and agreement.wake_at() is not None and agreement.own.counts is not None
        return [self._leader] if waits_to_begin or waits_to_stop else []

    def _arm(self) -> None:
        if self._timer is None and self._unsure():
            self._timer = asyncio.get_running_loop().call_later(REPEAT_SECONDS, self._repeat)

    def _repeat(self) -> None:
        self._timer = None
        message: Message = self._led() if self._leads else self._joined()
        for node in self._unsure():
            self._send(node, message)
        self._arm()
