"""What a run comes to in numbers: completion times, waits, makespan, how much of the GPUs was given and used.

All sums are exact; each number is rounded once, at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import msgspec

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.run import JobRun, Run, Sample

RAN = ("completed", "failed")
PLACES = 3


class Spread(msgspec.Struct, frozen=True):
    """Seconds: the mean, and what half and 99 of 100 do not exceed (nearest rank). All are 0 where there are none."""

    avg_s: float
    p50_s: float
    p99_s: float


class Measures(msgspec.Struct, frozen=True):
    """The numbers of a run, or of the part of its jobs that is asked for.

    Completion is from submission to the end, of jobs that ran to an end. Waiting is all time in the queue, of jobs that
    were placed or stood in it: who was never placed waits until the simulation ends. `makespan_s` is from the first
    submission to the last end. Of all the time of all devices until then, `gpu_utilization` is the part in which
    working phases needed them (also for work that was lost later), `gpu_allocation` the part that members held.
    """

    jobs: int
    completed: int
    failed: int
    rejected: int
    cancelled: int
    unfinished: int
    censored: int
    completion: Spread
    waiting: Spread
    makespan_s: float
    gpu_utilization: float
    gpu_allocation: float
    preemptions: int
    lost_gpu_s: float
    jobs_at_once: float


def of(run: Run) -> Measures:
    """Return the measures of the whole run."""
    begin_ns, end_ns = _lasted(run.jobs, run)
    total = area(run.samples, lambda sample: sample.gpus_total_millis, begin_ns, end_ns)
    busy = area(run.samples, lambda sample: sample.gpus_busy_millis, begin_ns, end_ns)
    held = area(run.samples, lambda sample: sample.gpus_held_millis, begin_ns, end_ns)
    placed = area(run.samples, lambda sample: sample.placed, begin_ns, end_ns)
    counts = Counter(job.outcome for job in run.jobs)
    return Measures(
        jobs=len(run.jobs),
        completed=counts["completed"],
        failed=counts["failed"],
        rejected=counts["rejected"],
        cancelled=counts["cancelled"],
        unfinished=counts[""],
        censored=sum(job.censored for job in run.jobs),
        completion=completion(run.jobs),
        waiting=waiting(run.jobs),
        makespan_s=_seconds(end_ns - begin_ns),
        gpu_utilization=_part(busy, total),
        gpu_allocation=_part(held, total),
        preemptions=sum(job.preemptions for job in run.jobs),
        lost_gpu_s=round(sum(job.lost_gpu_ms for job in run.jobs) / 1000, PLACES),
        jobs_at_once=_part(placed, end_ns - begin_ns),
    )


def completion(jobs: Sequence[JobRun]) -> Spread:
    """Return how long jobs took from their submission to their end, of those that ran to an end."""
    return spread([job.ended_ns - job.submitted_ns for job in jobs if job.ended_ns is not None and job.outcome in RAN])


def waiting(jobs: Sequence[JobRun]) -> Spread:
    """Return how long jobs stood in the queue, of all but those that were refused at once."""
    return spread([job.waited_ns for job in jobs if job.first_placed_ns is not None or job.waited_ns])


def spread(times_ns: Sequence[int]) -> Spread:
    """Return the mean and the percentiles of times."""
    if not times_ns:
        return Spread(0.0, 0.0, 0.0)
    ordered = sorted(times_ns)
    return Spread(
        avg_s=round(float(Fraction(sum(ordered), len(ordered) * SECOND_NS)), PLACES),
        p50_s=_seconds(ordered[_rank(len(ordered), 50)]),
        p99_s=_seconds(ordered[_rank(len(ordered), 99)]),
    )


def area(samples: Sequence[Sample], value: Callable[[Sample], int], begin_ns: int, end_ns: int) -> int:
    """Return the value times how long it held, over the time between: value-nanoseconds, exactly."""
    found = 0
    ends = [min(later.at_ns, end_ns) for later in samples[1:]] + [end_ns]
    for sample, until_ns in zip(samples, ends, strict=False):
        since_ns = max(sample.at_ns, begin_ns)
        if until_ns > since_ns:
            found += value(sample) * (until_ns - since_ns)
    return found


def _lasted(jobs: Sequence[JobRun], run: Run) -> tuple[int, int]:
    begin_ns = max(run.begin_ns, min((job.submitted_ns for job in jobs), default=run.begin_ns))
    ends = [job.ended_ns if job.ended_ns is not None else run.end_ns for job in jobs]
    return begin_ns, max(begin_ns, max(ends, default=run.end_ns))


def _rank(count: int, percent: int) -> int:
    return max(0, -(-count * percent // 100) - 1)


def _seconds(time_ns: int) -> float:
    return round(float(Fraction(time_ns, SECOND_NS)), PLACES)


def _part(part: int, whole: int) -> float:
    return round(float(Fraction(part, whole)), 4) if whole else 0.0
