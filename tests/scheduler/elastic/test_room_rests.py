"""Room that is kept comes to rest: it moves only to where a start comes sooner, and nobody loses it for nothing."""

from __future__ import annotations

from tidegate_events import events as e

from tests.scheduler.elastic.lab import all_events, elastic, of, run
from tests.support.cluster import SECOND, Cluster, spec


def two_that_leave() -> Cluster:
    """A gang waits for room on two nodes, and another job has it on one of them that two are leaving, one later."""
    cluster = elastic()
    cluster.node("n1", 4000)
    cluster.node("n2", 2000)
    run(cluster, "ends", spec(500, gang=3, priority=2, time_limit_seconds=50))
    run(cluster, "soon", spec(2500, grace=10, time_limit_seconds=300))
    run(cluster, "late", spec(1000, grace=200, time_limit_seconds=600))
    cluster.submit(spec(2000, gang=2), "gang")
    cluster.settle()
    cluster.submit(spec(2000, priority=1), "first")
    cluster.settle()
    return cluster


def test_kept_room_does_not_move_to_where_the_start_comes_later() -> None:
    cluster = two_that_leave()
    assert {cluster.stage(job) for job in ("soon", "late")} == {"preempting"}
    assert cluster.settle() == []
    assert len(of(all_events(cluster), e.RoomReserved)) <= 4
    assert sorted(cluster.job("gang").reserved_nodes) == ["n1", "n2"]


def test_a_start_that_is_told_is_not_before_those_have_left_who_are_asked_to() -> None:
    cluster = two_that_leave()
    told = {job: cluster.job(job).reserved_start_ns - cluster.now for job in ("first", "gang")}
    assert told == {"first": 200 * SECOND, "gang": 200 * SECOND}


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
