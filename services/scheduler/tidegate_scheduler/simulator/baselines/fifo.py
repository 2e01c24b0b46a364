"""Static FIFO: in the order of submission; while the first does not fit, everybody waits."""

from __future__ import annotations

from tidegate_scheduler.simulator.baselines.in_turn import in_turn
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, State


def rules(_workload: Workload) -> Rules:
    """Return the rules."""
    return Rules(name="fifo", fill=in_turn(_rank, passing=False))


def _rank(_state: State, _job: Job, _now_ns: int) -> tuple[int, ...]:
    return ()
