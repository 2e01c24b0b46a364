"""Tiresias: discretised least attained service (Gu et al., "Tiresias", NSDI 2019), in two dimensions: time times GPUs.

A job falls into the second queue once it had the service of the threshold; who is in the first comes before, and in
each queue whoever was submitted first does. The threshold is the one of its published simulator, 3,250 GPU-seconds in
two queues. It knows nothing of how long jobs take.
"""

from __future__ import annotations

from bisect import bisect_right

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.baselines.cluster import gpus_of, ran_seconds
from tidegate_scheduler.simulator.baselines.ranked import ranked
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, State

THRESHOLDS_GPU_SECONDS = (3250,)


def rules(_workload: Workload) -> Rules:
    """Return the rules."""
    return Rules(name="tiresias", fill=ranked(_rank, _falls))


def _rank(state: State, job: Job, now_ns: int) -> tuple[int, ...]:
    attained = ran_seconds(job, now_ns) * gpus_of(state.floors[job.id], state.specs[job.id])
    return (bisect_right(THRESHOLDS_GPU_SECONDS, attained // 1000),)


def _falls(state: State, job: Job, now_ns: int) -> int | None:
    """Return when a running job falls into the next queue."""
    gpus = gpus_of(state.floors[job.id], state.specs[job.id])
    queue = _rank(state, job, now_ns)[0]
    if queue >= len(THRESHOLDS_GPU_SECONDS) or not job.started_ns:
        return None
    seconds = -(-THRESHOLDS_GPU_SECONDS[queue] * 1000 // gpus)
    return job.started_ns - job.ran_ns + (seconds + 1) * SECOND_NS
