"""For whom a pass works out plans: for those in front, and for all behind them in turn, however often it comes."""

from __future__ import annotations

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.policy.elastic.plans import round_begins_at
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import asked_to_leave, elastic, run
from tests.support.cluster import SECOND, Cluster, spec

EVERY_SECONDS = (1, 2, 5, 10)
PASSES_PER_LINE = 5


@pytest.mark.parametrize("every", EVERY_SECONDS)
@pytest.mark.parametrize("began_seconds", [0, 1_792_000_003])
def test_the_round_comes_by_every_line_again_and_again(every: int, began_seconds: int) -> None:
    """By one of them, or the one before: half of the plans are enough for two jobs."""
    for lines in range(3, 81):
        passes = range(3 * PASSES_PER_LINE * lines)
        begins = [round_begins_at((began_seconds + number * every) * SECOND, lines) for number in passes]
        assert set(begins) <= set(range(lines))
        for line in range(lines):
            seen = [number for number, begin in enumerate(begins) if begin in (line - 1, line)]
            waits = [later - earlier for earlier, later in zip([-1, *seen], [*seen, len(begins)], strict=True)]
            assert max(waits) <= PASSES_PER_LINE * lines, f"line {line} of {lines}, every {every} s"


def crowded(lines: int, parameters: Parameters) -> Cluster:
    """So many lines in front want the room of one who is protected; the job `back`, behind them, that of another."""
    cluster = elastic(parameters)
    cluster.node("n1", 4000)
    cluster.node("n2", 1000)
    run(cluster, "spared", spec(4000, expected_seconds=100_000))
    run(cluster, "cheap", spec(1000))
    cluster.advance(99_000)
    for number in range(lines):
        cluster.submit(spec(3000 + number, priority=5), f"front{number:03}")
    cluster.submit(spec(1000, priority=4), "back")
    return cluster


@pytest.mark.parametrize("slice_steps", [0, 1])
@pytest.mark.parametrize("every", EVERY_SECONDS)
def test_whoever_is_behind_others_whom_no_plan_helps_is_helped(slice_steps: int, every: int) -> None:
    bounds = {"ageing_seconds": 0, "overrun_permille": 100_000, "preemption_cooldown_seconds": 0}
    for lines in range(3 + every % 9, 81, 9):
        cluster = crowded(lines, Parameters(slice_steps=slice_steps, reservations_max=lines % 3, **bounds))
        for _ in range(PASSES_PER_LINE * lines):
            if left := asked_to_leave(cluster.advance(every)):
                break
            assert cluster.wake_at is not None
            assert cluster.wake_at <= cluster.now + SECOND, "whose plan was not worked out is looked at again"
        assert left == {"cheap": "back"}, f"with {lines} in front"


def test_who_asks_for_no_plan_takes_nobody_s() -> None:
    """Nobody runs who might leave for those in front, neither of a lower priority nor of theirs."""
    cluster = elastic(Parameters(slice_steps=1, ageing_seconds=0, reservations_max=0, preemption_cooldown_seconds=0))
    cluster.node("n1", 4000)
    run(cluster, "borrows", spec(4000, priority=6))
    cluster.ask(e.QueueChanged, tenant="owner", guaranteed=Resources(4000, 1 << 20))
    for number in range(80):
        cluster.submit(spec(3000 + number, priority=5), f"front{number:03}")
    cluster.submit(spec(1000, priority=4, tenant="owner"), "back")
    assert asked_to_leave(cluster.settle()) == {"borrows": "back"}
