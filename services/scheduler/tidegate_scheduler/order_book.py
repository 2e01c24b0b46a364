"""Which nodes are to be told what is wanted of them: where that changed at once, and every node again in its turn.

Orders are level-triggered: each message holds all that is wanted of the node. So a lost one does no harm, as long as
every node gets its orders again within a bound: `resend_seconds`, or as long as all nodes take at `resends_per_second`.
A new term begins with a new book, in which nobody was told anything.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from tidegate_events.orders import NodeOrders, SandboxOrder

from tidegate_scheduler.orders import Awaited, Gangs, orders_for
from tidegate_scheduler.state import Node, State

CHANGED_PER_TURN = 250
UNTOLD_PER_TURN = 250
CREDIT_SECONDS_MAX = 1.0
"""What may be sent again and was not, for want of turns, is made up for by no more than this."""
NEVER = float("-inf")


class _Told(msgspec.Struct, frozen=True, gc=False):
    """What a node was told last; one that was not up then may not have heard it."""

    incarnation: int
    up: bool
    sandboxes: tuple[SandboxOrder, ...]
    prefetch: tuple[str, ...]


class OrderBook:
    """Follows the state until it is closed. Times are seconds of a clock that never goes back."""

    def __init__(self, state: State, *, resend_seconds: float, resends_per_second: float) -> None:
        self._state = state
        self._resend_seconds = resend_seconds
        self._resends_per_second = resends_per_second
        self._gangs = Gangs(state)
        self._awaited = Awaited(state)
        self._watched: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self._told: dict[str, _Told] = {}
        self._turns: OrderedDict[str, float] = OrderedDict.fromkeys(state.nodes, NEVER)
        self._untold = len(self._turns)
        self._nodes_of: dict[str, tuple[str, ...]] = {}
        self._addresses: dict[str, str] = {}
        self._credit = 0.0
        self._counted_at: float | None = None
        for node in state.nodes.values():
            self._addresses[node.name] = node.address
        for job in state.jobs.values():
            if job.members:
                self._nodes_of[job.id] = state.seats.nodes_of(job.id)
        state.watch(self._watched)

    def close(self) -> None:
        """Follow the state no longer."""
        self._state.unwatch(self._watched)

    @property
    def behind(self) -> bool:
        """Say whether somebody is to be told something that did not fit into the last turn."""
        return bool(self._changed) or self._untold > 0

    @property
    def gangs_known(self) -> int:
        """Return of how many gangs it is remembered where their members stand."""
        return len(self._gangs)

    def due(self, now: float) -> list[str]:
        """Return who is to be told in this turn: those whose orders may have changed, and those whose turn it is."""
        self._look()
        in_turn = self._in_turn(now)
        for name in in_turn:
            self._changed.pop(name, None)  # it is told whether or not that changed anything
        return list(self._changed)[:CHANGED_PER_TURN] + in_turn

    def orders(self, node: str) -> NodeOrders | None:
        """Return what the node, which is due, is to be told; None where it is gone, or nothing changed for it."""
        known = self._state.nodes.get(node)
        if known is None:
            return None
        orders = orders_for(self._state, known, self._gangs, self._awaited)
        if node in self._changed and self._told.get(node) == _what(orders, known):
            del self._changed[node]
            return None
        return orders

    def told(self, orders: NodeOrders, now: float) -> None:
        """Take note that the node was told this."""
        name = orders.node
        node = self._state.nodes.get(name)
        if node is None:
            return
        self._changed.pop(name, None)
        self._told[name] = _what(orders, node)
        if self._turns.get(name, NEVER) == NEVER:
            self._untold -= 1
        self._turns[name] = now
        self._turns.move_to_end(name)

    # ---- whose turn it is ----

    def _in_turn(self, now: float) -> list[str]:
        """Return who was told nothing yet, then who was told longest ago, as many as their rate allows."""
        elapsed = 0.0 if self._counted_at is None else now - self._counted_at
        self._counted_at = now
        most = max(1.0, self._resends_per_second * CREDIT_SECONDS_MAX)
        self._credit = min(most, self._credit + elapsed * self._resends_per_second)
        found: list[str] = []
        for name, told_at in self._turns.items():
            if told_at == NEVER:
                if len(found) >= UNTOLD_PER_TURN:
                    break
            elif now - told_at < self._resend_seconds or self._credit < 1.0:
                break
            else:
                self._credit -= 1.0
            found.append(name)
        return found

    # ---- what changed ----

    def _look(self) -> None:
        watched = list(self._watched)
        self._watched.clear()
        for key in watched:
            kind, _, name = key.partition("/")
            if kind == "job":
                self._job_changed(name)
            elif kind == "node":
                self._node_changed(name)

    def _job_changed(self, job: str) -> None:
        self._awaited.look(job)  # a hint that nobody waits for any more is left out when its node is told next
        before, nodes = self._nodes_of.get(job, ()), self._state.seats.nodes_of(job)
        self._mark(before)
        self._mark(nodes)
        self._mark(self._state.zombies.nodes_with(job))
        if nodes:
            self._nodes_of[job] = nodes
        else:
            # Its orders may have been made though no turn has looked at it since it was placed.
            self._nodes_of.pop(job, None)
            self._gangs.forget(job)

    def _node_changed(self, name: str) -> None:
        node = self._state.nodes.get(name)
        if node is None:
            self._forget(name)
            return
        if name not in self._turns:
            self._turns[name] = NEVER
            self._turns.move_to_end(name, last=False)
            self._untold += 1
        self._changed[name] = None
        if self._addresses.get(name) != node.address:
            self._addresses[name] = node.address
            for job in self._state.seats.on(name):  # its gangs meet at that address, wherever their members are
                self._mark(self._state.seats.nodes_of(job.id))

    def _mark(self, nodes: tuple[str, ...]) -> None:
        for name in nodes:
            if name in self._turns:
                self._changed[name] = None

    def _forget(self, name: str) -> None:
        if self._turns.pop(name, None) == NEVER:
            self._untold -= 1
        for table in (self._changed, self._told, self._addresses):
            table.pop(name, None)


def _what(orders: NodeOrders, node: Node) -> _Told:
    return _Told(orders.incarnation, node.status == "up", orders.sandboxes, orders.prefetch)
