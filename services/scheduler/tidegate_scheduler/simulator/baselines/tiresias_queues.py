"""Tiresias with all the thresholds that its published simulators list: 3,250, 7,200 and 18,000 GPU-seconds."""

from __future__ import annotations

from tidegate_scheduler.simulator.baselines.tiresias import falling
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.workload import Workload

THRESHOLDS_GPU_SECONDS = (3250, 7200, 18_000)


def rules(_workload: Workload) -> Rules:
    """Return the rules."""
    return Rules(name="tiresias_queues", fill=falling(THRESHOLDS_GPU_SECONDS))
