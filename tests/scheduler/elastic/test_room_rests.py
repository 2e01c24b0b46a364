"""Room that is kept comes to rest: it moves only to where a start comes sooner, and nobody loses it for nothing."""

from __future__ import annotations

import pytest
from tidegate_events import events as e
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import all_events, elastic, leave, of, run
from tests.support.cluster import SECOND, Cluster, spec


def two_that_leave() -> Cluster:
    """A gang waits for room on two nodes, and another job has it on one of them that two are leaving, one later."""
    cluster = elastic()
    cluster.node("n1", 5500)
    cluster.node("n2", 2000)
    run(cluster, "ends", spec(500, gang=3, priority=2, time_limit_seconds=50))
    run(cluster, "soon", spec(2500, grace=10, time_limit_seconds=100))
    run(cluster, "late", spec(3000, grace=200, time_limit_seconds=600))
    cluster.submit(spec(2000, gang=2), "gang")
    cluster.settle()
    cluster.submit(spec(3500, priority=1), "first")
    cluster.settle()
    return cluster


def test_kept_room_does_not_move_to_where_the_start_comes_later() -> None:
    cluster = two_that_leave()
    assert {cluster.stage(job) for job in ("soon", "late")} == {"preempting"}
    assert cluster.settle() == []
    assert len(of(all_events(cluster), e.RoomReserved)) <= 4
    assert sorted(cluster.job("gang").reserved_nodes) == ["n1", "n2"]


def test_starts_that_are_told_are_not_before_those_have_left_who_are_asked_to_and_come_true() -> None:
    cluster = two_that_leave()
    told = {job: cluster.job(job).reserved_start_ns - cluster.now for job in ("first", "gang")}
    assert told == {"first": 200 * SECOND, "gang": 100 * SECOND}
    leave(cluster, "soon")
    cluster.advance(51)
    cluster.exit("ends", "stopped")
    assert [cluster.stage(job) for job in ("first", "gang")] == ["pending", "placed"]
    leave(cluster, "late")
    assert cluster.stage("first") == "placed"


def test_room_of_those_who_should_have_left_is_kept_from_now_and_not_from_then() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    cluster.submit(spec(2000, time_limit_seconds=50), "overdue")
    cluster.settle()
    cluster.advance(111)
    cluster.submit(spec(500), "waits")
    (kept,) = of(cluster.settle(), e.RoomReserved)
    assert kept.start_by_ns == cluster.now
    assert cluster.wake_at is not None
    assert cluster.wake_at > cluster.now


def kept_behind(fronts: int) -> Cluster:
    """Two have room kept on a node, the higher one from no known time; so many wait in front of them, and others
    behind, all in vain.
    """
    cluster = elastic(Parameters(reservations_max=fronts + 2, ageing_seconds=0, overrun_permille=100_000))
    cluster.node("n1", 40_000)
    cluster.node("n2", 6000, gpus=1)
    run(cluster, "spared", spec(40_000, expected_seconds=10_000))
    cluster.advance(8000)
    run(cluster, "device", spec(1000, gpus=1, priority=9, grace=900))
    run(cluster, "ends", spec(3000, priority=1, time_limit_seconds=7200))
    run(cluster, "stays", spec(2000, priority=9))
    cluster.submit(spec(1000, gpus=1, priority=2), "high")
    cluster.submit(spec(2000), "low")
    cluster.settle()
    for number in range(fronts):
        cluster.submit(spec(30_000 + number, priority=5), f"front{number}")
    for number in range(6):
        cluster.submit(spec(3000 + number), f"behind{number}")
    cluster.settle()
    return cluster


@pytest.mark.parametrize("fronts", [2, 3, 4])
def test_nobody_loses_kept_room_because_others_had_their_turn(fronts: int) -> None:
    cluster = kept_behind(fronts)
    cluster.cancel("device")
    decided = [event for _ in range(20) for event in cluster.advance(1)]
    assert [event for event in of(decided, e.RoomReserved) if event.job == "low"] == []
    assert cluster.job("low").reserved_nodes == cluster.job("high").reserved_nodes == ("n2",)
