"""Silence is observed once, after its bound, and never blamed on a node when the listener was away itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_scheduler import liveness as module
from tidegate_scheduler.liveness import LOOK_GAP_SECONDS_MAX, Liveness
from tidegate_scheduler.state import State

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


def test_a_process_that_begins_believes_no_lost_node_to_be_back(cluster: Cluster) -> None:
    """What it has not heard is no sign of life, only an agent that joins is one."""
    cluster.silence("n1")
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    for now in (0.1, 1.0, 2.0):
        assert liveness.observe(now=now, at_ns=1) == []
    liveness.hear("n1", now=2.5)
    assert _kinds(liveness.observe(now=3.0, at_ns=1)) == ["NodeReachable"]


def test_no_node_is_silent_before_a_whole_silence_under_the_new_leader(cluster: Cluster) -> None:
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    for now in (1.0, 2.0, 3.0, 4.0):
        liveness.observe(now=now, at_ns=1)
    liveness.listen_anew(now=4.5)  # it leads from here on
    for now in (5.5, 7.0, 8.5, 9.5):
        assert liveness.observe(now=now, at_ns=1) == []
    assert _kinds(liveness.observe(now=9.6, at_ns=1)) == ["NodeUnreachable"]


def test_it_is_said_again_until_the_journal_has_it(cluster: Cluster) -> None:
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    for now in (1.5, 3.0, 4.5):
        liveness.observe(now=now, at_ns=1)
    assert _kinds(liveness.observe(now=5.5, at_ns=1)) == ["NodeUnreachable"]  # and the journal was full
    assert _kinds(liveness.observe(now=6.0, at_ns=1)) == ["NodeUnreachable"]
    cluster.silence("n1")
    assert liveness.observe(now=6.5, at_ns=1) == []


def test_a_node_that_was_heard_while_its_silence_was_written_is_reachable(cluster: Cluster) -> None:
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    for now in (1.5, 3.0, 4.5):
        liveness.observe(now=now, at_ns=1)
    assert _kinds(liveness.observe(now=5.5, at_ns=1)) == ["NodeUnreachable"]
    liveness.hear("n1", now=5.6)
    cluster.silence("n1")
    assert _kinds(liveness.observe(now=6.0, at_ns=1)) == ["NodeReachable"]


def test_who_is_heard_and_has_not_joined_is_a_stranger(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRANGERS_MAX", 2)
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    for name in ("n1", "n2", "n3", "n4"):
        liveness.hear(name, now=1.0)
    cluster.node("n3")
    assert liveness.strangers() == ["n2"]
    assert liveness.strangers() == []


def test_a_cluster_that_falls_silent_as_a_whole_is_journaled_in_frames_of_bounded_size(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEEN_MAX", 2)
    for number in range(2, 6):
        cluster.node(f"n{number}")
    liveness = Liveness(cluster.state, SILENCE_SECONDS, now=0.0)
    for now in (1.5, 3.0, 4.5):
        liveness.observe(now=now, at_ns=1)
    said: list[str] = []
    for now in (5.1, 5.6, 6.1):
        seen = liveness.observe(now=now, at_ns=1)
        assert len(seen) <= 2
        for event in seen:
            cluster.silence(event.node)
            said.append(event.node)
    assert said == ["n1", "n2", "n3", "n4", "n5"]


class Reference:
    """The same by looking at every node each time."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.since = self.looked = 0.0
        self.heard: dict[str, float] = {}
        self.known = {name: node.incarnation for name, node in state.nodes.items()}

    def observe(self, now: float) -> list[tuple[str, str]]:
        if now - self.looked > LOOK_GAP_SECONDS_MAX:
            self.since = now
        self.looked = now
        seen = []
        for name, node in self.state.nodes.items():
            if self.known.get(name) != node.incarnation:
                self.known[name] = node.incarnation
                self.heard[name] = now
            heard = self.heard.get(name, self.since)
            silent = now > max(heard, self.since) + SILENCE_SECONDS
            if node.status == "up" and silent:
                seen.append((name, "NodeUnreachable"))
            elif node.status != "up" and not silent and heard > self.since:
                seen.append((name, "NodeReachable"))
        return sorted(seen)


NAMES = ("n1", "n2", "n3")
HAPPENS = st.sampled_from(["hear", "join", "fold", "lose", "anew", "wait", "wait", "wait", "look", "look", "late"])


@given(st.lists(st.tuples(HAPPENS, st.sampled_from(NAMES), st.sampled_from([0.1, 0.4, 1.0, 1.9, 4.0])), max_size=60))
def test_what_is_kept_up_says_what_a_look_at_every_node_says(steps: list[tuple[str, str, float]]) -> None:
    cluster, now = Cluster(), 0.0
    decided: list[e.NodeUnreachable | e.NodeReachable] = []
    for name in NAMES[:2]:
        cluster.node(name)
    liveness, reference = Liveness(cluster.state, SILENCE_SECONDS, now), Reference(cluster.state)
    for what, name, seconds in steps:
        node = cluster.state.nodes.get(name)
        if what == "hear":
            liveness.hear(name, now)
            if name in reference.known:
                reference.heard[name] = now
        elif what == "join":
            cluster.node(name, incarnation=node.incarnation + 1 if node is not None else 1)
        elif what == "lose" and node is not None:
            lost = e.NodeLost(id=f"lost-{len(cluster.frames)}", at_ns=1, node=name, incarnation=node.incarnation)
            cluster.append("scheduler", "s1", lost)
        elif what == "anew":
            liveness.listen_anew(now)
            reference.since = now
        elif what == "wait":
            now += seconds
        elif what in ("look", "fold"):
            seen = liveness.observe(now, at_ns=1)
            assert sorted((event.node, type(event).__name__) for event in seen) == reference.observe(now)
            decided = [*seen]
        if what in ("fold", "late") and decided:
            cluster.append("scheduler", "s1", *decided)
            decided = []
