"""At which call the ranks of a gang on several nodes stop: the nodes' votes, brought together. Pure, no clock, no I/O.

Each node's own vote (channel/stop_vote.py) ends with its processes holding their next call and with the number of calls
that each stop group has made. The nodes tell these to the leading one, that of rank 0, which answers with the largest
of each group: no rank anywhere has answered that call yet, so it is the first True on every one of them.

A process that is held makes no progress and is killed at its deadline, and a checkpoint is worth more than agreement.
So the leading node waits for the others until `lead_by` and then decides with what it has; a node that hears nothing
until `follow_by` stops by its own vote. Only then can ranks on different nodes stop at different calls, and it is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Votes:
    """What one node's votes came to. `counts`: calls made, None while not all hold; `known`: decided already."""

    counts: Mapping[str, int] | None = None
    known: Mapping[str, int] = field(default_factory=dict)


class StopAgreement:
    """One attempt on one node. `stop_at` is what was agreed, by stop group; `without` names who had no part in it."""

    def __init__(self, node: str, nodes: tuple[str, ...]) -> None:
        self.leader = nodes[0]
        self.leads = node == nodes[0]
        self._others = tuple(other for other in nodes if other != node) if self.leads else ()
        self._own = Votes()
        self._heard: dict[str, Votes] = {}
        self._gone: set[str] = set()
        self._settled: set[str] = set()
        self._leader_gone = False
        self._by: tuple[float, float] | None = None
        self.stop_at: dict[str, int] | None = None
        self.without: tuple[str, ...] = ()

    @property
    def own(self) -> Votes:
        """Return what this node's votes came to."""
        return self._own

    def order(self, lead_by: float, follow_by: float) -> None:
        """The members here shall stop; only the first order sets the bounds, in seconds of the caller's clock."""
        self._by = self._by or (lead_by, follow_by)

    def note(self, own: Votes, now: float) -> None:
        """This node's votes have come so far."""
        self._own = _joined(self._own, own)
        self.tick(now)

    def on_votes(self, node: str, votes: Votes, now: float, *, settled: bool = False, gone: bool = False) -> None:
        """Another node's votes have come so far; only the leading node hears that. `gone`: it has no member left."""
        if node not in self._others:
            return
        self._heard[node] = _joined(self._heard.get(node, Votes()), votes)
        if settled or gone:
            self._settled.add(node)
        if gone:
            self._gone.add(node)
        self.tick(now)

    def on_decision(self, stop_at: Mapping[str, int]) -> None:
        """The leading node says where to stop; the first word counts."""
        if self.stop_at is None and not self.leads:
            self.stop_at = dict(stop_at)

    def on_leader_gone(self, now: float) -> None:
        """The leading node has no member left, and decides nothing any more."""
        self._leader_gone = not self.leads
        self.tick(now)

    def tick(self, now: float) -> None:
        """Decide where it is time to."""
        if self.stop_at is not None or self._by is None:
            return
        if not self.leads:
            if now >= self._by[1] or (self._leader_gone and self._own.counts is not None):
                self._decide((self.leader,))
            return
        silent = self.silent
        if now >= self._by[0] or (self._own.counts is not None and not silent):
            self._decide(silent)

    def wake_at(self) -> float | None:
        """Return when `tick` decides at the latest, None where nothing is to be decided."""
        if self.stop_at is not None or self._by is None:
            return None
        return self._by[0] if self.leads else self._by[1]

    @property
    def silent(self) -> tuple[str, ...]:
        """Return the nodes whose votes the leading node still waits for."""
        return tuple(
            node for node in self._others if node not in self._gone and self._heard.get(node, Votes()).counts is None
        )

    @property
    def untold(self) -> tuple[str, ...]:
        """Return the nodes that may not know the decision yet, or from which votes are missing."""
        if self._by is None:
            return ()
        return self.silent if self.stop_at is None else tuple(n for n in self._others if n not in self._settled)

    def _decide(self, without: tuple[str, ...]) -> None:
        votes = [self._own, *(self._heard[node] for node in self._others if node in self._heard)]
        largest: dict[str, int] = {}
        for each in votes:
            largest = _largest(largest, each.counts or {})
        # Where a group stops already, the others follow: they can, unless they have made more calls.
        for each in votes:
            for group, stop_at in each.known.items():
                largest[group] = max(stop_at, largest.get(group, 0))
        self.stop_at, self.without = largest, without


def _joined(one: Votes, two: Votes) -> Votes:
    """Return both: counts only grow, so an older word that comes late takes nothing back."""
    counts = two.counts if one.counts is None else _largest(one.counts, two.counts or {})
    return Votes(counts, _largest(one.known, two.known))


def _largest(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
    return {group: max(one.get(group, 0), two.get(group, 0)) for group in sorted({*one, *two})}
