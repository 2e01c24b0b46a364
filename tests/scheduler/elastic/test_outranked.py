"""Who is above others has the room that is kept for them, whoever makes it: what is told, and who is spared."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.resources import Resources

from tests.scheduler.elastic.lab import asked_to_leave, elastic, leave, of, run
from tests.scheduler.elastic.lent import borrower, go, lending, recalled
from tests.scheduler.elastic.lent import run as run_borrower
from tests.support.cluster import SECOND, Cluster, spec


def being_left() -> Cluster:
    """Somebody leaves its node for `low`, and has a minute for that."""
    cluster = elastic()
    cluster.node("n1", 4000)
    run(cluster, "victim", spec(4000, grace=60))
    cluster.advance(100)
    cluster.submit(spec(4000, priority=1), "low")
    assert asked_to_leave(cluster.settle()) == {"victim": "low"}
    return cluster


def test_room_that_is_being_left_is_told_to_who_outranks_when_it_comes_and_the_lower_one_loses_its_start() -> None:
    cluster = being_left()
    cluster.submit(spec(4000, priority=2), "high")
    cluster.settle()
    starts = [(job, cluster.job(job).reserved_nodes, cluster.job(job).reserved_start_ns) for job in ("high", "low")]
    assert starts == [("high", ("n1",), cluster.now + 60 * SECOND), ("low", ("n1",), 0)]


def test_who_loses_kept_room_to_a_higher_one_that_is_placed_there_is_told_so() -> None:
    cluster = being_left()
    cluster.submit(spec(4000, priority=2), "high")
    cluster.settle()
    decided = leave(cluster, "victim")
    assert [event.job for event in of(decided, e.JobPlaced)] == ["high"]
    released = [event for event in of(decided, e.RoomReserved) if not event.nodes]
    told = [(event.job, event.reasons[0].code, event.reasons[0].detail) for event in released]
    assert told == [("low", "Released", "high has it, and is in front of it")]


def test_what_is_handed_back_for_a_lower_one_is_for_who_outranks_it_and_nobody_leaves() -> None:
    cluster = lending(cpu=4000, memory=9000, gpus=2)
    run_borrower(cluster, "borrower", borrower(low=Resources(500, 500), high=Resources(3900, 4000, 2)))
    cluster.advance(100)
    go(cluster, "borrower", "learning")
    cluster.submit(spec(3000, priority=1), "low")
    assert recalled(cluster.settle()) == {"borrower": "low"}
    told_ns = cluster.job("low").reserved_start_ns
    cluster.submit(spec(3000, priority=2), "high")
    assert asked_to_leave(cluster.settle()) == {}
    assert told_ns
    assert cluster.job("high").reserved_start_ns == told_ns
