"""Borrowers that wait for a phase while another node has what they wait for: who moves, who does not, and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import asked_to_leave, elastic, leave, nodes_of, of
from tests.scheduler.elastic.lent import ask, borrower, go, granted, lending, node, owner, run
from tests.scheduler.elastic.world import answers, told_anew
from tests.support.cluster import SECOND, Cluster, spec

LOW = Resources(100, 100)
AFTER = 120
STAYS = 600


def learner(cpu: int = 3000, *, gpu_millis: int = 0, **more: Any) -> JobSpec:
    return borrower(low=LOW, high=Resources(cpu, 100, gpu_millis=gpu_millis), **more)


def uneven(parameters: Parameters | None = None, *, stays: int = STAYS) -> Cluster:
    """Two nodes for one learner each: on n1 are two, of which one learns, and on n2 there is none any more."""
    cluster = elastic(parameters)
    for name in ("n1", "n2"):
        node(cluster, name)
    for name in ("learns", "ended", "waits"):
        run(cluster, name, learner())
    assert [nodes_of(cluster, name) for name in ("learns", "ended", "waits")] == [["n1"], ["n2"], ["n1"]]
    cluster.save("waits", 1)
    cluster.exit("ended", "completed")
    go(cluster, "learns", "learning")
    cluster.advance(stays)
    return cluster


def test_who_waits_for_long_moves_to_where_it_is_granted_at_once() -> None:
    cluster = uneven()
    assert not granted(ask(cluster, "waits", "learning"))
    assert cluster.wake_at == cluster.now + AFTER * SECOND
    assert not asked_to_leave(cluster.advance(AFTER - 1))
    (asked,) = of(cluster.advance(1), e.PreemptRequested)
    assert (asked.job, asked.for_job, asked.reasons[0].code) == ("waits", "", "Rebalanced")
    assert asked.reasons[0].numbers == {"waited_seconds": AFTER}
    assert "n2 has what that needs" in asked.reasons[0].detail
    leave(cluster, "waits")
    assert nodes_of(cluster, "waits") == ["n2"]
    cluster.start("waits")
    assert granted(ask(cluster, "waits", "learning")) == {"waits": "learning"}
    assert cluster.job("waits").preemptions == 0, "it left for nobody"


def test_who_came_a_moment_ago_stays_for_a_while() -> None:
    cluster = uneven(stays=0)
    ask(cluster, "waits", "learning")
    assert not asked_to_leave(cluster.advance(STAYS - 1))
    assert asked_to_leave(cluster.advance(1)) == {"waits": ""}


def saved_nothing(cluster: Cluster) -> None:
    cluster.job("waits").checkpoints = []
    cluster.state.touch("job/waits")


def another_waits_there(cluster: Cluster) -> None:
    run(cluster, "there", learner(2000))
    run(cluster, "too", learner(3900))
    go(cluster, "there", "learning")
    ask(cluster, "too", "learning")


def something_runs_there(cluster: Cluster) -> None:
    cluster.submit(spec(1500, memory=100), "plain")
    cluster.settle()
    assert nodes_of(cluster, "plain") == ["n2"]


def as_much_is_asked_for_there(cluster: Cluster) -> None:
    for name in ("there", "too"):
        run(cluster, name, learner(3050))
    assert nodes_of(cluster, "there") == nodes_of(cluster, "too") == ["n2"]


def its_queue_is_stopped(cluster: Cluster) -> None:
    cluster.ask(e.QueueChanged, tenant="t", stopped=True)
    cluster.settle()


def the_node_is_drained(cluster: Cluster) -> None:
    cluster.ask(e.NodeDrainRequested, node="n2", deadline_ns=cluster.now + 10**6 * SECOND)
    cluster.settle()


@pytest.mark.parametrize(
    "but",
    [
        saved_nothing,
        another_waits_there,
        something_runs_there,
        as_much_is_asked_for_there,
        its_queue_is_stopped,
        the_node_is_drained,
    ],
)
def test_who_stays(but: Callable[[Cluster], None]) -> None:
    cluster = uneven()
    but(cluster)
    assert not granted(ask(cluster, "waits", "learning"))
    assert "waits" not in asked_to_leave(cluster.advance(10 * AFTER))
    assert cluster.stage("waits") == "running"


def test_nobody_moves_where_the_parameter_says_so() -> None:
    cluster = uneven(Parameters(rebalance_after_seconds=0))
    ask(cluster, "waits", "learning")
    assert not asked_to_leave(cluster.advance(10 * AFTER))


def test_an_owner_waits_for_its_own_where_it_is() -> None:
    cluster = lending(gpus=0)
    run(cluster, "owner", owner(low=LOW, high=Resources(1000, 4000)))
    run(cluster, "taker", borrower(low=LOW, high=Resources(1000, 4000)))
    node(cluster, "n2")
    cluster.save("owner", 1)
    cluster.advance(STAYS)
    go(cluster, "taker", "learning")
    assert not granted(ask(cluster, "owner", "learning"))
    assert asked_to_leave(cluster.advance(AFTER)) == {"taker": "owner"}
    assert cluster.stage("owner") == "running"


def test_one_moves_at_a_time_on_few_nodes() -> None:
    cluster = elastic()
    for name in ("n1", "n2", "n3"):
        node(cluster, name)
    jobs = [f"j{number}" for number in range(9)]
    for name in jobs:
        run(cluster, name, learner())
        cluster.save(name, 1)
    on_n1 = [name for name in jobs if nodes_of(cluster, name) == ["n1"]]
    for name in jobs:
        if name not in on_n1:
            cluster.exit(name, "completed")
    go(cluster, on_n1[0], "learning")
    cluster.advance(STAYS)
    for name in on_n1[1:]:
        ask(cluster, name, "learning")
    assert asked_to_leave(cluster.advance(AFTER)) == {on_n1[1]: ""}
    assert not asked_to_leave(cluster.advance(5)), "the first is on its way"
    assert asked_to_leave(leave(cluster, on_n1[1])) == {on_n1[2]: ""}
    leave(cluster, on_n1[2])
    assert sorted(nodes_of(cluster, name)[0] for name in on_n1) == ["n1", "n2", "n3"]


def test_an_index_that_was_kept_moves_whom_one_that_is_made_anew_does() -> None:
    cluster = uneven()
    ask(cluster, "waits", "learning")
    cluster.now += AFTER * SECOND
    found = answers(cluster.state, cluster.now)
    assert b"Rebalanced" in found[0]
    assert found == answers(told_anew(cluster.frames), cluster.now)
    assert found == answers(told_anew(cluster.frames, turned=True), cluster.now)


def test_nobody_moves_to_where_its_floor_has_no_room() -> None:
    """Simulators need CPU in the default phase, and learning a GPU and hardly any: both must be there."""
    cluster = elastic()
    cluster.node("n1", 8000, memory=5000, gpus=1)
    for name in ("learns", "waits"):
        run(cluster, name, borrower(low=Resources(3000, 100), high=Resources(500, 3000, 1)))
        cluster.save(name, 1)
    cluster.node("n2", 4000, memory=5000, gpus=1)
    run(cluster, "plain", spec(2500, memory=100))
    assert nodes_of(cluster, "plain") == ["n2"]
    go(cluster, "learns", "learning")
    cluster.advance(STAYS)
    assert not granted(ask(cluster, "waits", "learning"))
    assert not asked_to_leave(cluster.advance(STAYS + AFTER))


def test_nobody_moves_for_a_share_of_a_device_that_is_not_there() -> None:
    cluster = elastic()
    for name in ("n1", "n2"):
        cluster.node(name, 4000, memory=8000, gpus=1)
    for name in ("learns", "ended", "waits"):
        run(cluster, name, learner(gpu_millis=800))
    assert [nodes_of(cluster, name) for name in ("learns", "ended", "waits")] == [["n1"], ["n2"], ["n1"]]
    cluster.exit("ended", "completed")
    run(cluster, "plain", spec(100, memory=7850, gpus=1))
    assert nodes_of(cluster, "plain") == ["n2"]
    cluster.save("waits", 1)
    go(cluster, "learns", "learning")
    cluster.advance(STAYS)
    assert not granted(ask(cluster, "waits", "learning"))
    assert not asked_to_leave(cluster.advance(STAYS + AFTER))


def test_nobody_moves_for_room_that_a_job_will_have_which_the_pass_did_not_reach() -> None:
    cluster = uneven(Parameters(decisions_per_pass_max=1))
    ask(cluster, "waits", "learning")
    node(cluster, "n3", cpu=50, memory=100)
    cluster.advance(AFTER - 1)
    cluster.submit(spec(50, memory=50, priority=3), "first")
    cluster.submit(spec(4000, memory=4900, priority=2), "second")
    assert not asked_to_leave(cluster.advance(1))
    assert nodes_of(cluster, "second") == ["n2"]
