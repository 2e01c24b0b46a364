"""SRTF: the shortest remaining time first. It knows how long every job takes."""

from __future__ import annotations

from tidegate_scheduler.simulator.baselines.cluster import ran_seconds
from tidegate_scheduler.simulator.baselines.ranked import ranked
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, State


def rules(workload: Workload) -> Rules:
    """Return the rules for this workload, whose truth they look at."""
    work = {arrival.job: arrival.truth.work_seconds for arrival in workload.arrivals}

    def rank(_state: State, job: Job, now_ns: int) -> tuple[int, ...]:
        return (max(0, work[job.id] - ran_seconds(job, now_ns)),)

    return Rules(name="srtf", fill=ranked(rank), knows_durations=True)
