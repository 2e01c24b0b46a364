"""How far the model is from what really happened: the recorded policy, simulated, against the recording itself.

A difference between two simulations that is smaller than this error says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from statistics import median_low

import msgspec

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator import measures
from tidegate_scheduler.simulator.run import JobRun, Run

PLACES = 3
PLACES_OFF = 6
"""Sums are made of these means again."""

Pair = tuple[JobRun, JobRun]


class Numbers(msgspec.Struct, frozen=True):
    """What became of some jobs together: means in seconds, sums of what was lost.

    `waiting_s` is in the queue, `asked_s` what members waited to enter phases.
    """

    jobs: int
    completion_s: float
    waiting_s: float
    asked_s: float
    preemptions: int
    lost_gpu_s: float
    lost_s: float


class Off(msgspec.Struct, frozen=True):
    """By how much the model is off for a job, whichever way: the mean over so many jobs, so that no two cancel."""

    jobs: int
    completion_s: float
    waiting_s: float
    asked_s: float
    preemptions: float
    lost_gpu_s: float
    lost_s: float


class Calibration(msgspec.Struct, frozen=True):
    """The same jobs, as they were and as the model has them: those that ran to an end in both, in the same way.

    `off` is by how much it is off for each of them on average. `completion_off_s` is by how much half of the jobs end
    earlier or later than they did, and `worst_off_s` of the job that is farthest off, which is `worst`. `otherwise` are
    jobs that end in another way, or do not. Of the recorded `placements` the first `placements_alike` are placed in the
    same order on the same nodes.
    """

    happened: Numbers
    simulated: Numbers
    jobs: int
    otherwise: tuple[str, ...]
    off: Off | None
    completion_off_s: float
    worst_off_s: float
    worst: str
    placements: int
    placements_alike: int


def calibrate(happened: Run, simulated: Run) -> Calibration:
    """Compare what happened with the simulation of the same policy."""
    alike = pairs(happened, simulated)
    modelled = {job.job: job for job in simulated.jobs}
    off = [(abs((model.ended_ns or 0) - (real.ended_ns or 0)), real.job) for real, model in alike]
    worst_ns, worst = max(off, default=(0, ""))
    return Calibration(
        happened=numbers([real for real, _ in alike]),
        simulated=numbers([model for _, model in alike]),
        jobs=len(alike),
        otherwise=tuple(
            real.job for real in happened.jobs if real.outcome and real.outcome != modelled[real.job].outcome
        ),
        off=mean_off(alike),
        completion_off_s=_seconds(median_low([each for each, _ in off]) if off else 0),
        worst_off_s=_seconds(worst_ns),
        worst=worst,
        placements=len(_placements(happened)),
        placements_alike=_alike(_placements(happened), _placements(simulated)),
    )


def pairs(happened: Run, simulated: Run) -> list[Pair]:
    """Return the jobs that ran to an end in both, in the same way: as they were, and as the model has them."""
    modelled = {job.job: job for job in simulated.jobs}
    found = [(job, modelled[job.job]) for job in happened.jobs if job.outcome in measures.RAN]
    return [(real, model) for real, model in found if real.outcome == model.outcome]


def mean_off(alike: Sequence[Pair]) -> Off | None:
    """Return by how much the model is off for these jobs on average, None where there are none to tell it by."""
    if not alike:
        return None

    def mean(value: Callable[[JobRun], int], unit: int) -> float:
        return round(
            float(Fraction(sum(abs(value(model) - value(real)) for real, model in alike), unit * count)), PLACES_OFF
        )

    count = len(alike)
    return Off(
        jobs=count,
        completion_s=mean(lambda job: (job.ended_ns or 0) - job.submitted_ns, SECOND_NS),
        waiting_s=mean(lambda job: job.waited_ns, SECOND_NS),
        asked_s=mean(lambda job: job.asked_ns, SECOND_NS),
        preemptions=mean(lambda job: job.preemptions, 1),
        lost_gpu_s=mean(lambda job: job.lost_gpu_ms, 1000),
        lost_s=mean(lambda job: job.lost_ms, 1000),
    )


def numbers(jobs: Sequence[JobRun]) -> Numbers:
    """Return what became of these jobs, all of which ended."""
    taken_ns = [job.ended_ns - job.submitted_ns for job in jobs if job.ended_ns is not None]
    return Numbers(
        jobs=len(jobs),
        completion_s=measures.spread(taken_ns).avg_s,
        waiting_s=measures.spread([job.waited_ns for job in jobs]).avg_s,
        asked_s=measures.spread([job.asked_ns for job in jobs]).avg_s,
        preemptions=sum(job.preemptions for job in jobs),
        lost_gpu_s=round(sum(job.lost_gpu_ms for job in jobs) / 1000, PLACES),
        lost_s=round(sum(job.lost_ms for job in jobs) / 1000, PLACES),
    )


def _placements(run: Run) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.job, each.nodes) for each in run.decided if each.kind == "JobPlaced"]


def _alike(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many of the first are the same."""
    same = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        same += 1
    return same


def _seconds(time_ns: int) -> float:
    return round(float(Fraction(time_ns, SECOND_NS)), PLACES)
