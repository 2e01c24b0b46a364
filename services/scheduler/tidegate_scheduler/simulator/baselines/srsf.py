"""SRSF: the shortest remaining service first, which is time times GPUs. It knows how long every job takes."""

from __future__ import annotations

from tidegate_scheduler.simulator.baselines.cluster import gpus_of, ran_seconds
from tidegate_scheduler.simulator.baselines.ranked import ranked
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, State


def rules(workload: Workload) -> Rules:
    """Return the rules for this workload, whose truth they look at."""
    work = {arrival.job: arrival.truth.work_seconds for arrival in workload.arrivals}

    gpus: dict[str, int] = {}

    def rank(state: State, job: Job, now_ns: int) -> tuple[int, ...]:
        if job.id not in gpus:
            gpus[job.id] = gpus_of(state.floors[job.id], state.specs[job.id])
        return (max(0, work[job.id] - ran_seconds(job, now_ns)) * gpus[job.id],)

    return Rules(name="srsf", fill=ranked(rank), knows_durations=True)
