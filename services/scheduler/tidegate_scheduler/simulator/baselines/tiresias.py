"""Tiresias: discretised least attained service (Gu et al., "Tiresias", NSDI 2019), in two dimensions: time times GPUs.

A job falls into the next queue once it had the service of a threshold; who is in an earlier one comes before, and in
each queue whoever was submitted first does. Here there are two queues, parted by the first threshold of its published
simulators, 3,250 GPU-seconds. It knows nothing of how long jobs take.
"""

from __future__ import annotations

from bisect import bisect_right

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.baselines.cluster import gpus_of, ran_seconds
from tidegate_scheduler.simulator.baselines.ranked import ranked
from tidegate_scheduler.simulator.rules import Fill, Rules
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, State

THRESHOLDS_GPU_SECONDS = (3250,)


def rules(_workload: Workload) -> Rules:
    """Return the rules."""
    return Rules(name="tiresias", fill=falling(THRESHOLDS_GPU_SECONDS))


def falling(thresholds_gpu_seconds: tuple[int, ...]) -> Fill:
    """Return rules by which jobs fall from queue to queue at these thresholds."""

    def rank(state: State, job: Job, now_ns: int) -> tuple[int, ...]:
        attained = ran_seconds(job, now_ns) * gpus_of(state.floors[job.id], state.specs[job.id])
        return (bisect_right(thresholds_gpu_seconds, attained // 1000),)

    def falls(state: State, job: Job, now_ns: int) -> int | None:
        """Return when a running job falls into the next queue."""
        gpus = gpus_of(state.floors[job.id], state.specs[job.id])
        queue = rank(state, job, now_ns)[0]
        if queue >= len(thresholds_gpu_seconds) or not job.started_ns:
            return None
        seconds = -(-thresholds_gpu_seconds[queue] * 1000 // gpus)
        return job.started_ns - job.ran_ns + (seconds + 1) * SECOND_NS

    return ranked(rank, falls)
