"""Which nodes the leader hears: heartbeats in, observations out. What a silence means is decided by the core."""

from __future__ import annotations

from tidegate_events.events import NodeReachable, NodeUnreachable

from tidegate_scheduler.state import State

LOOK_GAP_SECONDS_MAX = 2.0


class Liveness:
    """Remembers when each node was last heard, on a clock of its own that may start anywhere (seconds)."""

    def __init__(self, silence_seconds: float, now: float) -> None:
        self._silence = silence_seconds
        self._listening_since = self._looked_at = now
        self._heard: dict[str, float] = {}
        self._incarnations: dict[str, int] = {}

    def hear(self, node: str, now: float) -> None:
        """Note a heartbeat."""
        self._heard[node] = now

    def listen_anew(self, now: float) -> None:
        """Forget old silences: the listener itself was away, so nobody can be blamed for them."""
        self._listening_since = now

    def observe(self, state: State, now: float, at_ns: int) -> list[NodeUnreachable | NodeReachable]:
        """Return what has changed since the state was folded: nodes that fell silent, or are heard again."""
        if now - self._looked_at > LOOK_GAP_SECONDS_MAX:
            self.listen_anew(now)  # whoever did not look for long was held up, and heard nobody meanwhile
        self._looked_at = now
        seen: list[NodeUnreachable | NodeReachable] = []
        for name, node in sorted(state.nodes.items()):
            if self._incarnations.get(name) != node.incarnation:
                self._incarnations[name] = node.incarnation
                self.hear(name, now)  # joining is a sign of life; the first heartbeat may still be on its way
            heard = self._heard[name]
            silent = now - max(heard, self._listening_since) > self._silence
            event_id = f"{state.header.epoch}-{state.seq}-live-{name}"
            if node.status == "up" and silent:
                seen.append(NodeUnreachable(id=event_id, at_ns=at_ns, node=name, incarnation=node.incarnation))
            elif node.status != "up" and not silent and heard > self._listening_since:
                seen.append(NodeReachable(id=event_id, at_ns=at_ns, node=name, incarnation=node.incarnation))
        return seen
