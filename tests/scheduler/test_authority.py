"""Nobody speaks for somebody else: frames and events that their writer may not write change nothing."""

from __future__ import annotations

import pytest
from tidegate_events import events as e
from tidegate_events.frame import KINDS, Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_scheduler import evolve as rules
from tidegate_scheduler.evolve import evolve

from tests.support.cluster import Cluster, spec


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.node("n1", 2000)
    made.submit(spec(1000), "victim")
    return made


def _forge(cluster: Cluster, subject: str, writer: Writer, event: e.AnyEvent) -> None:
    evolve(cluster.state, Recorded(cluster.state.seq + 1, subject, Frame(writer, (event,))))


def test_an_agent_cannot_decide(cluster: Cluster) -> None:
    cancelled = e.JobCancelled(id="x", at_ns=1, tenant="t", job="victim", revision=0, attempt=0)
    _forge(cluster, "tg.fact.node.n1", Writer("node", "n1", 1, 9), cancelled)
    assert cluster.stage("victim") == "pending"


def test_a_subject_carries_only_its_writer(cluster: Cluster) -> None:
    cancelled = e.JobCancelled(id="x", at_ns=1, tenant="t", job="victim", revision=0, attempt=0)
    _forge(cluster, "tg.fact.node.n1", Writer("scheduler", "s1", 9, 9), cancelled)
    assert cluster.stage("victim") == "pending"


def test_an_agent_cannot_join_for_another_node(cluster: Cluster) -> None:
    joined = e.NodeJoined(
        id="x", at_ns=1, node="n1", incarnation=99, capacity=Resources(64_000, 1), levels=("trusted",)
    )
    _forge(cluster, "tg.fact.node.n2", Writer("node", "n2", 1, 0), joined)
    assert cluster.state.nodes["n1"].incarnation == 1


def test_a_gap_in_history_is_refused(cluster: Cluster) -> None:
    frame = cluster.frames[-1].frame
    with pytest.raises(ValueError, match="no gaps"):
        evolve(cluster.state, Recorded(cluster.state.seq + 2, "tg.decision", frame))


def test_every_kind_of_event_has_a_rule() -> None:
    """The scheduler stops at what it has no rule for: a kind that changes nothing there says so by its rule."""
    assert set(rules._RULES) == set(KINDS.values())
