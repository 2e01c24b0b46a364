"""The policies to compare with: each does what it is known for, on clusters small enough to see it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.simulator.baselines import (
    best_fit,
    easy,
    fgd,
    fifo,
    srsf,
    srtf,
    static_priority,
    tiresias,
)
from tidegate_scheduler.simulator.choice import BASELINES, TOLD_ESTIMATES, Choice, rules_for
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.run import Run, encode
from tidegate_scheduler.simulator.workload import Arrival, Workload

from tests.scheduler.simulator.small import SECOND, arrival, by_name, ends, node, phased, run, seconds, stays, workload
from tests.support.cluster import spec

COSTS = Costs(start_ms=0, image_pull_seconds=0, checkpoint_seconds=10, restart_seconds=20)
Make = Callable[[Workload], Rules]


def gpus(count: int, **more: object) -> JobSpec:
    return spec(100, memory=64, gpus=count, **{"grace": 30, **more})  # type: ignore[arg-type]


def on_four(make: Make, *arrivals: Arrival) -> Run:
    """Simulate on one node of four GPUs."""
    work = workload([node("n1", gpus=4)], *arrivals)
    return run(work, COSTS, rules=make(work))


def begins(result: Run) -> dict[str, float | None]:
    return {job.job: seconds(job.first_placed_ns) for job in result.jobs}


def test_fifo_lets_everybody_wait_behind_the_first() -> None:
    result = on_four(
        fifo.rules,
        arrival("a", 0, gpus(3), 100),
        arrival("wide", 1, gpus(4), 100),
        arrival("small", 2, gpus(1), 10),
    )
    assert begins(result) == {"a": 0, "wide": 100, "small": 200}


def test_static_priority_asks_the_highest_first_and_nobody_leaves() -> None:
    result = on_four(
        static_priority.rules,
        arrival("a", 0, gpus(4), 100),
        arrival("low", 1, gpus(4), 100),
        arrival("high", 2, gpus(4, priority=5), 100),
    )
    assert begins(result) == {"a": 0, "high": 100, "low": 200}
    assert not any(job.preemptions for job in result.jobs)


def test_the_longer_leaves_for_the_shorter_under_srtf_and_goes_on_from_where_it_was() -> None:
    result = on_four(srtf.rules, arrival("long", 0, gpus(4), 1000), arrival("short", 100, gpus(4), 50))
    assert by_name(result)["long"].preemptions == 1
    assert begins(result)["short"] == 110  # once the other has saved
    assert ends(result) == {"short": 160, "long": 160 + 20 + 900}  # restarted, and the rest


def test_who_has_less_left_is_not_asked_to_leave_for_who_has_more() -> None:
    result = on_four(srtf.rules, arrival("first", 0, gpus(4), 100), arrival("second", 60, gpus(4), 50))
    assert ends(result) == {"first": 100, "second": 150}
    assert not any(job.preemptions for job in result.jobs)


def test_srsf_counts_gpus_where_srtf_counts_time_alone() -> None:
    jobs = (
        arrival("now", 0, gpus(4), 10),
        arrival("wide", 1, gpus(4), 100),
        arrival("slim", 2, gpus(1), 300),
    )
    assert begins(on_four(srtf.rules, *jobs)) == {"now": 0, "wide": 10, "slim": 110}
    assert begins(on_four(srsf.rules, *jobs)) == {"now": 0, "slim": 10, "wide": 310}


def test_the_lowest_leaves_where_several_could() -> None:
    result = on_four(
        srtf.rules,
        arrival("middle", 0, gpus(2), 500),
        arrival("longest", 0, gpus(2), 900),
        arrival("short", 10, gpus(2), 50),
    )
    assert {job.job: job.preemptions for job in result.jobs} == {"middle": 0, "longest": 1, "short": 0}


def test_nobody_leaves_unless_the_gang_then_fits() -> None:
    work = workload(
        [node("n1", gpus=2), node("n2", gpus=2)],
        arrival("a", 0, gpus(2), 1000),
        arrival("shorter", 0, gpus(2), 200),
        arrival("gang", 10, gpus(2, gang=2), 300),
    )
    result = run(work, COSTS, rules=srtf.rules(work))
    assert stays(result, "a")[0][2] == 210  # asked as soon as the other node is free, and not before
    assert begins(result)["gang"] == 210


def test_tiresias_prefers_who_had_little_service_and_runs_the_rest_in_order() -> None:
    """Who had more than the threshold leaves for the newcomer; that one falls in turn, and then the first is first."""
    result = on_four(tiresias.rules, arrival("old", 0, gpus(4), 2000), arrival("new", 1000, gpus(4), 2000))
    assert by_name(result)["old"].preemptions == 1
    first = stays(result, "new")[0]
    served = 3250 // 4 + 1 + 1  # whole seconds, and one until it is seen
    assert first[1] == 1010
    assert first[2] == pytest.approx(1010 + served + 10, abs=2)
    assert ends(result)["old"] < ends(result)["new"]  # type: ignore[operator]


def test_tiresias_leaves_who_is_below_the_threshold_alone() -> None:
    result = on_four(tiresias.rules, arrival("first", 0, gpus(4), 700), arrival("second", 10, gpus(4), 10))
    assert ends(result) == {"first": 700, "second": 710}


def test_easy_fills_in_who_ends_before_the_first_begins() -> None:
    jobs = (
        arrival("runs", 0, gpus(3, expected_seconds=100), 100),
        arrival("wide", 1, gpus(4, expected_seconds=100), 100),
        arrival("too-long", 2, gpus(1, expected_seconds=500), 500),
        arrival("in-time", 3, gpus(1, expected_seconds=50), 50),
    )
    work = workload([node("n1", gpus=4)], *jobs)
    result = run(work, COSTS, rules=rules_for(Choice("easy", estimates=True), work))
    assert begins(result) == {"runs": 0, "in-time": 3, "wide": 100, "too-long": 200}


def test_easy_lets_others_use_what_the_first_leaves_over() -> None:
    jobs = (
        arrival("runs", 0, gpus(3, expected_seconds=100), 100),
        arrival("three", 1, gpus(3, expected_seconds=100), 100),
        arrival("long", 2, gpus(1, expected_seconds=500), 500),
    )
    work = workload([node("n1", gpus=4)], *jobs)
    result = run(work, COSTS, rules=rules_for(Choice("easy", estimates=True), work))
    assert begins(result) == {"runs": 0, "long": 2, "three": 100}


def test_blind_easy_keeps_others_from_the_nodes_of_the_first() -> None:
    work = workload(
        [node("n1", gpus=4), node("n2", gpus=4)],
        arrival("a", 0, gpus(3), 100),
        arrival("b", 0, gpus(2), 300),
        arrival("wide", 1, gpus(4), 100),
        arrival("one", 2, gpus(1), 10),
        arrival("two", 3, gpus(2), 10),
    )
    result = run(work, COSTS, rules=easy.rules(work))
    assert stays(result, "one")[0][0] == "n1"  # the other node is the roomier one, and kept
    assert begins(result)["two"] == begins(result)["wide"] or begins(result)["two"] > 100  # type: ignore[operator]


def test_best_fit_takes_the_node_with_the_least_left_and_lets_others_pass() -> None:
    work = workload(
        [node("large", gpus=4), node("small", gpus=2)],
        arrival("a", 0, gpus(2), 100),
        arrival("whole", 1, gpus(4), 100),
        arrival("wide", 2, gpus(4), 100),
    )
    result = run(work, COSTS, rules=best_fit.rules(work))
    assert stays(result, "a")[0][0] == "small"
    assert begins(result) == {"a": 0, "whole": 1, "wide": 101}


def test_fgd_goes_where_others_lose_least() -> None:
    """Tasks need four CPUs beside a GPU: the node that has too few of them anyway loses nothing by a job of CPUs."""
    work = workload(
        [node("full", 4500, gpus=2), node("poor", 3000, gpus=2)],
        *(arrival(f"later-{number}", 50, spec(4000, memory=64, gpus=1), 10) for number in range(4)),
        arrival("cpus", 0, spec(1000, memory=64), 100),
    )
    result = run(work, COSTS, rules=fgd.rules(work))
    assert stays(result, "cpus")[0][0] == "poor"


def test_the_rarest_tasks_do_not_count_for_fgd() -> None:
    common = [arrival(f"c-{number}", 0, gpus(1), 10) for number in range(39)]
    work = workload([node("n1")], *common, arrival("rare", 0, gpus(4), 10))
    assert fgd.typical(work) == (fgd.Task(100, 1, 0, 39),)


@st.composite
def any_job(draw: st.DrawFn, number: int) -> Arrival:
    gang = draw(st.sampled_from([1, 1, 1, 2]))
    share = draw(st.booleans()) and gang == 1
    job = spec(
        draw(st.integers(1, 3)) * 1000,
        gpus=0 if share else draw(st.integers(0, 2)),
        gpu_millis=draw(st.integers(1, 9)) * 100 if share else 0,
        gang=gang,
        priority=draw(st.integers(0, 2)),
        expected_seconds=draw(st.integers(1, 300)),
    )
    return arrival(f"j{number}", draw(st.integers(0, 200)), job, draw(st.integers(1, 300)))


@pytest.mark.parametrize("name", BASELINES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_comes_all_of_it_runs_to_its_end_and_the_same_again(name: str, data: st.DataObject) -> None:
    jobs = [data.draw(any_job(number)) for number in range(data.draw(st.integers(1, 12)))]
    work = workload([node("n1", gpus=4), node("n2", gpus=2), node("n3", 4000, gpus=0)], *jobs)
    told = [None, True, False] if name in TOLD_ESTIMATES else [None]
    choice = Choice(name, estimates=data.draw(st.sampled_from(told)))
    result = run(work, COSTS, rules=rules_for(choice, work))
    assert {job.outcome for job in result.jobs} == {"completed"}
    assert encode(result) == encode(run(work, COSTS, rules=rules_for(choice, work)))


@pytest.mark.parametrize("name", BASELINES)
def test_who_asks_for_phases_holds_its_peak_for_life(name: str) -> None:
    """No baseline grants a phase. Two fit beside each other by their floors, and by their peaks one does."""
    phases = {"default": Resources(500, 512), "learning": Resources(500, 512, 1)}
    job = phased(phases, entry="asked", borrows=True)
    does = [("default", 10), ("learning", 20)]
    work = workload([node("n1", gpus=1)], arrival("a", 0, job, does), arrival("b", 0, job, does))
    result = run(work, rules=rules_for(Choice(name), work))
    assert ends(result) == {"a": 31, "b": 62}
    assert {each.kind for each in result.decided} == {"JobPlaced", "JobStarted", "JobCompleted"}
    assert max(sample.gpus_held_millis for sample in result.samples if seconds(sample.at_ns) == 0) == 1000


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("large", [gpus(8, gang=2), spec(9000), spec(image="other")])
def test_nobody_waits_for_ever_behind_a_job_that_no_empty_cluster_could_hold(name: str, large: JobSpec) -> None:
    work = workload([node("n1"), node("n2")], arrival("large", 0, large, 30), arrival("b", 1, gpus(4), 30))
    found = by_name(run(work, COSTS, rules=rules_for(Choice(name), work)))
    assert (found["large"].outcome, found["large"].reasons[0].code) == ("rejected", "Inadmissible")
    assert seconds(found["large"].ended_ns) == 60
    assert (found["b"].outcome, seconds(found["b"].ended_ns)) == ("completed", 31)


@pytest.mark.parametrize("name", BASELINES)
def test_who_is_too_large_waits_for_a_node_that_is_on_its_way(name: str) -> None:
    later = msgspec.structs.replace(node("n2", 9000), at_ns=50 * SECOND)
    work = workload([node("n1")], arrival("large", 0, spec(9000), 30), facts=(later,))
    assert ends(run(work, COSTS, rules=rules_for(Choice(name), work))) == {"large": 80}


@pytest.mark.parametrize("name", BASELINES)
def test_an_image_that_a_node_can_fetch_is_fetched_for_who_is_placed(name: str) -> None:
    costs = msgspec.structs.replace(COSTS, image_pull_seconds=40)
    work = workload([node("n1"), node("n2", gpus=5, fetches_images=True)], arrival("a", 0, gpus(1, image="other"), 30))
    result = run(work, costs, rules=rules_for(Choice(name), work))
    assert stays(result, "a") == [("n2", 0, 70, "completed")]
