"""`kill -9` of each process during the main job: the jobs complete all the same, and history verifies."""

from __future__ import annotations

import pytest

from tests.e2e.running import RunningStack

pytestmark = [pytest.mark.e2e, pytest.mark.isolation, pytest.mark.timeout(600)]

UPDATES = 6
HIGH_UPDATES = 1


def main_job(stack: RunningStack) -> tuple[str, str]:
    """Submit the low job, and once it has learnt something the high one, which does not fit beside it."""
    low = stack.submit("job.json", UPDATES)
    stack.until(lambda: stack.step(low) >= 2, "the low job's second update")
    return low, stack.submit("job-high.json", HIGH_UPDATES)


def assert_ended_well(stack: RunningStack, low: str, high: str) -> None:
    ended_low, ended_high = stack.completed(low, high)
    assert ended_low["result"]["updates"] == UPDATES
    assert ended_high["result"]["updates"] == HIGH_UPDATES
    assert ended_low["preemptions"] == 1
    assert ended_low["lost_steps"] == 0
    stack.assert_nothing_ran_twice()
    stack.verify()


def test_the_scheduler(stack: RunningStack) -> None:
    low, high = main_job(stack)
    stack.until(lambda: stack.events("PreemptRequested", job=low), "the preemption")
    stack.kill("scheduler")
    assert_ended_well(stack, low, high)
    assert len(stack.events("LeaderElected")) == 2


def test_the_node_agent(stack: RunningStack) -> None:
    low, high = main_job(stack)
    stack.until(lambda: stack.events("JobSuspended", job=low), "the suspension")
    stack.until(lambda: stack.events("JobStarted", job=high), "the high job's start")
    stack.kill("executor")
    assert_ended_well(stack, low, high)
    assert len(stack.events("NodeJoined")) == 2
    assert [entry.attempt for entry in stack.events("JobPlaced", job=high)] == [1]  # its sandbox lived on


def test_the_bus(stack: RunningStack) -> None:
    low, high = main_job(stack)
    stack.until(lambda: stack.events("PreemptRequested", job=low), "the preemption")
    stack.kill("nats")
    assert_ended_well(stack, low, high)
