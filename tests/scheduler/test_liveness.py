"""Silence is observed once, after its bound, and never blamed on a node when the listener was away itself."""

from __future__ import annotations

import pytest
from tidegate_events import events as e
from tidegate_scheduler.liveness import Liveness

from tests.support.cluster import Cluster

SILENCE_SECONDS = 5.0


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.node("n1")
    return made


def _kinds(seen: list[e.NodeUnreachable | e.NodeReachable]) -> list[str]:
    return [type(event).__name__ for event in seen]


def test_a_node_that_has_just_joined_is_not_silent(cluster: Cluster) -> None:
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    for now in (100.0, 101.5, 103.0, 104.5, 105.0):
        assert liveness.observe(now=now, at_ns=1) == []
    assert _kinds(liveness.observe(now=105.1, at_ns=1)) == ["NodeUnreachable"]


def test_a_node_that_is_heard_again_is_reachable(cluster: Cluster) -> None:
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    liveness.observe(now=0.0, at_ns=1)
    cluster.silence("n1")
    assert liveness.observe(now=20.0, at_ns=1) == []
    liveness.hear("n1", now=21.0)
    assert _kinds(liveness.observe(now=21.5, at_ns=1)) == ["NodeReachable"]


def test_the_listeners_own_absence_blames_nobody(cluster: Cluster) -> None:
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    liveness.observe(now=0.0, at_ns=1)
    liveness.observe(now=1.0, at_ns=1)
    liveness.listen_anew(now=2.0)
    for now in (3.0, 5.0, 6.9):
        assert liveness.observe(now=now, at_ns=1) == []
    assert _kinds(liveness.observe(now=7.1, at_ns=1)) == ["NodeUnreachable"]


def test_a_listener_that_was_held_up_blames_nobody(cluster: Cluster) -> None:
    """An append that waits for the bus, or a stopped process, hears no heartbeats that were sent meanwhile."""
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    liveness.observe(now=0.0, at_ns=1)
    for now in (60.0, 62.0, 64.0):
        assert liveness.observe(now=now, at_ns=1) == []
    assert _kinds(liveness.observe(now=65.1, at_ns=1)) == ["NodeUnreachable"]
