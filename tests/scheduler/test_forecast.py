"""Forecasts of starts: honest about what they rest on, and silent where nothing is known."""

from __future__ import annotations

import pytest
from tidegate_scheduler.explain import explain, queue

from tests.support.cluster import SECOND, Cluster, spec


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.node("n1", cpu=1000)
    return made


def starts(cluster: Cluster) -> dict[str, tuple[float | None, str | None]]:
    """Return (seconds from now, basis) for each job in line."""
    answer = queue(cluster.state, cluster.waiting, cluster.now)
    return {
        one.job: (
            None if one.starts_at_ns is None else (one.starts_at_ns - cluster.now) / SECOND,
            one.starts_basis,
        )
        for one in answer.queue
    }


def run(cluster: Cluster, job: str, **declared: int) -> None:
    cluster.submit(spec(**declared), job)
    cluster.settle()
    cluster.start(job)


def test_a_job_in_front_that_declared_nothing_makes_the_start_unknown(cluster: Cluster) -> None:
    run(cluster, "a")
    cluster.submit(spec(), "b")
    cluster.advance(1)
    assert starts(cluster) == {"b": (None, None)}


def test_the_expected_end_of_the_job_in_front_is_the_start(cluster: Cluster) -> None:
    run(cluster, "a", expected_seconds=60)
    cluster.submit(spec(expected_seconds=30), "b")
    cluster.submit(spec(), "c")
    cluster.submit(spec(), "d")
    cluster.advance(10)
    assert starts(cluster) == {"b": (50.0, "expected"), "c": (80.0, "expected"), "d": (None, None)}


def test_a_job_that_takes_longer_than_it_expected_is_bounded_by_its_limit(cluster: Cluster) -> None:
    run(cluster, "a", expected_seconds=5, time_limit_seconds=100)
    cluster.submit(spec(), "b")
    cluster.advance(10)
    assert starts(cluster) == {"b": (90.0, "limit")}


def test_a_job_that_is_overdue_without_a_limit_says_nothing(cluster: Cluster) -> None:
    run(cluster, "a", expected_seconds=5)
    cluster.submit(spec(), "b")
    cluster.advance(10)
    assert starts(cluster) == {"b": (None, None)}


def test_room_that_is_being_made_is_there_at_the_deadline(cluster: Cluster) -> None:
    run(cluster, "low", grace=20)
    cluster.submit(spec(priority=50), "high")
    cluster.settle()
    cluster.now += 5 * SECOND
    assert starts(cluster) == {"high": (15.0, "deadline")}


def test_a_pause_after_a_failure_is_waited_out(cluster: Cluster) -> None:
    run(cluster, "a", attempts=3)
    cluster.exit("a", "failed", exit_code=1)
    cluster.settle()
    assert starts(cluster) == {"a": (1.0, "backoff")}


def test_nobody_passes_a_blocked_job_on_the_nodes_that_it_waits_for(cluster: Cluster) -> None:
    run(cluster, "a", cpu=600, expected_seconds=60)
    cluster.submit(spec(1000, expected_seconds=10), "wide")
    cluster.submit(spec(100), "small")
    cluster.settle()
    assert starts(cluster) == {"wide": (60.0, "expected"), "small": (70.0, "expected")}


def test_a_node_that_the_blocked_job_cannot_use_stays_open(cluster: Cluster) -> None:
    run(cluster, "a")
    cluster.submit(spec(1000), "b")
    cluster.submit(spec(gpus=4), "gpu")
    cluster.submit(spec(1000), "c")
    cluster.settle()
    cluster.node("n2", cpu=500)
    cluster.submit(spec(500), "small")
    assert starts(cluster) == {"b": (None, None), "gpu": (None, None), "c": (None, None), "small": (0.0, "now")}


def test_explain_gives_the_same_start_as_the_queue(cluster: Cluster) -> None:
    run(cluster, "a", expected_seconds=60)
    cluster.submit(spec(expected_seconds=30), "b")
    cluster.submit(spec(), "c")
    cluster.advance(1)
    line = queue(cluster.state, cluster.waiting, cluster.now)
    assert line.total == 2
    for one in line.queue:
        assert explain(cluster.state, cluster.waiting, one.job, cluster.now) == one


def test_a_gang_starts_when_all_its_members_fit(cluster: Cluster) -> None:
    cluster.node("n2", cpu=1000)
    run(cluster, "a", expected_seconds=60)
    run(cluster, "b", expected_seconds=90)
    cluster.submit(spec(1000, gang=2), "gang")
    cluster.settle()
    assert starts(cluster) == {"gang": (90.0, "expected")}


def test_a_forecast_changes_nothing(cluster: Cluster) -> None:
    run(cluster, "a", expected_seconds=60)
    cluster.submit(spec(), "b")
    cluster.advance(1)
    before = cluster.state.digest()
    starts(cluster)
    assert cluster.state.digest() == before
    assert cluster.settle() == []


@pytest.mark.parametrize("count", [3, 60])
def test_a_long_line_is_bounded(cluster: Cluster, count: int) -> None:
    run(cluster, "a", expected_seconds=60)
    for number in range(count):
        cluster.submit(spec(expected_seconds=10), f"b{number}")
    cluster.settle()
    known = [at for at, _ in starts(cluster).values() if at is not None]
    assert len(known) == min(count, 50)
    assert known == sorted(known)
