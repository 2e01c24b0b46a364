"""What things took in a recorded history: the costs that a simulation of it counts with, and which were seen."""

from __future__ import annotations

from statistics import median_low

import msgspec
from tidegate_events import events as e

from tidegate_scheduler.simulator.costs import MILLIS_MAX, SECONDS_MAX, Costs
from tidegate_scheduler.simulator.work import MILLI_NS

PASS_INTERVAL_MS_MAX = 1000


class Cost(msgspec.Struct, frozen=True):
    """What one cost was: the middle of so many times that it was seen; 0 times: it is the model's own."""

    name: str
    value: int
    seen: int


class Meter:
    """Sees events that count, in their order, and how long one took to follow another."""

    def __init__(self) -> None:
        self._placed: dict[tuple[str, int], int] = {}
        self._asked: dict[tuple[str, int], int] = {}
        self._granted: dict[tuple[str, int, str], int] = {}
        self._starts_ms: list[int] = []
        self._pulls_ms: list[int] = []
        self._saves_ms: list[int] = []
        self._changes_ms: list[int] = []
        self._reactions_ms: list[int] = []
        self._newest_ns: int | None = None

    def saw(self, event: e.AnyEvent) -> None:
        """Take note of what begins something, and of what ends it."""
        if isinstance(event, e.DecisionPass):
            self._decided(event)
        elif not isinstance(event, e.Decision):
            self._newest_ns = max(event.at_ns, self._newest_ns or 0)
        if isinstance(event, e.JobPlaced):
            self._placed[event.job, event.attempt] = event.at_ns
        elif isinstance(event, e.SandboxStarted):
            placed_ns = self._placed.get((event.job, event.attempt))
            if placed_ns is not None:
                self._starts_ms.append(max(0, (event.at_ns - placed_ns) // MILLI_NS - event.prepare_ms))
            if event.prepare_ms:
                self._pulls_ms.append(event.prepare_ms)
        elif isinstance(event, e.PreemptRequested):
            self._asked[event.job, event.attempt] = event.at_ns
        elif isinstance(event, e.SandboxExited) and event.outcome == "suspended":
            asked_ns = self._asked.pop((event.job, event.attempt), None)
            if asked_ns is not None:
                self._saves_ms.append(max(0, (event.at_ns - asked_ns) // MILLI_NS))
        elif isinstance(event, e.QuotaChanged) and event.phase:
            self._granted[event.job, event.rank, event.phase] = event.at_ns
        elif isinstance(event, e.PhaseChanged):
            granted_ns = self._granted.pop((event.job, event.rank, event.phase), None)
            if granted_ns is not None:
                self._changes_ms.append(max(0, (event.at_ns - granted_ns) // MILLI_NS))

    def _decided(self, event: e.DecisionPass) -> None:
        """Note how long ago the newest of what a pass was decided for was seen."""
        if self._newest_ns is not None:
            reaction_ms = (event.now_ns - self._newest_ns) // MILLI_NS
            self._reactions_ms.append(min(PASS_INTERVAL_MS_MAX, max(1, reaction_ms)))
        self._newest_ns = None

    def costs(self) -> tuple[Costs, tuple[Cost, ...]]:
        """Return the costs, and how often each was seen.

        What a job needs after a resume until it works again is part of its recorded work, so it is not counted twice.
        """
        own = Costs()
        found = (
            _middle("start_ms", self._starts_ms, 1, own.start_ms),
            _middle("image_pull_seconds", self._pulls_ms, 1000, own.image_pull_seconds),
            _middle("checkpoint_seconds", self._saves_ms, 1000, own.checkpoint_seconds),
            _middle("phase_change_ms", self._changes_ms, 1, own.phase_change_ms),
            _middle("pass_interval_ms", self._reactions_ms, 1, own.pass_interval_ms),
        )
        values = {cost.name: cost.value for cost in found}
        costs = msgspec.convert({**values, "restart_seconds": 0, "node_failures_per_day_millis": 0}, Costs)
        return costs, found


def _middle(name: str, seen_ms: list[int], unit_ms: int, otherwise: int) -> Cost:
    if not seen_ms:
        return Cost(name, otherwise, 0)
    middle = (median_low(seen_ms) + unit_ms // 2) // unit_ms
    return Cost(name, min(middle, MILLIS_MAX if unit_ms == 1 else SECONDS_MAX), len(seen_ms))
