"""Who leaves for a job of its own priority: who has more work left, and nobody else; and that it comes to rest."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.policy.elastic import work
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.simulator.choice import Choice, rules_for
from tidegate_scheduler.simulator.costs import Costs

from tests.scheduler.elastic.lab import HOUR, asked_to_leave, elastic, leave, of, run
from tests.scheduler.simulator.small import arrival, node, workload
from tests.scheduler.simulator.small import run as simulated
from tests.support.cluster import SECOND, Cluster, spec

SLICES = Parameters(slice_steps=2, ageing_seconds=0)
MINUTE = 60


def busy(parameters: Parameters = SLICES, **about: object) -> Cluster:
    """Return a cluster whose only node is held by the job `long`."""
    cluster = elastic(parameters)
    cluster.node("n1", 4000, gpus=4)
    run(cluster, "long", spec(4000, gpus=4, **about))  # type: ignore[arg-type]
    return cluster


def test_nobody_leaves_within_a_priority_unless_an_operator_wants_that() -> None:
    cluster = busy(Parameters(), expected_seconds=10 * HOUR)
    cluster.submit(spec(1000, gpus=1, expected_seconds=MINUTE), "short")
    assert asked_to_leave(cluster.settle()) == {}


def test_who_expects_to_take_longer_leaves_and_does_not_push_back() -> None:
    cluster = busy(expected_seconds=10 * HOUR)
    cluster.advance(MINUTE)
    cluster.submit(spec(4000, gpus=4, expected_seconds=HOUR), "short")
    decided = cluster.settle()
    assert asked_to_leave(decided) == {"long": "short"}
    asked = of(decided, e.PreemptRequested)[0]
    assert asked.reasons[0].code == "MoreWorkLeft"
    assert asked.reasons[0].numbers["steps"] - asked.reasons[0].numbers["for_steps"] >= 2
    assert cluster.job("short").reserved_nodes == ("n1",), "what it leaves is kept for whom it left for"
    leave(cluster, "long")
    cluster.start("short")
    assert cluster.stage("short") == "running"
    assert asked_to_leave(cluster.advance(HOUR // 2)) == {}


def test_who_has_only_little_more_left_stays() -> None:
    cluster = busy(expected_seconds=2 * HOUR)
    cluster.advance(MINUTE)
    cluster.submit(spec(4000, gpus=4, expected_seconds=HOUR), "shorter")
    assert asked_to_leave(cluster.settle()) == {}


def test_without_estimates_who_had_most_leaves_and_a_pass_is_due_when_it_has() -> None:
    cluster = busy()
    cluster.submit(spec(4000, gpus=4), "new")
    assert asked_to_leave(cluster.settle()) == {}, "it has had nothing yet"
    assert cluster.wake_at is not None
    while not asked_to_leave(decided := cluster.advance((cluster.wake_at - cluster.now) / SECOND)):
        assert cluster.wake_at is not None
    assert asked_to_leave(decided) == {"long": "new"}


def test_two_that_say_nothing_take_turns_that_double() -> None:
    """Each comes to its end, and was asked to leave no more often than its work can double."""
    spec_of = spec(100, memory=64, gpus=4, grace=30)
    jobs = workload([node("n1", gpus=4)], arrival("a", 0, spec_of, 20 * HOUR), arrival("b", 60, spec_of, 20 * HOUR))
    choice = Choice("elastic", {"slice_steps": 1, "ageing_seconds": 0, "preemptions_max": 1000})
    result = simulated(jobs, Costs(), rules=rules_for(choice, jobs))
    assert {job.outcome for job in result.jobs} == {"completed"}
    assert 4 <= sum(job.preemptions for job in result.jobs) <= 2 * (20 * 60 * 4).bit_length()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_comes_evictions_are_used_within_the_budget_and_all_jobs_end(data: st.DataObject) -> None:
    jobs = [
        arrival(
            f"j{number}",
            data.draw(st.integers(0, 2000)),
            spec(
                100,
                memory=64,
                gpus=data.draw(st.integers(1, 4)),
                gang=data.draw(st.sampled_from([1, 1, 2])),
                tenant=data.draw(st.sampled_from("xy")),
                priority=data.draw(st.sampled_from([0, 0, 1])),
                expected_seconds=data.draw(st.sampled_from([None, 60, 600, 6000])),
            ),
            data.draw(st.integers(1, 6000)),
        )
        for number in range(data.draw(st.integers(2, 12)))
    ]
    work_of = workload([node("n1", gpus=4), node("n2", gpus=4)], *jobs)
    parameters = {"slice_steps": data.draw(st.integers(1, 3)), "preemptions_max": data.draw(st.integers(0, 4))}
    parameters["ageing_seconds"] = data.draw(st.sampled_from([0, 1800]))
    choice = Choice("elastic", parameters, estimates=data.draw(st.booleans()))
    result = simulated(work_of, Costs(), rules=rules_for(choice, work_of))
    assert {job.outcome for job in result.jobs} == {"completed"}
    assert max(job.preemptions for job in result.jobs) <= 2 * parameters["preemptions_max"]


@pytest.mark.parametrize(
    ("ran_seconds", "leaves"),
    [(int(10 * HOUR * 0.79), True), (int(10 * HOUR * 0.81), False)],
)
def test_who_is_close_to_its_end_is_protected_here_too(ran_seconds: int, leaves: bool) -> None:
    cluster = busy(expected_seconds=10 * HOUR)
    cluster.advance(ran_seconds)
    cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), "short")
    assert bool(asked_to_leave(cluster.settle())) is leaves


def test_the_budget_of_preemptions_holds_here_too() -> None:
    cluster = busy(Parameters(slice_steps=2, ageing_seconds=0, preemptions_max=0), expected_seconds=10 * HOUR)
    cluster.advance(MINUTE)
    cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), "short")
    assert asked_to_leave(cluster.settle()) == {}


def sliced(times: int, parameters: Parameters) -> Cluster:
    """The job `long` has left so many times for others with less work left, and runs again."""
    cluster = busy(parameters, expected_seconds=1000 * HOUR)
    for number in range(times):
        cluster.advance(MINUTE)
        cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), f"short{number}")
        assert asked_to_leave(cluster.settle()) == {"long": f"short{number}"}
        leave(cluster, "long")
        cluster.start(f"short{number}")
        cluster.exit(f"short{number}", "completed")
        cluster.start("long")
    assert (cluster.job("long").preemptions, cluster.job("long").slices) == (times, times)
    return cluster


def test_who_left_for_its_own_priority_is_protected_from_that_and_from_no_higher_one() -> None:
    cluster = sliced(2, Parameters(slice_steps=2, ageing_seconds=0, preemptions_max=2))
    cluster.advance(HOUR)
    cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), "short")
    assert asked_to_leave(cluster.settle()) == {}, "it left often enough for those"
    cluster.submit(spec(4000, gpus=4, priority=1), "urgent")
    assert asked_to_leave(cluster.settle()) == {"long": "urgent"}


def test_who_left_for_higher_priorities_as_often_as_it_may_leaves_for_nobody() -> None:
    cluster = sliced(1, Parameters(slice_steps=2, ageing_seconds=0, preemptions_max=2))
    for number in range(2):
        cluster.advance(HOUR)
        cluster.submit(spec(4000, gpus=4, priority=1), f"urgent{number}")
        assert asked_to_leave(cluster.settle()) == {"long": f"urgent{number}"}
        leave(cluster, "long")
        cluster.start(f"urgent{number}")
        cluster.exit(f"urgent{number}", "completed")
        cluster.start("long")
    assert (cluster.job("long").preemptions, cluster.job("long").slices) == (3, 1)
    cluster.advance(HOUR)
    cluster.submit(spec(4000, gpus=4, priority=1), "urgent")
    cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), "short")
    assert asked_to_leave(cluster.settle()) == {}


def test_who_left_for_its_own_priority_rests_from_higher_ones_too() -> None:
    cluster = sliced(1, SLICES)
    cluster.submit(spec(4000, gpus=4, priority=1), "urgent")
    assert asked_to_leave(cluster.settle()) == {}
    assert asked_to_leave(cluster.advance(SLICES.preemption_cooldown_seconds)) == {"long": "urgent"}


def test_nobody_leaves_who_began_a_moment_ago() -> None:
    cluster = busy(expected_seconds=10 * HOUR)
    cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), "short")
    assert asked_to_leave(cluster.settle()) == {}
    assert cluster.wake_at == cluster.now + 60 * SECOND
    assert asked_to_leave(cluster.advance(60)) == {"long": "short"}


def test_who_waited_until_it_had_aged_stays() -> None:
    cluster = elastic(Parameters(slice_steps=2, ageing_seconds=HOUR))
    cluster.node("n1", 4000, gpus=4)
    run(cluster, "first", spec(4000, gpus=4, priority=1))
    cluster.submit(spec(4000, gpus=4, expected_seconds=10 * HOUR), "long")
    cluster.advance(2 * HOUR)
    cluster.exit("first", "completed")
    cluster.start("long")
    cluster.advance(2 * MINUTE)
    cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), "short")
    assert asked_to_leave(cluster.settle()) == {}


def test_a_lower_priority_slices_nobody() -> None:
    cluster = busy(priority=1, expected_seconds=10 * HOUR)
    cluster.advance(MINUTE)
    cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), "short")
    assert asked_to_leave(cluster.settle()) == {}


def test_of_another_tenant_only_who_has_more_of_its_share_leaves() -> None:
    cluster = elastic(SLICES)
    cluster.node("n1", 8000, gpus=8)
    run(cluster, "much", spec(5000, gpus=5, tenant="a", expected_seconds=10 * HOUR))
    run(cluster, "little", spec(3000, gpus=3, tenant="b", expected_seconds=20 * HOUR))
    cluster.advance(2 * MINUTE)
    cluster.submit(spec(3000, gpus=3, tenant="b", expected_seconds=MINUTE), "b-short")
    assert asked_to_leave(cluster.settle()) == {"little": "b-short"}, "it is its own, and has most left"
    other = elastic(SLICES)
    other.node("n1", 8000, gpus=8)
    run(other, "much", spec(5000, gpus=5, tenant="a", expected_seconds=10 * HOUR))
    run(other, "little", spec(3000, gpus=3, tenant="b", expected_seconds=MINUTE))
    other.advance(2 * MINUTE)
    other.submit(spec(3000, gpus=3, tenant="a", expected_seconds=20 * HOUR), "a-long")
    assert asked_to_leave(other.settle()) == {}
    other.submit(spec(5000, gpus=5, tenant="b", expected_seconds=MINUTE), "b-short")
    assert asked_to_leave(other.settle()) == {"much": "b-short"}


def test_of_another_tenant_nobody_leaves_that_has_less_of_its_share_however_much_work_it_has_left() -> None:
    cluster = elastic(SLICES)
    cluster.node("n1", 8000, gpus=8)
    run(cluster, "much", spec(5000, gpus=5, tenant="a", expected_seconds=3 * MINUTE))
    run(cluster, "little", spec(3000, gpus=3, tenant="b", expected_seconds=100 * HOUR))
    cluster.advance(2 * MINUTE)
    cluster.submit(spec(3000, gpus=3, tenant="a", expected_seconds=MINUTE), "a-short")
    assert asked_to_leave(cluster.settle()) == {}
    cluster.submit(spec(3000, gpus=3, tenant="b", expected_seconds=MINUTE), "b-short")
    assert asked_to_leave(cluster.settle()) == {"little": "b-short"}, "for its own tenant's it leaves"


@pytest.mark.parametrize(
    ("tenant", "guaranteed", "leaves"),
    [("a", 2000, set()), ("a", 0, {"one", "two"}), ("b", 2000, {"one", "two"})],
)
def test_what_several_of_a_tenant_leave_together_is_not_its_own_unless_it_is_for_that_tenant(
    tenant: str, guaranteed: int, leaves: set[str]
) -> None:
    """Each of them alone leaves its tenant what it was guaranteed."""
    cluster = elastic(SLICES)
    cluster.node("n1", 4000)
    cluster.ask(e.QueueChanged, tenant="b", guaranteed=Resources(guaranteed) if guaranteed else None)
    for name in ("one", "two"):
        run(cluster, name, spec(2000, tenant="b", expected_seconds=100 * HOUR))
    cluster.advance(2 * MINUTE)
    cluster.submit(spec(4000, tenant=tenant, expected_seconds=MINUTE), "short")
    assert set(asked_to_leave(cluster.settle())) == leaves


def test_room_from_a_time_that_was_told_is_sliced_by_nobody() -> None:
    cluster = busy(expected_seconds=10 * HOUR, time_limit_seconds=20 * HOUR)
    cluster.submit(spec(4000, gpus=4, expected_seconds=9 * HOUR), "waits")
    cluster.advance(2 * MINUTE)
    assert cluster.job("waits").reserved_start_ns
    cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), "short")
    assert asked_to_leave(cluster.settle()) == {}


def test_room_of_a_higher_priority_is_sliced_by_nobody_that_has_aged_beyond_it() -> None:
    cluster = elastic(Parameters(slice_steps=2, ageing_seconds=HOUR))
    cluster.node("n1", 4000)
    run(cluster, "higher", spec(2000, priority=1, expected_seconds=1000 * HOUR))
    run(cluster, "lower", spec(2000, expected_seconds=1000 * HOUR))
    cluster.submit(spec(2000, expected_seconds=MINUTE), "aged")
    cluster.ask(e.HoldRequested, "aged")
    cluster.advance(3 * HOUR)
    cluster.submit(spec(4000, priority=1, expected_seconds=1000 * HOUR), "all of it")
    assert asked_to_leave(cluster.settle()) == {}
    assert cluster.job("all of it").reserved_nodes == ("n1",)
    cluster.ask(e.ReleaseRequested, "aged")
    assert asked_to_leave(cluster.settle()) == {}
    cluster.cancel("all of it")
    assert asked_to_leave(cluster.settle()) == {"lower": "aged"}, "but for that room"


def test_what_was_tried_in_vain_says_nothing_of_who_has_less_work_left() -> None:
    """One that has aged is asked first, and has too much work left itself for anybody to leave."""
    cluster = busy(Parameters(slice_steps=2, ageing_seconds=HOUR, reservations_max=0), expected_seconds=1000 * HOUR)
    cluster.submit(spec(4000, gpus=4, expected_seconds=1000 * HOUR), "aged")
    assert asked_to_leave(cluster.advance(2 * HOUR)) == {}
    cluster.submit(spec(4000, gpus=4, expected_seconds=MINUTE), "short")
    assert asked_to_leave(cluster.settle()) == {"long": "short"}


# ---- what work is ----


def test_steps_double_and_begin_where_they_say() -> None:
    steps = [work.steps_of(units * work.UNIT_MILLIS) for units in range(5000)]
    assert steps == sorted(steps)
    for each in sorted(set(steps)):
        assert work.service_of(each) == steps.index(each) * work.UNIT_MILLIS
    doubled = [work.steps_of((1 << exponent) * work.UNIT_MILLIS) for exponent in range(4, 30)]
    assert {later - earlier for earlier, later in pairwise(doubled)} == {1}


def test_more_devices_are_more_work() -> None:
    cluster = elastic()
    cluster.submit(spec(1000, expected_seconds=HOUR), "job")
    job = cluster.job("job")
    one, eight = spec(1000, gpus=1, expected_seconds=HOUR), spec(1000, gpus=4, gang=2, expected_seconds=HOUR)
    more = work.steps_left(job, eight, Resources(1000, gpus=4), 0) - work.steps_left(job, one, Resources(gpus=1), 0)
    assert more == 3
    assert work.size_millis(one, Resources(1000)) == work.WHOLE_MILLIS
    assert work.size_millis(one, Resources(1000, gpu_millis=250)) == 250


def test_who_overran_what_it_expected_is_judged_by_what_it_had() -> None:
    cluster = elastic()
    cluster.submit(spec(1000, expected_seconds=100), "job")
    job, said = cluster.job("job"), spec(1000, expected_seconds=100)
    assert work.seconds_left(job, said, 60 * SECOND) == 40
    assert work.seconds_left(job, said, 125 * SECOND) == 0
    assert work.seconds_left(job, said, 126 * SECOND) == 126


@pytest.mark.parametrize(("progress_millis", "left"), [(0, 80), (100, 80), (500, 50), (590, 41), (700, 40), (1000, 40)])
def test_progress_shortens_what_is_left_by_half_at_most_and_never_makes_it_longer(
    progress_millis: int, left: int
) -> None:
    cluster = elastic()
    said = spec(1000, expected_seconds=100)
    cluster.submit(said, "job")
    job = cluster.job("job")
    job.progress_millis = progress_millis
    assert work.seconds_left(job, said, 20 * SECOND) == left
    assert work.seconds_left(job, said, 130 * SECOND) == 130, "of who overran it says nothing"
