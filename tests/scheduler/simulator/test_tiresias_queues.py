"""Tiresias with more queues: who had less of a long time comes before who had more, where two queues know no more."""

from __future__ import annotations

import pytest
from tidegate_scheduler.simulator.choice import Choice, rules_for
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.workload import Workload

from tests.scheduler.simulator.journals import COSTS, job, node
from tests.support.cluster import spec


@pytest.mark.parametrize(("name", "first", "preemptions"), [("tiresias", "long", 2), ("tiresias_queues", "short", 3)])
def test_more_queues_tell_jobs_apart_for_longer(name: str, first: str, preemptions: int) -> None:
    """Both need the one GPU, for 20,000 s and for 7,100 s, which is less than the second threshold."""
    one_gpu = spec(1000, gpus=1, grace=20)
    arrivals = (job("long", 0, 20_000, one_gpu), job("short", 1, 7_100, one_gpu))
    workload = Workload("two", (node("n1", 8000, 1),), arrivals)
    run = simulate(workload, rules_for(Choice(name), workload), COSTS)
    assert [each.outcome for each in run.jobs] == ["completed", "completed"]
    assert min(run.jobs, key=lambda each: each.ended_ns or 0).job == first
    assert sum(each.preemptions for each in run.jobs) == preemptions
