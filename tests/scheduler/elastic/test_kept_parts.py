"""Room that is kept on devices which others hold in parts: nobody who comes meanwhile takes it."""

from __future__ import annotations

import pytest
from tidegate_events.resources import Resources

from tests.scheduler.elastic.lab import asked_to_leave, elastic, leave, run
from tests.scheduler.elastic.lent import borrower, go, recalled
from tests.scheduler.elastic.lent import run as run_lent
from tests.support.cluster import SECOND, Cluster, spec


@pytest.mark.parametrize("wants", [{"gpus": 1}, {"gpu_millis": 900}])
def test_a_part_is_not_given_to_who_stays_until_after_the_start_that_was_told(wants: dict[str, int]) -> None:
    cluster = elastic()
    cluster.node("n1", 1000, gpus=1)
    run(cluster, "runs", spec(100, gpu_millis=300, time_limit_seconds=400))
    cluster.submit(spec(100, **wants), "waits")  # type: ignore[arg-type]
    cluster.settle()
    start_ns = cluster.job("waits").reserved_start_ns
    assert start_ns == cluster.now + 400 * SECOND
    for number in range(3):
        cluster.submit(spec(100, gpu_millis=300, time_limit_seconds=400), f"after{number}")
        cluster.advance(100)
        assert cluster.stage(f"after{number}") == "pending"
    cluster.advance(100)
    cluster.exit("runs", "stopped")
    assert cluster.stage("waits") == "placed"
    assert cluster.job("waits").placed_ns == start_ns


def test_who_ends_before_that_has_it_meanwhile() -> None:
    cluster = elastic()
    cluster.node("n1", 1000, gpus=1)
    run(cluster, "runs", spec(100, gpu_millis=300, time_limit_seconds=4000))
    cluster.submit(spec(100, gpus=1), "waits")
    cluster.settle()
    run(cluster, "short", spec(100, gpu_millis=300, time_limit_seconds=400))
    assert cluster.job("short").backfills == ("waits",)


def test_the_part_that_others_left_for_a_job_is_its_own() -> None:
    cluster = elastic()
    cluster.node("n1", 8000, gpus=1)
    run(cluster, "stays", spec(100, gpu_millis=300, priority=9))
    run(cluster, "leaves", spec(100, gpu_millis=400))
    cluster.submit(spec(100, gpu_millis=500, priority=5), "waits")
    assert asked_to_leave(cluster.settle()) == {"leaves": "waits"}
    cluster.submit(spec(100, gpu_millis=300), "after")
    assert asked_to_leave(cluster.settle()) == {}
    leave(cluster, "leaves")
    assert {name: cluster.stage(name) for name in ("waits", "leaves", "after")} == {
        "waits": "placed",
        "leaves": "suspended",
        "after": "pending",
    }


def test_a_gang_has_parts_of_several_devices_of_one_node() -> None:
    cluster = elastic()
    cluster.node("n1", 8000, gpus=2)
    for name in ("a", "b"):
        run(cluster, name, spec(100, gpu_millis=700))
    cluster.submit(spec(100, gpu_millis=300, gang=2), "gang")
    cluster.settle()
    assert sorted(member.gpu_indices for member in cluster.members("gang")) == [(0,), (1,)]


def test_a_gang_of_parts_has_room_kept_from_when_all_of_them_are_free() -> None:
    cluster = elastic()
    cluster.node("n1", 8000, gpus=2)
    for name, limit in (("a", 1000), ("b", 2000)):
        run(cluster, name, spec(100, gpu_millis=600, time_limit_seconds=limit))
    cluster.submit(spec(100, gpu_millis=700, gang=2), "gang")
    cluster.settle()
    assert cluster.job("gang").reserved_start_ns == cluster.now + 2000 * SECOND


@pytest.mark.parametrize("hopeless", [4, 8, 12])
def test_who_hands_back_for_a_job_behind_hopeless_ones_is_told_once(hopeless: int) -> None:
    """Each of them might have room, by all that would be given back, and has none."""
    cluster = a_borrower_behind(hopeless)
    told = list[str]()
    for _ in range(60):
        told += recalled(cluster.advance(1))
        if cluster.stage("last") == "placed":
            break
        if cluster.stage("memory") == "preempting":
            leave(cluster, "memory")
    assert cluster.stage("last") == "placed"
    assert told.count("memory") <= 1


def a_borrower_behind(hopeless: int) -> Cluster:
    cluster = elastic()
    for number in range(hopeless):
        cluster.node(f"n{number:02}", 8000, gpus=1)
        run(cluster, f"part{number:02}", spec(100, gpu_millis=300, priority=9))
        low, high = Resources(100, 500, gpu_millis=100), Resources(100, 500, gpu_millis=500)
        run_lent(cluster, f"b{number:02}", borrower(low, high))
        go(cluster, f"b{number:02}", "learning")
    cluster.node("x", 4000, memory=5000)
    run_lent(cluster, "memory", borrower(Resources(100, 500), Resources(100, 4000)))
    go(cluster, "memory", "learning")
    for number in range(hopeless):
        cluster.submit(spec(100 + number, memory=600 - number, gpu_millis=900, priority=1), f"hopeless{number:02}")
    cluster.submit(spec(200, memory=3000), "last")
    return cluster
