"""A simulation that begins with a state in the middle of things goes on with what is there, and leaves it as it was."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.decide import decide_by
from tidegate_scheduler.simulator.choice import BASELINES, Choice, rules_for
from tidegate_scheduler.simulator.costs import Costs
from tidegate_scheduler.simulator.errors import SimulationError
from tidegate_scheduler.simulator.held_for_life import ask_nothing
from tidegate_scheduler.simulator.run import Run
from tidegate_scheduler.simulator.workload import Arrival, Workload
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot
from tidegate_scheduler.state import State

from tests.scheduler.simulator.small import SECOND, arrival, by_name, ends, node, phased, run, stays, workload
from tests.support.cluster import spec


def midway(work: Workload, when: Callable[[State], bool]) -> tuple[Run, State]:
    """Return the whole run, and a copy of its state at the end of the first pass for which that is so."""
    found: list[State] = []

    def see(state: State) -> None:
        if not found and when(state):
            found.append(decode_snapshot(encode_snapshot(state)))

    result = run(work, see=see)
    return result, found[0]


def at(second: int) -> Callable[[State], bool]:
    return lambda state: state.header.now_ns >= second * SECOND


LATER = arrival("c", 60, spec(gpus=2), 20)


def test_what_runs_and_what_waits_goes_on_as_it_would_have() -> None:
    nodes = [node("n1")]
    first, second = arrival("a", 0, spec(gpus=4), 100), arrival("b", 50, spec(gpus=4), 30)
    # at 50 s the arrival of b brings about no decision, so the last pass is that of the start of a, at 1 s
    whole, state = midway(workload(nodes, first, second, LATER), at(1))
    assert {job.id: job.stage for job in state.jobs.values()} == {"a": "running"}
    digest = state.digest()
    rest = Workload("rest", (), (arrival("a", 0, spec(gpus=4), 100), second, LATER))
    result = run(rest, begin=state)
    assert ends(result) == ends(whole)
    assert result.begin_ns == 1 * SECOND
    assert stays(result, "a") == [("n1", 1, 101, "completed")]
    assert state.digest() == digest


def test_who_saves_and_leaves_just_then_does() -> None:
    low = arrival("low", 0, spec(gpus=4, grace=30), 100)
    high = arrival("high", 50, spec(gpus=4, priority=1), 30)
    whole, state = midway(
        workload([node("n1")], low, high), lambda now: "high" in now.jobs and now.jobs["low"].stage == "preempting"
    )
    rest = Workload("rest", (), (arrival("low", 0, spec(gpus=4, grace=30), 51), high))
    result = run(rest, begin=state)
    # of its work until then nothing is known here, so there is nothing to save: it leaves at once
    assert stays(result, "low")[0] == ("n1", 50, 50, "suspended")
    assert ends(result) == {"low": 50 + 31 + 1 + 51, "high": 50 + 31}
    assert ends(whole) == {"low": 163, "high": 91}


def test_who_is_in_a_phase_or_waits_for_one_goes_on_with_it() -> None:
    job = phased({"default": Resources(1000, 512), "learning": Resources(1000, 512, 1)}, entry="asked", borrows=True)
    one, two = arrival("a", 0, job, [("learning", 30)]), arrival("b", 5, job, [("learning", 20)])
    whole, state = midway(
        workload([node("n1", gpus=1)], one, two),
        lambda now: "b" in now.jobs and any(member.wanted for member in now.jobs["b"].members),
    )
    members = {name: found.members[0] for name, found in state.jobs.items()}
    assert (members["a"].phase, members["b"].wanted) == ("learning", "learning")
    done = (state.header.now_ns - 1 * SECOND - SECOND // 2) // SECOND  # a started at 1 s, and was in its phase at 1.5 s
    rest = Workload("rest", (), (arrival("a", 0, job, [("learning", 30 - done)]), two))
    result = run(rest, begin=state)
    assert by_name(result)["a"].outcome == by_name(result)["b"].outcome == "completed"
    ended, before = ends(result), ends(whole)
    for name in ("a", "b"):
        assert abs((ended[name] or 0) - (before[name] or 0)) <= 1.0


def test_a_node_that_was_away_and_never_comes_back_takes_its_jobs_with_it() -> None:
    away = e.NodeUnreachable(id="u", at_ns=20 * SECOND, node="n1", incarnation=1)
    back = e.NodeReachable(id="r", at_ns=45 * SECOND, node="n1", incarnation=1)
    only = arrival("a", 0, spec(gpus=1), 100)
    late = arrival("b", 25, spec(gpus=1), 10)
    work = workload([node("n1"), node("n2")], only, late, facts=(away, back))
    whole, state = midway(work, lambda now: "b" in now.jobs and bool(now.jobs["b"].members))
    assert ends(whole)["a"] == 101
    assert state.nodes["n1"].status == "unreachable"
    done = (arrival("a", 0, spec(gpus=1), 76), late)
    assert ends(run(Workload("rest", (), done, (back,)), begin=state))["a"] == 25 + 76
    lost = run(Workload("rest", (), done), begin=state)
    assert [stay[0] for stay in stays(lost, "a")] == ["n1", "n2"]


def test_sandboxes_that_were_given_up_end() -> None:
    away = e.NodeUnreachable(id="u", at_ns=10 * SECOND, node="n1", incarnation=1)
    back = e.NodeReachable(id="r", at_ns=90 * SECOND, node="n1", incarnation=1)
    work = workload(
        [node("n1"), node("n2")],
        arrival("a", 0, spec(gpus=1), 60),
        arrival("b", 80, spec(gpus=8, gang=2), 1),
        facts=(away, back),
    )
    seen: list[int] = []
    run(work, see=lambda state: seen.append(len(state.nodes["n1"].zombies)))
    assert max(seen) == 1
    assert seen[-1] == 0


def test_a_job_of_which_nothing_is_known_is_refused() -> None:
    first = arrival("a", 0, spec(gpus=4), 100)
    _, state = midway(workload([node("n1")], first), at(1))
    with pytest.raises(SimulationError, match="nothing is known: a; the workload needs an arrival"):
        run(Workload("rest", (), ()), begin=state)
    with pytest.raises(SimulationError, match="node n1 is there already"):
        run(Workload("rest", (node("n1"),), (first,)), begin=state)


@pytest.mark.parametrize(
    ("arrivals", "why"),
    [((LATER, LATER), "c arrives more than once"), ((arrival("a", 0, spec(), []),), "a does nothing")],
)
def test_arrivals_that_make_no_sense_are_refused(arrivals: tuple[Arrival, ...], why: str) -> None:
    with pytest.raises(SimulationError, match=why):
        run(Workload("wrong", (node("n1"),), arrivals))


def _asking(*, borrows: bool) -> JobSpec:
    phases = {"default": Resources(1000, 512), "learning": Resources(1000, 512, 2), "sampling": Resources(4000, 512)}
    return phased(phases, entry="asked", borrows=borrows)


def test_who_borrowed_leaves_when_rules_come_that_grant_no_phases() -> None:
    """Two borrow in turn on a node that holds one of them for life: neither works on what the other one has."""
    job = _asking(borrows=True)
    truths = {"a": [("learning", 60), ("sampling", 30)], "b": [("sampling", 60), ("learning", 30)]}
    arrivals = [arrival(name, 0, job, does) for name, does in truths.items()]
    small = node("n1", 5200, gpus=2)
    _, state = midway(workload([small], *arrivals), lambda now: len(now.jobs) == 2 and now.header.now_ns >= 10 * SECOND)
    assert all(found.stage == "running" for found in state.jobs.values())
    costs = Costs(start_ms=0)
    for name in BASELINES:
        rest = Workload("rest", (small,), tuple(arrivals))
        rules = rules_for(Choice(name), rest)
        result = run(msgspec.structs.replace(rest, nodes=()), costs, rules=rules, begin=state)
        assert {found.outcome for found in result.jobs} == {"completed"}, name
        assert all(stays(result, each)[0][3] == "suspended" for each in truths), "both have saved and left"
        assert result.samples[-1].cpu_held_millis == 0
        assert max(sample.placed for sample in result.samples if sample.at_ns > state.header.now_ns + 11 * SECOND) == 1
        for sample in result.samples:
            assert sample.gpus_busy_millis <= sample.gpus_held_millis <= sample.gpus_total_millis
            assert sample.cpu_held_millis <= 5200


def test_who_is_guaranteed_its_peak_stays_where_it_is_and_holds_it() -> None:
    job = _asking(borrows=False)
    only = arrival("a", 0, job, [("sampling", 100), ("learning", 30)])
    _, state = midway(workload([node("n1")], only), at(2))
    left = Workload("rest", (), (arrival("a", 0, job, [("sampling", 50), ("learning", 30)]),))
    result = run(left, rules=rules_for(Choice("fifo"), left), begin=state)
    assert [(each.gpus, each.cpu_millis, each.ended) for each in result.stays] == [(2, 4000, "completed")]
    assert not any(found.preemptions or found.lost_ms for found in result.jobs)


def test_a_state_of_borrowers_is_not_taken_for_nodes_that_shrank() -> None:
    """So it is shown to rules that grant no phases, for the first decision that differs."""
    job = _asking(borrows=True)
    arrivals = [arrival(name, 0, job, [("learning", 60)]) for name in ("a", "b")]
    work = workload([node("n1", 5200, gpus=2)], *arrivals)
    _, state = midway(work, lambda now: [found.stage for found in now.jobs.values()] == ["running"] * 2)
    for name in state.specs:
        ask_nothing(state, name)
    for name in BASELINES:
        found = decide_by(rules_for(Choice(name), work).fill, state, state.header.now_ns)
        assert not any(isinstance(event, e.PreemptRequested) for event in found.events)
