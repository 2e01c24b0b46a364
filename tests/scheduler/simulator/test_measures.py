"""The numbers of a run, worked out by hand from a run that was written down."""

from __future__ import annotations

import pytest
from tidegate_scheduler.simulator import measures
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.run import JobRun, Run, Sample

SECOND = 1_000_000_000


def job(name: str, submitted: int, ended: int | None, outcome: str = "completed", **more: int) -> JobRun:
    waited = more.get("waited", 0)
    return JobRun(
        job=name,
        tenant="t",
        submitted_ns=submitted * SECOND,
        first_placed_ns=None if outcome == "rejected" else (submitted + waited) * SECOND,
        ended_ns=None if ended is None else ended * SECOND,
        outcome=outcome,
        work_seconds=10,
        gpus=2,
        gpu_millis=0,
        preemptions=more.get("preemptions", 0),
        lost_gpu_ms=more.get("lost_ms", 0),
        waited_ns=waited * SECOND,
        asked_ns=0,
        phases=(),
    )


def sample(at: int, held: int, busy: int, total: int = 4000, placed: int = 1) -> Sample:
    return Sample(at * SECOND, 0, placed, placed, held, busy, 1000, total)


JOBS = (
    job("a", 10, 40, waited=5, preemptions=2, lost_ms=1500),
    job("b", 20, 120, "failed", waited=15, lost_ms=250),
    job("c", 30, 31, "rejected"),
    job("d", 30, None, ""),
)
SAMPLES = (
    sample(0, 0, 0, placed=0),
    sample(10, 2000, 2000),
    sample(40, 4000, 1000, placed=2),
    sample(110, 0, 0, 2000, 0),
)


def made(jobs: tuple[JobRun, ...] = JOBS) -> Run:
    return Run("w", "r", 0, Costs(), jobs, (), SAMPLES, (), 0, 130 * SECOND)


def test_the_numbers_are_those_worked_out_by_hand() -> None:
    found = measures.of(made())
    assert (found.jobs, found.completed, found.failed, found.rejected, found.unfinished) == (4, 1, 1, 1, 1)
    assert (found.completion.avg_s, found.completion.p50_s, found.completion.p99_s) == (65.0, 30.0, 100.0)
    assert found.waiting.avg_s == pytest.approx(20 / 3, abs=0.001)
    assert found.makespan_s == 120.0  # from 10 s until 130 s, when the last has not ended
    total = 4000 * 100 + 2000 * 20
    assert found.gpu_utilization == round((2000 * 30 + 1000 * 70) / total, 4)
    assert found.gpu_allocation == round((2000 * 30 + 4000 * 70) / total, 4)
    assert found.jobs_at_once == round((30 + 2 * 70) / 120, 4)
    assert (found.preemptions, found.lost_gpu_s) == (2, 1.75)


def test_of_nothing_the_numbers_are_zero() -> None:
    found = measures.of(Run("w", "r", 0, Costs(), (), (), (), (), 0, 0))
    assert (found.jobs, found.completion.avg_s, found.makespan_s, found.gpu_utilization) == (0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("count", "middle", "last"), [(1, 1, 1), (2, 1, 2), (100, 50, 99), (101, 51, 100), (200, 100, 198)]
)
def test_percentiles_are_by_the_nearest_rank(count: int, middle: int, last: int) -> None:
    found = measures.spread([number * SECOND for number in range(count, 0, -1)])
    assert (found.p50_s, found.p99_s) == (middle, last)


def test_an_area_is_cut_to_the_time_that_is_asked_for() -> None:
    assert (
        measures.area(SAMPLES, lambda each: each.gpus_held_millis, 35 * SECOND, 45 * SECOND)
        == (2000 * 5 + 4000 * 5) * SECOND
    )
    assert measures.area(SAMPLES, lambda each: each.gpus_total_millis, 110 * SECOND, 111 * SECOND) == 2000 * SECOND
