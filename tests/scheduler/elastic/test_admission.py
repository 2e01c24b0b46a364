"""How long a job that the nodes could not hold, were they empty, waits for others to join before it is rejected."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_scheduler.policy.elastic.admission import GROWS_FOR_MAX

from tests.scheduler.elastic.lab import HOUR, elastic, of
from tests.support.cluster import SECOND, Cluster, spec

AFTER = 60
STRANGE: dict[str, Any] = {"image": "that no node has"}
YEAR = 365 * 24 * HOUR


def one_node() -> Cluster:
    cluster = elastic()
    cluster.node("n0", 4000)
    cluster.submit(spec(1000), "small")
    cluster.settle()
    return cluster


def seconds_until_rejected(cluster: Cluster, *, joins_every: int = 0) -> int:
    """Return for how long the job waits, while nodes join that are of no use to it."""
    began = cluster.now
    for number in range(1, 40 * AFTER):
        if joins_every and number % joins_every == 0:
            cluster.node(f"new{number}", 1000)
        if of(cluster.advance(1), e.JobRejected):
            return (cluster.now - began) // SECOND
    raise AssertionError("it waits for ever")


@pytest.mark.parametrize(
    ("joins_every", "waits"),
    [(0, AFTER), (AFTER + 1, AFTER), (AFTER - 10, GROWS_FOR_MAX * AFTER), (1, GROWS_FOR_MAX * AFTER)],
)
def test_a_job_waits_for_nodes_while_they_join_and_not_for_ever(joins_every: int, waits: int) -> None:
    cluster = one_node()
    cluster.advance(HOUR)
    cluster.submit(spec(1000, **STRANGE), "never")
    cluster.settle()
    assert seconds_until_rejected(cluster, joins_every=joins_every) in range(waits, waits + AFTER)


@pytest.mark.parametrize(
    "large",
    [{"gpus": 9}, {"gpu_millis": 500}, {"gang": 9, "communication": "intensive"}, {"memory": 1 << 30, **STRANGE}],
)
def test_where_no_node_joins_any_more_a_job_larger_than_all_is_refused_at_once(large: dict[str, Any]) -> None:
    cluster = one_node()
    cluster.advance(AFTER - 1)
    cluster.submit(spec(1000, **large), "never")
    cluster.submit(spec(1000, **STRANGE), "waits")
    assert cluster.settle() == [], "another node may be on its way"
    cluster.advance(1)
    assert (cluster.stage("never"), cluster.stage("waits")) == ("rejected", "pending")
    cluster.submit(spec(1000, **large), "never again")
    assert [event.job for event in of(cluster.settle(), e.JobRejected)] == ["never again"]


def test_where_nodes_join_after_a_pause_a_job_that_waits_long_waits_for_those_too() -> None:
    """Its node is gone for good; it would have been placed there."""
    cluster = one_node()
    cluster.node("large", 4000, gpus=1)
    cluster.submit(spec(1000, gpus=1), "runs")
    cluster.settle()
    cluster.start("runs")
    cluster.submit(spec(1000, gpus=1), "waits")
    cluster.advance(HOUR)
    assert cluster.stage("waits") == "pending"
    cluster.node("new", 1000)
    cluster.node("large", 4000, incarnation=2)  # it came back without its device
    assert seconds_until_rejected(cluster) == AFTER


def test_an_agent_whose_clock_is_ahead_keeps_nobody_waiting() -> None:
    cluster = one_node()
    now = cluster.now
    cluster.now += YEAR * SECOND
    cluster.node("ahead", 1000)
    cluster.now = now
    cluster.advance(1)
    cluster.submit(spec(1000, **STRANGE), "never")
    cluster.submit(spec(1000, gpus=9), "larger than all")
    assert [event.job for event in of(cluster.settle(), e.JobRejected)] == ["larger than all"]
    assert seconds_until_rejected(cluster) == AFTER
    cluster.submit(spec(1000, **STRANGE), "never again")
    cluster.settle()
    waited = seconds_until_rejected(cluster, joins_every=AFTER - 10)
    assert GROWS_FOR_MAX * AFTER <= waited <= (GROWS_FOR_MAX + 1) * AFTER, "it counts from when others joined"


def test_an_agent_whose_clock_is_behind_is_waited_for_as_any_other() -> None:
    cluster = one_node()
    cluster.submit(spec(1000, **STRANGE), "never")
    cluster.settle()
    cluster.advance(AFTER - 10)
    now = cluster.now
    cluster.submit(spec(1000), "placed just now")
    cluster.settle()
    cluster.now -= HOUR * SECOND
    cluster.node("behind", 1000)
    cluster.now = now
    assert seconds_until_rejected(cluster) == AFTER
