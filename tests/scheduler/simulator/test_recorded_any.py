"""Whatever jobs come, and whichever nodes fail: what is read from the journal of a simulation is what it did."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.recorded import Recording, read
from tidegate_scheduler.simulator.run import JobRun, Run
from tidegate_scheduler.simulator.what_if import recorded_rules
from tidegate_scheduler.simulator.workload import Workload

from tests.scheduler.history.files import told
from tests.scheduler.simulator.journals import recorded_run
from tests.scheduler.simulator.test_any_workload import elastic_jobs, plain_jobs, several

COSTS = Costs(start_ms=700, checkpoint_seconds=4, restart_seconds=0, phase_change_ms=100, pass_interval_ms=50)
EXAMPLES = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
jobs = st.one_of(several(plain_jobs), several(elastic_jobs))


def recorded(work: Workload, costs: Costs, end: Moment | None = None) -> tuple[Run, Recording]:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        run, source = recorded_run(Path(directory), work, patch, costs=costs)
        return run, asyncio.run(read(source, "any", Moment(), end or Moment(), told))


def counted(job: JobRun) -> JobRun:
    """Leave out what is no count, and phases of no length: a member is in one before it asks for its first."""
    phases = tuple(sorted((each for each in job.phases if each.worked_ns or each.asked_ns), key=str))
    return msgspec.structs.replace(job, phases=phases, work_seconds=0, censored=False)


@EXAMPLES
@given(jobs)
def test_what_happened_is_what_the_engine_counted(work: Workload) -> None:
    run, recording = recorded(work, COSTS)
    assert [counted(each) for each in recording.happened.jobs] == [counted(each) for each in run.jobs]
    assert sorted(recording.happened.stays, key=str) == sorted(run.stays, key=str)


@EXAMPLES
@given(jobs)
def test_the_work_of_jobs_that_completed_is_their_truth(work: Workload) -> None:
    """As far as a recording can tell: a phase that may have more CPU is taken to be as fast as that makes it."""
    _, recording = recorded(work, COSTS)
    truths = {arrival.job: arrival.truth for arrival in work.arrivals}
    for arrival in recording.workload.arrivals:
        truth = truths[arrival.job]
        told_right = all(span.cpu_bound for span in truth.spans if span.phase == "sampling")
        if truth.fails_after_seconds is None and told_right:
            assert not arrival.truth.censored
            done, real = (sum(span.work_ms for span in each.spans) for each in (arrival.truth, truth))
            # each pace is an exact fraction in the engine, and each change of it may cost a nanosecond here
            assert abs(done - real) <= 1, arrival.job


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs, st.integers(0, 3))
def test_it_can_be_simulated_again_whatever_fails(work: Workload, minutes: int) -> None:
    """Also in part: every stretch is a workload, and the same again is the same."""
    costs = msgspec.structs.replace(COSTS, node_failures_per_day_millis=24_000, node_repair_seconds=90)
    run, recording = recorded(work, costs, Moment(at_ns=run_ns) if (run_ns := minutes * 60_000_000_000) else None)
    assert {each.job for each in recording.happened.jobs} <= {each.job for each in run.jobs}
    for sample in (*run.samples, *recording.happened.samples):
        assert sample.gpus_busy_millis <= sample.gpus_held_millis <= sample.gpus_total_millis
    rules = recorded_rules(recording)
    again = simulate(recording.workload, rules, recording.costs, begin=recording.begin)
    assert {each.job for each in again.jobs} == {arrival.job for arrival in recording.workload.arrivals}
    assert all(each.outcome for each in again.jobs)
    assert again == simulate(recording.workload, rules, recording.costs, begin=recording.begin)
