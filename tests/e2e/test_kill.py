"""`kill -9` of each process during the main job: the jobs complete all the same, and history verifies.

With `determinism: strict` the one that was preempted and resumed meanwhile ends with the weights of one that nothing
disturbed, bit for bit.
"""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Place
from tests.e2e.running import HIGH_UPDATES, UPDATES, JsonObject, RunningStack

pytestmark = [pytest.mark.e2e, pytest.mark.isolation, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def undisturbed(shared: Place) -> JsonObject:
    """Return the low job as it ends when it has the stack for itself."""
    stack = shared.running()
    (reference,) = stack.completed(stack.submit("job.json", UPDATES))
    assert reference["preemptions"] == 0
    return reference


def assert_ended_well(stack: RunningStack, low: str, high: str, undisturbed: JsonObject) -> None:
    ended_low, ended_high = stack.completed(low, high)
    assert ended_low["result"]["updates"] == UPDATES
    assert ended_high["result"]["updates"] == HIGH_UPDATES
    assert ended_low["preemptions"] == 1
    assert 0 < ended_low["resumed_step"] < UPDATES
    assert ended_low["lost_steps"] == 0
    for name in ("weights_digest", "mean_return", "steps", "updates", "cpu_model", "isa"):
        assert ended_low["result"][name] == undisturbed["result"][name], name
    stack.assert_nothing_ran_twice(low, high)
    stack.verify()


def test_the_scheduler(stack: RunningStack, undisturbed: JsonObject) -> None:
    elected = len(stack.events("LeaderElected"))
    low, high = stack.submit_main_job()
    stack.until(lambda: stack.events("PreemptRequested", job=low), "the preemption")
    stack.kill("scheduler")
    assert_ended_well(stack, low, high, undisturbed)
    assert len(stack.events("LeaderElected")) == elected + 1


def test_the_node_agent(stack: RunningStack, undisturbed: JsonObject) -> None:
    joined = len(stack.events("NodeJoined"))
    low, high = stack.submit_main_job()
    stack.until(lambda: stack.events("JobSuspended", job=low), "the suspension")
    stack.until(lambda: stack.events("JobStarted", job=high), "the high job's start")
    stack.kill("executor")
    assert_ended_well(stack, low, high, undisturbed)
    assert len(stack.events("NodeJoined")) == joined + 1
    assert [entry.attempt for entry in stack.events("JobPlaced", job=high)] == [1]  # its sandbox lived on


def test_the_bus(stack: RunningStack, undisturbed: JsonObject) -> None:
    low, high = stack.submit_main_job()
    stack.until(lambda: stack.events("PreemptRequested", job=low), "the preemption")
    stack.kill("nats")
    assert_ended_well(stack, low, high, undisturbed)
