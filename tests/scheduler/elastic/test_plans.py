"""For whom a pass works out plans: for those in front, and for all behind them in turn, however often it comes."""

from __future__ import annotations

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.decide import decide
from tidegate_scheduler.dry_run import DryRun, dry_run
from tidegate_scheduler.policy.elastic import rounds
from tidegate_scheduler.policy.elastic.rounds import PLANS_AT_REST_MAX, PLANS_ON_TRIAL_MAX, round_begins_at
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import asked_to_leave, elastic, of, run
from tests.support.cluster import SECOND, Cluster, spec

EVERY_SECONDS = (1, 2, 5, 10)
PASSES_PER_ASKER, MORE_ASKERS = 9, 8
"""However many lines there are beside those who ask; a few wait as some more would, as parts are small."""

FRONT = 2
"""Half of the plans are enough for two jobs."""


def passes_for(asking: int) -> int:
    return PASSES_PER_ASKER * (asking + MORE_ASKERS)


@pytest.mark.parametrize("every", EVERY_SECONDS)
@pytest.mark.parametrize("idle", [0, 200, 1000, 4000])
def test_the_round_comes_by_all_who_ask_again_and_again(idle: int, every: int) -> None:
    """By one of them, or the one before."""
    for began_seconds in (0, 1_792_000_003):
        for asking in range(3, 81):
            within = passes_for(asking)
            seconds = range(began_seconds, began_seconds + every * 2 * within, every)
            begins = [round_begins_at(second * SECOND, asking + idle) for second in seconds]
            assert set(begins) <= set(range(asking + idle))
            last = dict.fromkeys(range(asking - FRONT), -1)
            for number, begin in enumerate([*begins, None]):
                for asker in last.keys() & {begin, begin + 1} if begin is not None else last:
                    wait = number - last[asker]
                    assert wait <= within, f"{asker} of {asking}, {idle} more, every {every} s"
                    last[asker] = number


def crowded(lines: int, parameters: Parameters) -> Cluster:
    """So many lines in front want the room of one who is protected; the job `back`, behind them, that of another.

    Each of them needs less of something than those before, so that each is tried.
    """
    cluster = elastic(parameters)
    cluster.node("n1", 4000)
    cluster.node("n2", 1000)
    run(cluster, "spared", spec(4000, expected_seconds=100_000))
    run(cluster, "cheap", spec(1000))
    cluster.advance(99_000)
    for number in range(lines):
        cluster.submit(spec(3000 + number, memory=200 - number, priority=5), f"front{number:03}")
    cluster.submit(spec(1000, priority=4), "back")
    return cluster


def cheap_leaves(slice_steps: int = 0, reservations_max: int = 0) -> Parameters:
    return Parameters(
        slice_steps=slice_steps,
        reservations_max=reservations_max,
        ageing_seconds=0,
        overrun_permille=100_000,
        preemption_cooldown_seconds=0,
    )


@pytest.mark.parametrize("slice_steps", [0, 1])
@pytest.mark.parametrize("every", EVERY_SECONDS)
def test_whoever_is_behind_others_whom_no_plan_helps_is_helped(slice_steps: int, every: int) -> None:
    for lines in range(3 + every % 9, 81, 9):
        cluster = crowded(lines, cheap_leaves(slice_steps, reservations_max=lines % 3))
        for _ in range(passes_for(lines + 1)):
            if left := asked_to_leave(cluster.advance(every)):
                break
            assert cluster.wake_at is not None
            assert cluster.wake_at <= cluster.now + SECOND, "whose plan was not worked out is looked at again"
        assert left == {"cheap": "back"}, f"with {lines} in front"


@pytest.mark.parametrize(("lines", "rests"), [(1, True), (20, True), (PLANS_AT_REST_MAX, True), (80, False)])
def test_a_cluster_in_which_nobody_can_be_helped_comes_to_rest(lines: int, *, rests: bool) -> None:
    """Every plan was worked out then, and no pass is due before something changes, or somebody may leave again."""
    cluster = crowded(lines, cheap_leaves())
    cluster.cancel("back")
    cluster.settle()
    due = cluster.wake_at is not None and cluster.wake_at <= cluster.now + SECOND
    assert due is not rests


def test_who_could_not_be_helped_is_looked_at_again_when_time_alone_opens_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind more lines than one pass works out plans for; each pass is made when the one before asked for it."""
    monkeypatch.setattr(rounds, "PLANS_AT_REST_MAX", 1)
    cluster = elastic(cheap_leaves(reservations_max=1))
    for number in range(3):
        cluster.node(f"n{number}", 4000, memory=64_000)
        run(cluster, f"protected-{number}", spec(4000, expected_seconds=1000))
    cluster.node("used", 1000, memory=2000, gpus=1)
    run(cluster, "victim", spec(1000, gpus=1))
    cluster.node("huge", 1000, memory=200_000)
    run(cluster, "hog", spec(1000, memory=150_000, priority=9))
    cluster.node("closed", 1000, memory=2000, gpus=1)
    cluster.advance(900)
    cluster.submit(spec(1000, memory=150_000, priority=8), "blocked")
    cluster.settle()
    end_ns = cluster.now + 1000 * SECOND
    cluster.ask(e.MaintenancePlanned, name="m", nodes=("closed",), start_ns=cluster.now + 600 * SECOND, end_ns=end_ns)
    for number in range(30):
        cluster.submit(spec(3000 + number, memory=5000 - number, priority=5), f"front{number:02}")
    cluster.submit(spec(1000, gpus=1, gang=2, priority=1), "gang")
    cluster.settle()
    while cluster.wake_at is not None and cluster.wake_at <= end_ns + 300 * SECOND:
        cluster.now = cluster.wake_at
        if left := asked_to_leave(cluster.settle()):
            assert left == {"victim": "gang"}
            return
    pytest.fail(f"nobody looked again: {cluster.wake_at}")


def test_a_pass_that_decides_nothing_else_helps_whoever_it_can_at_once() -> None:
    cluster = crowded(20, cheap_leaves())
    assert asked_to_leave(cluster.settle()) == {"cheap": "back"}, "in whatever second that is"


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


@pytest.mark.parametrize(("idle", "every"), [(200, 5), (1000, 2)])
def test_lines_that_ask_for_no_plan_hardly_delay_those_who_do(idle: int, every: int) -> None:
    cluster = crowded(20, cheap_leaves())
    for number in range(idle):
        cluster.submit(spec(1001 + number % 900, memory=64 + number // 900), f"idle{number:04}")
    for _ in range(passes_for(21)):
        if left := asked_to_leave(cluster.advance(every)):
            break
    assert left == {"cheap": "back"}


def asked_at_each_of(cluster: Cluster, seconds: int, need: int) -> set[tuple[str, tuple[str, ...]]]:
    """Return what is said of a job like `back` to whoever asks in any of these seconds."""
    found: list[DryRun] = [
        dry_run(cluster.state, spec(need, priority=4), cluster.now + second * SECOND) for second in range(seconds)
    ]
    return {(each.verdict, tuple(left.job for left in each.displaces)) for each in found}


def test_what_would_become_of_a_job_is_the_same_in_each_second() -> None:
    cluster = crowded(20, cheap_leaves())
    cluster.cancel("back")
    cluster.settle()
    assert asked_at_each_of(cluster, 30, 1000) == {("displaces", ("cheap",))}


def test_also_where_another_one_in_front_wants_the_room() -> None:
    """Whose turn comes as late, but before that of the job."""
    cluster = crowded(20, cheap_leaves())
    assert asked_at_each_of(cluster, 30, 999) == {("waits", ())}


def test_also_behind_more_than_a_pass_that_is_tried_works_out() -> None:
    cluster = crowded(PLANS_ON_TRIAL_MAX + 5, cheap_leaves())
    cluster.cancel("back")
    cluster.settle()
    assert asked_at_each_of(cluster, 30, 1000) == {("displaces", ("cheap",))}


@pytest.mark.parametrize(
    ("most", "asked"), [(7, [(2, 4), (0, 0)]), (6, [(2, 0), (0, 4)]), (5, [(2, 0), (0, 4)]), (3, [(0, 2), (2, 0)])]
)
def test_a_pass_that_is_too_full_for_a_plan_leaves_all_of_it_to_the_next(
    most: int, asked: list[tuple[int, int]]
) -> None:
    """Only a plan that no pass could hold is split. Told are who is placed and who is asked, by pass."""
    parameters = Parameters(decisions_per_pass_max=most, ageing_seconds=0, preemption_cooldown_seconds=0)
    cluster = elastic(parameters)
    for number in range(4):
        cluster.node(f"n{number}", 1000)
        run(cluster, f"v{number}", spec(1000))
    cluster.node("m", 2000)
    for number in range(2):
        cluster.submit(spec(1000, priority=6), f"first{number}")
    cluster.submit(spec(1000, gang=4, priority=5), "gang")
    seen = []
    for _ in range(2):
        decided = list(decide(cluster.state, cluster.now).events)
        if decided:
            cluster.append("scheduler", cluster.leader, *decided)
        seen.append((len(of(decided, e.JobPlaced)), len(asked_to_leave(decided))))
    assert seen == asked
