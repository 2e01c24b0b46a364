"""Which nodes the leader hears: heartbeats in, observations out. What a silence means is decided by the core.

A look costs what was heard, changed or fell due since the last one, and not the cluster: nodes stand in a heap by the
time at which they would be silent, and are asked only then whether they were heard since.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from tidegate_events.events import NodeReachable, NodeUnreachable

from tidegate_scheduler.state import Node, State

LOOK_GAP_SECONDS_MAX = 2.0
SEEN_MAX = 1000
"""Observations of one look, which go into one frame; the others are made at the next look."""

STRANGERS_MAX = 1000


class Liveness:
    """Remembers when each node of `state` was last heard, on a clock of its own that may start anywhere (seconds)."""

    def __init__(self, state: State, silence_seconds: float, now: float) -> None:
        self._state = state
        self._silence = silence_seconds
        self._listening_since = self._looked_at = now
        self._heard: dict[str, float] = {}
        self._incarnations: dict[str, int] = {}
        self._due: list[tuple[float, str]] = []
        self._due_at: dict[str, float] = {}
        """Of the nodes that are up, the time from which on each may be silent, as it stands in the heap."""

        self._silent: dict[str, None] = {}
        """Those that are up by the state, and were silent when they were last looked at."""

        self._away: dict[str, None] = {}
        self._returned: dict[str, None] = {}
        """Of those that are away, the ones that were heard."""

        self._strangers: dict[str, None] = {}
        self._watched: dict[str, None] = {}
        for node in state.nodes.values():
            self._incarnations[node.name] = node.incarnation
            self._put(node)
        state.watch(self._watched)

    def hear(self, node: str, now: float) -> None:
        """Note a heartbeat."""
        if node in self._incarnations:
            self._heard[node] = now
            if node in self._away:
                self._returned[node] = None
        elif len(self._strangers) < STRANGERS_MAX:
            self._strangers[node] = None

    def strangers(self) -> list[str]:
        """Return who was heard since this was asked last though no such node has joined, or it was forgotten."""
        heard, self._strangers = self._strangers, {}
        return [name for name in heard if name not in self._state.nodes]

    def listen_anew(self, now: float) -> None:
        """Forget old silences: the listener itself was away, so nobody can be blamed for them."""
        self._listening_since = now

    def observe(self, now: float, at_ns: int) -> list[NodeUnreachable | NodeReachable]:
        """Return what has changed since the state was folded: nodes that fell silent, or are heard again.

        It is said with every look until the state has it.
        """
        if now - self._looked_at > LOOK_GAP_SECONDS_MAX:
            self.listen_anew(now)  # whoever did not look for long was held up, and heard nobody meanwhile
        self._looked_at = now
        self._look(now)
        self._fall_due(now)
        seen: list[NodeUnreachable | NodeReachable] = []
        for name in [*sorted(self._silent), *sorted(self._returned)][:SEEN_MAX]:
            kind = NodeUnreachable if name in self._silent else NodeReachable
            event_id = f"{self._state.header.epoch}-{self._state.seq}-live-{name}"
            seen.append(kind(id=event_id, at_ns=at_ns, node=name, incarnation=self._incarnations[name]))
        return seen

    def _look(self, now: float) -> None:
        """Take in which nodes joined, left, or changed their status."""
        watched = list(self._watched)
        self._watched.clear()
        for key in watched:
            kind, _, name = key.partition("/")
            if kind != "node":
                continue
            node = self._state.nodes.get(name)
            if node is None:
                self._forget(name)
                continue
            if self._incarnations.get(name) != node.incarnation:
                self._incarnations[name] = node.incarnation
                self._heard[name] = now  # joining is a sign of life; the first heartbeat may still be on its way
            self._put(node)

    def _put(self, node: Node) -> None:
        name = node.name
        if node.status == "up":
            self._away.pop(name, None)
            self._returned.pop(name, None)
            if name not in self._due_at and name not in self._silent:
                self._attend(name)
            return
        self._silent.pop(name, None)
        self._due_at.pop(name, None)
        if name not in self._away:
            self._away[name] = None
            self._returned[name] = None  # perhaps it was heard while this was written; the look that follows says

    def _forget(self, name: str) -> None:
        tables: tuple[dict[str, Any], ...] = (self._heard, self._incarnations, self._due_at)
        for table in (*tables, self._silent, self._away, self._returned):
            table.pop(name, None)

    def _fall_due(self, now: float) -> None:
        for name in [name for name in self._silent if not self._is_silent(name, now)]:
            del self._silent[name]
            self._attend(name)
        while self._due and now > self._due[0][0]:
            at, name = heappop(self._due)
            if self._due_at.get(name) != at:
                continue
            del self._due_at[name]
            if self._is_silent(name, now):
                self._silent[name] = None
            else:
                self._attend(name)
        for name in list(self._returned):
            if self._is_silent(name, now) or self._heard.get(name, self._listening_since) <= self._listening_since:
                del self._returned[name]  # until it is heard again

    def _attend(self, name: str) -> None:
        at = self._silent_from(name)
        self._due_at[name] = at
        heappush(self._due, (at, name))

    def _silent_from(self, name: str) -> float:
        return max(self._heard.get(name, self._listening_since), self._listening_since) + self._silence

    def _is_silent(self, name: str, now: float) -> bool:
        return now > self._silent_from(name)
