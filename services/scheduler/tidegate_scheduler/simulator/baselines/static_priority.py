"""Static priority: the highest first, then in the order of submission; whoever runs keeps its peak for life."""

from __future__ import annotations

from tidegate_scheduler.simulator.baselines.in_turn import in_turn
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, State


def rules(_workload: Workload) -> Rules:
    """Return the rules."""
    return Rules(name="static_priority", fill=in_turn(_rank, passing=False))


def _rank(_state: State, job: Job, _now_ns: int) -> tuple[int, ...]:
    return (-job.priority,)
