"""What is so of those who might leave is kept from pass to pass: it is what a look at each of them would find."""

from __future__ import annotations

import pytest
from tidegate_events import events as e
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.judgements import Judgements
from tidegate_scheduler.policy.elastic.sparing import BUDGET, COOLDOWN, PROTECTED, judge
from tidegate_scheduler.policy.parameters import Parameters, as_parameters

from tests.scheduler.elastic.lab import asked_to_leave, calls, elastic, leave, looked_up, run
from tests.scheduler.elastic.test_walks import Walk
from tests.support.cluster import SECOND, Cluster, spec

NODES, PRIORITIES = 10, 20


def full(on_each: int, waiting: int, priorities: int = PRIORITIES) -> Cluster:
    """Nodes full of small jobs of many priorities, all protected, and larger ones that wait, each at its own."""
    cluster = elastic(Parameters(overrun_permille=100_000, ageing_seconds=0, reservations_max=0))
    for number in range(NODES):
        cluster.node(f"n{number}", 12_800, memory=1 << 20)
    for number in range(NODES * on_each):
        job = spec(12_800 // on_each, memory=64, expected_seconds=100_000, priority=number % priorities)
        cluster.submit(job, f"j{number:04}")
    cluster.settle()
    for number in range(NODES * on_each):
        cluster.start(f"j{number:04}")
    cluster.advance(99_000)
    for number in range(waiting):
        cluster.submit(spec(11_000 + number, memory=500 - number, priority=30 + number), f"large{number:03}")
    cluster.settle()
    return cluster


def made(cluster: Cluster) -> int:
    return looked_up(cluster).judgements.made


# ---- what it costs, counted, which no neighbour disturbs ----


@pytest.mark.parametrize("waiting", [2, 40])
def test_nobody_is_judged_again_while_nothing_changes(waiting: int) -> None:
    cluster = full(8, waiting)
    decide(cluster.state, cluster.now)
    before = made(cluster)
    assert before >= NODES * 8, "each was, once"
    calls(cluster, 10)
    assert made(cluster) == before


def test_who_changed_is_judged_again_and_nobody_else() -> None:
    cluster = full(8, 40)
    before = made(cluster)
    cluster.exit("j0000", "completed")
    run(cluster, "new", spec(1600, memory=64, priority=99))
    calls(cluster, 3)
    assert before < made(cluster) <= before + 3, "once for each of its changes"


@pytest.mark.parametrize("waiting", [8, 40])
def test_what_a_pass_costs_does_not_grow_with_how_many_protected_jobs_there_are_nor_their_priorities(
    waiting: int,
) -> None:
    few, many, alike = (
        calls(full(*each), 6) for each in ((4, waiting, 1), (64, waiting, PRIORITIES), (64, waiting, 1))
    )
    assert many < few * 11 // 10, f"{few} calls where 4 are on each node, {many} where 64 are"
    assert many < alike * 11 // 10, f"{alike} calls where all are of one priority, {many} where they are of many"


# ---- what is kept is what is so ----


@pytest.mark.parametrize("seed", range(12))
def test_judgements_that_are_kept_are_those_made_anew(seed: int) -> None:
    walk, compared = Walk(seed), 0
    for _ in range(60):
        walk.step()
        cluster = walk.cluster
        for later_ns in (0, 7 * SECOND, 0, -SECOND):
            compared += _compare(cluster, cluster.now + later_ns)
    assert compared > 100, "or hardly anybody ran"


def _compare(cluster: Cluster, now_ns: int) -> int:
    """Compare what the index keeps with what is found of all who run; return how many there are."""
    index, parameters = looked_up(cluster), as_parameters(cluster.state.header.parameters)
    anew = Judgements(cluster.state)
    for row, names in index.on_row.items():
        kept = index.judgements.on_row(row, names, now_ns, parameters)
        found = anew.on_row(row, names, now_ns, parameters)
        assert [job.id for job in kept.jobs] == [job.id for job in found.jobs]
        assert (kept.standings, kept.soonest_ns, kept.able) == (found.standings, found.soonest_ns, found.able)
        for job in kept.jobs:
            known, now = index.judgements.of(job, now_ns, parameters), judge(cluster.state, job, now_ns, parameters)
            assert (known.standing, known.why, known.spared_until_ns) == (now.standing, now.why, now.spared_until_ns)
    return sum(len(names) for names in index.on_row.values())


def test_other_parameters_judge_anew() -> None:
    cluster = full(4, 1)
    assert asked_to_leave(cluster.settle()) == {}
    values = {"protection_permille": 0, "ageing_seconds": 0, "preemption_cooldown_seconds": 0}
    changed = e.PolicyChanged(id="other", at_ns=cluster.now, policy=2, parameters=values)
    cluster.append("scheduler", cluster.leader, changed)
    assert asked_to_leave(cluster.settle()), "nobody is protected any more"


def test_a_judgement_stands_until_time_alone_makes_another() -> None:
    cluster, parameters = elastic(), Parameters()
    cluster.node("n", 1000)
    run(cluster, "job", spec(1000, expected_seconds=1000))
    began_ns, job = cluster.now, cluster.job("job")
    since_ns = began_ns
    for why, until_ns in (
        ("", began_ns + 800 * SECOND),
        (PROTECTED, began_ns + 1250 * SECOND + 1),
        ("", NEVER),
    ):
        last_ns = min(until_ns, since_ns + 10_000 * SECOND) - 1
        for now_ns in (since_ns, last_ns):
            found = judge(cluster.state, job, now_ns, parameters)
            assert (found.why, found.until_ns) == (why, until_ns)
            assert found.spared_until_ns == (until_ns if why else NEVER)
        since_ns = until_ns


def test_who_was_preempted_is_spared_for_a_while_and_at_last_for_good() -> None:
    parameters = Parameters(preemption_cooldown_seconds=60, preemptions_max=2, ageing_seconds=0)
    cluster = elastic(parameters)
    cluster.node("n", 1000)
    run(cluster, "low", spec(1000))
    for turn in range(2):
        high = f"high{turn}"
        cluster.submit(spec(1000, priority=5), high)
        assert asked_to_leave(cluster.settle()) == {"low": high}
        leave(cluster, "low")
        cluster.start(high)
        cluster.exit(high, "completed")
        cluster.start("low")
        found = judge(cluster.state, cluster.job("low"), cluster.now, parameters)
        if turn == 0:
            until_ns = cluster.job("low").started_ns + 60 * SECOND
            assert (found.why, found.spared_until_ns, found.until_ns) == (COOLDOWN, until_ns, until_ns)
            cluster.advance(61)
        else:
            assert (found.why, found.spared_until_ns, found.until_ns) == (BUDGET, NEVER, NEVER)
