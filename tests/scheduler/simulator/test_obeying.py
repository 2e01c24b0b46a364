"""What every policy to compare with obeys as the service's own does: operators, nodes, queues, how close gangs are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.simulator.choice import BASELINES, Choice, QueueChoice, rules_for
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.engine import simulate
from tidegate_scheduler.simulator.run import Run
from tidegate_scheduler.simulator.workload import Arrival

from tests.scheduler.simulator.small import SECOND, arrival, by_name, node, run, seconds, stays, workload
from tests.support.cluster import spec

COSTS = Costs(start_ms=0, image_pull_seconds=0, checkpoint_seconds=10, restart_seconds=20)

pytestmark = pytest.mark.parametrize("name", BASELINES)


def gpus(count: int, **more: Any) -> JobSpec:
    return spec(100, memory=64, gpus=count, **{"grace": 30, **more})


def said(kind: type[e.Event], at: int, job: str = "", **more: Any) -> e.AnyEvent:
    about = {"tenant": "t", "job": job} if job else {}
    return kind(id=f"{kind.__name__}-{at}", at_ns=at * SECOND, actor="ada", **about, **more)  # type: ignore[return-value]


def under(name: str, nodes: list[e.NodeJoined], *arrivals: Arrival, facts: tuple[e.AnyEvent, ...] = ()) -> Run:
    work = workload(nodes, *arrivals, facts=facts)
    return run(work, COSTS, rules=rules_for(Choice(name), work))


def begins(result: Run, job: str) -> float | None:
    return seconds(by_name(result)[job].first_placed_ns)


def test_who_is_suspended_leaves_and_is_held_until_it_is_resumed(name: str) -> None:
    facts = (said(e.SuspendRequested, 20, "a"), said(e.ResumeRequested, 100, "a"))
    result = under(name, [node("n1")], arrival("a", 0, gpus(4), 60), facts=facts)
    assert stays(result, "a") == [("n1", 0, 30, "suspended"), ("n1", 100, 160, "completed")]


def test_who_is_requeued_leaves_and_is_placed_again(name: str) -> None:
    facts = (said(e.RequeueRequested, 20, "a"),)
    result = under(name, [node("n1")], arrival("a", 0, gpus(4), 60), facts=facts)
    assert [stay[3] for stay in stays(result, "a")] == ["suspended", "completed"]


def test_a_node_that_is_drained_is_left_in_time(name: str) -> None:
    facts = (said(e.NodeDrainRequested, 20, node="n1", deadline_ns=60 * SECOND),)
    result = under(name, [node("n1"), node("n2")], arrival("a", 0, gpus(4), 100), facts=facts)
    assert [(stay[0], stay[3]) for stay in stays(result, "a")] == [("n1", "suspended"), ("n2", "completed")]
    assert stays(result, "a")[0][2] == 30


def test_nobody_is_on_a_node_in_its_maintenance(name: str) -> None:
    window = said(e.MaintenancePlanned, 1, name="m", nodes=("n1",), start_ns=100 * SECOND, end_ns=300 * SECOND)
    arrivals = (arrival("a", 0, gpus(4), 150), arrival("late", 90, gpus(4), 20))
    result = under(name, [node("n1")], *arrivals, facts=(window,))
    assert stays(result, "a")[0][:3] == ("n1", 0, 80)  # its grace ends as the window begins
    assert all(begin >= 300 for job in ("a", "late") for _, begin, *_ in stays(result, job)[job == "a" :])  # type: ignore[operator]
    assert {job.outcome for job in result.jobs} == {"completed"}


def test_who_has_certainly_ended_before_the_maintenance_is_placed(name: str) -> None:
    window = said(e.MaintenancePlanned, 1, name="m", nodes=("n1",), start_ns=100 * SECOND, end_ns=300 * SECOND)
    arrivals = (
        arrival("long", 5, gpus(4, time_limit_seconds=200), 20),
        arrival("short", 6, gpus(4, time_limit_seconds=50), 20),
    )
    result = under(name, [node("n1")], *arrivals, facts=(window,))
    first = begins(result, "short")
    assert first == (6 if name not in ("fifo", "static_priority", "easy") else first)
    assert begins(result, "long") is not None
    assert (begins(result, "long") or 0) >= 300


def test_a_node_that_came_back_smaller_is_relieved_of_who_came_last(name: str) -> None:
    big = node("n1", 8000)
    small = msgspec.structs.replace(big, id="again", at_ns=20 * SECOND, incarnation=2, capacity=Resources(8000, 100))
    jobs = (arrival("a", 0, gpus(1), 60), arrival("b", 1, gpus(1), 60))
    work = workload([big], *jobs, facts=(small,))
    result = simulate(work, rules_for(Choice(name), work), COSTS)
    assert [stay[3] for stay in stays(result, "a")] == ["completed"]
    assert [stay[3] for stay in stays(result, "b")] == ["suspended", "completed"]


def test_a_stopped_queue_waits_and_others_do_not(name: str) -> None:
    facts = (said(e.QueueChanged, 0, tenant="t", stopped=True), said(e.QueueChanged, 50, tenant="t"))
    arrivals = (arrival("a", 1, gpus(1), 10), arrival("b", 2, gpus(1, tenant="lab"), 10))
    result = under(name, [node("n1")], *arrivals, facts=facts)
    assert (begins(result, "a"), begins(result, "b")) == (50, 2)


def test_no_tenant_holds_more_than_its_ceiling(name: str) -> None:
    facts = (said(e.QueueChanged, 0, tenant="t", ceiling=Resources(gpus=2)),)
    jobs = [arrival(f"a{number}", 1, gpus(1), 10) for number in range(4)]
    result = under(name, [node("n1")], *jobs, arrival("other", 2, gpus(1, tenant="lab"), 10), facts=facts)
    assert [begins(result, f"a{number}") for number in range(4)] == [1, 1, 11, 11]
    assert begins(result, "other") == 2


def close(gang: int, **more: Any) -> JobSpec:
    return msgspec.structs.replace(gpus(2, gang=gang), communication="intensive", **more)


def racks() -> list[e.NodeJoined]:
    where = (("n1", "s1", "r1"), ("n2", "s2", "r1"), ("n3", "s3", "r2"), ("n4", "s3", "r2"))
    return [node(name, switch=switch, rack=rack) for name, switch, rack in where]


def test_an_intensive_gang_is_below_one_switch(name: str) -> None:
    result = under(name, racks(), arrival("g", 0, close(4), 30))
    assert {stay[0] for stay in stays(result, "g")} == {"n3", "n4"}


def test_one_that_may_be_in_a_rack_goes_there_if_no_switch_has_room(name: str) -> None:
    jobs = (
        arrival("x", 0, spec(8000, memory=64, gpus=1, gang=1, gpu_models=("X",)), 100),
        arrival("g", 1, close(4, widest_domain="rack"), 30),
    )
    nodes = racks()
    odd = tuple(msgspec.structs.replace(gpu, model="X") for gpu in nodes[3].gpus)
    nodes[3] = msgspec.structs.replace(nodes[3], gpus=odd)
    result = under(name, nodes, *jobs)
    assert {stay[0] for stay in stays(result, "g")} == {"n1", "n2"}


def test_an_intensive_gang_that_no_domain_could_hold_is_refused(name: str) -> None:
    result = under(name, racks(), arrival("g", 0, close(5), 30), arrival("b", 1, gpus(4), 30))
    found = by_name(result)
    assert (found["g"].outcome, found["b"].outcome) == ("rejected", "completed")
    assert found["g"].reasons[0].detail == "its members have to be closer together than nodes are"
    assert found["g"].reasons[0].numbers == {"members_needed": 5, "members_most_together": 4}


def test_an_intensive_gang_waits_for_one_switch_though_there_is_room_elsewhere(name: str) -> None:
    nodes = racks()
    jobs = (arrival("x", 0, gpus(4, gpu_models=("X",)), 100), arrival("g", 1, close(4), 30))
    odd = tuple(msgspec.structs.replace(gpu, model="X") for gpu in nodes[3].gpus)
    nodes[3] = msgspec.structs.replace(nodes[3], gpus=odd)
    result = under(name, nodes, *jobs)
    assert {stay[0] for stay in stays(result, "g") if stay[3] == "completed"} == {"n3", "n4"}


def test_a_strict_gang_is_on_one_cpu_model(name: str) -> None:
    nodes = [node("n1", cpu_model="A"), node("n2", cpu_model="B"), node("n3", cpu_model="A")]
    strict = msgspec.structs.replace(gpus(4, gang=2), determinism="strict")
    result = under(name, nodes, arrival("g", 0, strict, 30))
    assert {stay[0] for stay in stays(result, "g")} == {"n1", "n3"}


@st.composite
def any_facts(draw: st.DrawFn, jobs: int) -> tuple[e.AnyEvent, ...]:
    """Return what operators might do in the first minutes; what they close they open again."""
    found: list[e.AnyEvent] = []
    for number in range(draw(st.integers(0, 6))):
        at, kind = draw(st.integers(0, 300)), draw(st.integers(0, 5))
        job, where = f"j{draw(st.integers(0, jobs - 1))}", f"n{draw(st.integers(1, 3))}"
        until = at + draw(st.integers(1, 200))
        if kind == 0:
            found += [said(e.SuspendRequested, at, job), said(e.ResumeRequested, until, job)]
        elif kind == 1:
            found.append(said(e.RequeueRequested, at, job))
        elif kind == 2:
            drain = said(e.NodeDrainRequested, at, node=where, deadline_ns=until * SECOND)
            found += [drain, said(e.NodeResumeRequested, until, node=where)]
        elif kind == 3:
            begin, end = (at + 20) * SECOND, (until + 20) * SECOND
            found.append(said(e.MaintenancePlanned, at, name=f"m{number}", nodes=(where,), start_ns=begin, end_ns=end))
        elif kind == 4:
            found += [said(e.QueueChanged, at, tenant="t", stopped=True), said(e.QueueChanged, until, tenant="t")]
        else:
            ceiling = Resources(gpus=draw(st.integers(8, 12)))
            found.append(said(e.QueueChanged, at, tenant="t", ceiling=ceiling))
    return tuple(found)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_operators_do_everybody_ends_and_nothing_runs_in_a_maintenance(name: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 8))
    arrivals = []
    for number in range(count):
        size = gpus(data.draw(st.integers(1, 2)), gang=data.draw(st.integers(1, 3)))
        size = msgspec.structs.replace(size, communication=data.draw(st.sampled_from(["loose", "intensive"])))
        arrivals.append(arrival(f"j{number}", data.draw(st.integers(0, 200)), size, data.draw(st.integers(1, 200))))
    nodes = [node(f"n{number}", switch="s1" if number < 3 else "s2", rack="r") for number in (1, 2, 3)]
    facts = data.draw(any_facts(count))
    result = under(name, nodes, *arrivals, facts=facts)
    assert {job.outcome for job in result.jobs} == {"completed"}
    for window in facts:
        if isinstance(window, e.MaintenancePlanned):
            for stay in result.stays:
                began_before = stay.from_ns < window.start_ns
                if stay.node in window.nodes and not (began_before and window.at_ns > window.start_ns - 30 * SECOND):
                    assert stay.until_ns <= window.start_ns or stay.from_ns >= window.end_ns


def test_a_ceiling_may_be_set_for_any_rules(name: str) -> None:
    work = workload([node("n1")], arrival("a", 0, gpus(2), 10), arrival("b", 0, gpus(2), 10))
    rules = rules_for(Choice(name, queues=(QueueChoice("t", ceiling=Resources(gpus=3)),)), work)
    result = run(work, COSTS, rules=rules)
    assert (begins(result, "a"), begins(result, "b")) == (0, 10)
