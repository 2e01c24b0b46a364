"""Gangs for which others hand back what they have beyond their floors, beside room that is free."""

from __future__ import annotations

import pytest
from tidegate_events import events as e

from tests.scheduler.elastic.lab import asked_to_leave, calls, leave, nodes_of
from tests.scheduler.elastic.lab import run as run_plain
from tests.scheduler.elastic.lent import GRACE, HAND_BACK, borrower, go, hand_back, lending, node, recalled, run
from tests.support.cluster import SECOND, Cluster, spec


def borrowing(*names: str) -> Cluster:
    """Borrowers that learn with what nobody held, each on a node of its own, which is not to be left for anybody."""
    cluster = lending()
    for number, name in enumerate(names, 1):
        if number > 1:
            node(cluster, f"n{number}")
        run(cluster, name, borrower())
        go(cluster, name, "learning")
        cluster.save(name, 1)
        assert nodes_of(cluster, name) == [f"n{number}"]
    cluster.advance(100)
    return cluster


@pytest.mark.parametrize("priority", [0, 5])
def test_a_gang_has_one_member_on_a_free_node_and_one_where_a_borrower_hands_back(priority: int) -> None:
    cluster = borrowing("borrower")
    node(cluster, "n0", memory=3000, gpus=0)
    cluster.submit(spec(500, memory=3000, gang=2, priority=priority), "gang")
    decided = cluster.settle()
    assert (recalled(decided), asked_to_leave(decided)) == ({"borrower": "gang"}, {})
    assert sorted(cluster.job("gang").reserved_nodes) == ["n0", "n1"]
    assert cluster.job("gang").reserved_start_ns == cluster.now + (HAND_BACK + GRACE) * SECOND
    assert not asked_to_leave(cluster.advance(5)), "it waits for what was recalled"
    hand_back(cluster)
    assert (cluster.stage("gang"), cluster.stage("borrower")) == ("placed", "running")


def test_no_more_hand_back_for_a_gang_than_it_needs_beside_what_is_free() -> None:
    cluster = borrowing("first", "second", "third")
    node(cluster, "n0", cpu=8000, memory=9000, gpus=0)
    cluster.submit(spec(500, memory=3000, gang=4), "gang")
    assert len(recalled(cluster.settle())) == 1, "three of its members fit on the free node"
    assert sorted(cluster.job("gang").reserved_nodes)[:3] == ["n0"] * 3


def test_nobody_hands_back_for_a_gang_that_would_not_fit_all_the_same() -> None:
    cluster = borrowing("borrower")
    node(cluster, "n0", memory=3000, gpus=0)
    cluster.submit(spec(500, memory=3000, gang=3), "gang")
    assert not recalled(cluster.settle())


def test_nobody_hands_back_for_a_gang_below_another_switch() -> None:
    cluster = lending()
    run(cluster, "borrower", borrower())
    go(cluster, "borrower", "learning")
    cluster.node("n0", 4000, memory=3000, switch="s1")
    cluster.node("n2", 4000, memory=3000, switch="s2")
    run_plain(cluster, "runs", spec(500, memory=3000))
    cluster.submit(spec(500, memory=3000, gang=2, communication="intensive"), "gang")
    assert not recalled(cluster.settle())


def test_a_gang_has_members_on_a_free_node_one_that_is_left_and_one_where_a_borrower_hands_back() -> None:
    cluster = borrowing("borrower")
    node(cluster, "n0", memory=3000, gpus=0)
    node(cluster, "n2", memory=3000, gpus=0)
    for name in ("n0", "n2"):
        run_plain(cluster, f"on-{name}", spec(500, memory=3000, grace=300))
    (left,) = [name for name in ("on-n0", "on-n2") if nodes_of(cluster, name) == ["n2"]]
    (ended,) = {"on-n0", "on-n2"} - {left}
    cluster.ask(e.SuspendRequested, left)
    cluster.settle()
    cluster.exit(ended, "completed")
    cluster.submit(spec(500, memory=3000, gang=3), "gang")
    decided = cluster.settle()
    assert (recalled(decided), asked_to_leave(decided)) == ({"borrower": "gang"}, {})
    assert sorted(cluster.job("gang").reserved_nodes) == ["n0", "n1", "n2"]
    assert cluster.job("gang").reserved_start_ns == cluster.job(left).deadline_ns
    hand_back(cluster)
    leave(cluster, left)
    assert cluster.stage("gang") == "placed"


def test_those_who_wait_for_what_was_recalled_cost_no_more_the_more_borrowers_there_are() -> None:
    def wait(count: int) -> int:
        cluster = borrowing(*(f"b{number:02}" for number in range(count)))
        for number in range(6):
            cluster.submit(spec(400 + number, memory=3500 - number), f"waits{number}")
        assert len(recalled(cluster.settle())) == 6
        return calls(cluster, 4)

    few, many = wait(8), wait(32)
    assert 2 * many < 3 * few, f"{few} calls with 8 borrowers, {many} with 32"
