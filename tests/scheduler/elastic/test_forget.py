"""Nodes that are lost for long are forgotten: nothing of them is left, and who comes back is a new node."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tidegate_events import events as e
from tidegate_events.resources import GpuDevice
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.orders import orders_for
from tidegate_scheduler.policy.elastic.forget import SECOND_NS
from tidegate_scheduler.policy.elastic.sites import NUMBERS_SPARE
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot

from tests.scheduler.elastic.lab import elastic, looked_up, run
from tests.scheduler.elastic.test_machine_elastic import ElasticMachine
from tests.scheduler.elastic.world import answers, tables, told_anew
from tests.scheduler.test_machine import NODES
from tests.support.cluster import Cluster, spec

FORGOTTEN_SECONDS = 1000
LOST_SECONDS = 30


def lost(cluster: Cluster, node: str) -> None:
    """Let a node fall silent until it is lost."""
    cluster.silence(node)
    cluster.advance(LOST_SECONDS)
    assert cluster.state.nodes[node].status == "lost"


def small(**parameters: int) -> Cluster:
    cluster = elastic(Parameters(node_forgotten_seconds=FORGOTTEN_SECONDS, **parameters))
    cluster.node("n1", 2000, devices=(GpuDevice(0, "a", "A", 24_000), GpuDevice(1, "b", "B", 80_000)))
    cluster.node("n2", 2000)
    return cluster


def test_a_node_that_is_lost_for_long_is_forgotten_and_not_before() -> None:
    cluster = small()
    lost(cluster, "n1")
    cluster.advance(FORGOTTEN_SECONDS - LOST_SECONDS - 1)
    assert set(cluster.state.nodes) == {"n1", "n2"}
    assert cluster.wake_at == cluster.now + SECOND_NS
    (forgotten,) = cluster.advance(1)
    assert isinstance(forgotten, e.NodeForgotten)
    assert (forgotten.node, forgotten.incarnation) == ("n1", 1)
    assert set(cluster.state.nodes) == {"n2"}


def test_0_forgets_nobody() -> None:
    cluster = elastic(Parameters(node_forgotten_seconds=0))
    cluster.node("n1")
    lost(cluster, "n1")
    cluster.advance(10 * 365 * 24 * 3600)
    assert set(cluster.state.nodes) == {"n1"}


@pytest.mark.parametrize("word", ["drained", "cordoned"])
def test_a_node_of_which_something_was_asked_stays_until_an_operator_says_otherwise(word: str) -> None:
    cluster = small()
    if word == "drained":
        cluster.ask(e.NodeDrainRequested, node="n1", deadline_ns=cluster.now)
    else:
        cordoned = e.NodeCordoned(id="c", at_ns=cluster.now, node="n1", incarnation=1, reasons=())
        cluster.append("scheduler", cluster.leader, cordoned)
    lost(cluster, "n1")
    cluster.advance(2 * FORGOTTEN_SECONDS)
    assert set(cluster.state.nodes) == {"n1", "n2"}
    cluster.ask(e.NodeForgetRequested, node="n1")
    assert set(cluster.state.nodes) == {"n2"}


def test_an_operator_forgets_only_what_is_lost() -> None:
    cluster = small()
    cluster.ask(e.NodeForgetRequested, node="n1")
    cluster.silence("n1")
    cluster.ask(e.NodeForgetRequested, node="n1")
    assert set(cluster.state.nodes) == {"n1", "n2"}
    cluster.advance(LOST_SECONDS)
    cluster.ask(e.NodeForgetRequested, node="n1")
    assert set(cluster.state.nodes) == {"n2"}


def test_a_node_that_is_back_meanwhile_is_not_forgotten() -> None:
    cluster = small()
    lost(cluster, "n1")
    cluster.now += FORGOTTEN_SECONDS * SECOND_NS
    decided = decide(cluster.state, cluster.now).events
    assert [event.node for event in decided if isinstance(event, e.NodeForgotten)] == ["n1"]
    cluster.node("n1", 2000, incarnation=2)
    cluster.append("scheduler", cluster.leader, *decided)
    assert cluster.state.nodes["n1"].incarnation == 2


def test_what_a_forgotten_node_comes_back_with_is_told_to_end() -> None:
    cluster = small()
    run(cluster, "j", spec(500, gpus=1, gpu_models=("A",)))
    lost(cluster, "n1")
    cluster.cancel("j")
    cluster.advance(FORGOTTEN_SECONDS)
    assert (set(cluster.state.nodes), cluster.state.specs) == ({"n2"}, {})
    cluster.node("n1", 2000, incarnation=2, held=[e.HeldSandbox(job="j", attempt=1, rank=0)])
    (order,) = orders_for(cluster.state, cluster.state.nodes["n1"]).sandboxes
    assert (order.job, order.desired) == ("j", "stop")


def test_many_are_forgotten_in_passes_of_bounded_size_the_longest_lost_first() -> None:
    cluster = small(decisions_per_pass_max=2)
    for number in range(3, 8):
        cluster.node(f"n{number}")
    for name in ("n7", "n3", "n5", "n4", "n6"):
        lost(cluster, name)
    decided = cluster.advance(2 * FORGOTTEN_SECONDS)
    assert [event.node for event in decided if isinstance(event, e.NodeForgotten)] == ["n7", "n3", "n5", "n4", "n6"]


def test_what_a_forgotten_node_said_comes_late_a_second_time_and_changes_nothing() -> None:
    cluster = small()
    lost(cluster, "n1")
    cluster.ask(e.NodeForgetRequested, node="n1")
    joined = next(recorded for recorded in cluster.frames if recorded.frame.writer.instance == "n1")
    evolve(cluster.state, msgspec.structs.replace(joined, seq=cluster.state.seq + 1))
    assert set(cluster.state.nodes) == {"n2"}


def test_of_nodes_that_come_and_go_under_new_names_no_more_is_known_than_there_are() -> None:
    cluster = small()
    run(cluster, "j", spec(1900))
    cluster.submit(spec(1950, gang=2), "waits")
    cluster.settle()
    for number in range(2 * NUMBERS_SPARE):
        name = f"m{number}"
        cluster.node(name, 100 + number, switch=f"s{number}")
        cluster.settle()
        lost(cluster, name)
        cluster.ask(e.NodeForgetRequested, node=name)
    table = looked_up(cluster).table
    assert len(table) == 3
    sites = (len(table.sites.names("switch")), len(table.sites.names("rack")))
    assert max(*sites, table.kind_count) <= 2 * len(table) + NUMBERS_SPARE
    anew = elastic()
    anew.state = told_anew(cluster.frames, turned=False)
    assert answers(anew.state, cluster.now) == answers(cluster.state, cluster.now)
    cluster.node("m0", 4000, switch="s0")
    cluster.settle()
    assert cluster.stage("waits") == "placed", "what fits where is known of the kinds by their new numbers"
    assert "m0" in {member.node for member in cluster.members("waits")}


def test_tables_without_a_node_are_those_that_never_had_it_and_its_row_is_used_again() -> None:
    cluster = small()
    run(cluster, "j", spec(500, gpus=1, gpu_models=("A",)))
    cluster.submit(spec(1900, priority=1), "waits")
    cluster.submit(spec(2000, priority=9), "first")
    cluster.settle()
    rows = len(looked_up(cluster).table)
    lost(cluster, "n1")
    cluster.advance(FORGOTTEN_SECONDS)
    for step in range(2):
        known = tables(looked_up(cluster))
        anew = elastic()
        for turned in (False, True):
            anew.state = told_anew(cluster.frames, turned=turned)
            assert tables(looked_up(anew)) == known
            assert answers(anew.state, cluster.now) == answers(cluster.state, cluster.now)
        if step == 0:
            cluster.node("n0", 3000, gpus=1)
            cluster.settle()
    assert len(looked_up(cluster).table) == rows
    assert decode_snapshot(encode_snapshot(cluster.state)).digest() == cluster.state.digest()


class ForgettingMachine(ElasticMachine):
    """Whatever may happen, with nodes that are forgotten, too."""

    @rule()
    def everybody_who_is_lost_long_enough_is_forgotten(self) -> None:
        self.cluster.advance(8 * 24 * 3600)

    @precondition(lambda self: any(node.status == "lost" for node in self.cluster.state.nodes.values()))
    @rule(data=st.data())
    def an_operator_forgets_a_node(self, data: st.DataObject) -> None:
        names = sorted(node.name for node in self.cluster.state.nodes.values() if node.status == "lost")
        self._ask(e.NodeForgetRequested, node=data.draw(st.sampled_from(names)))

    @rule(name=st.sampled_from(sorted(NODES)))
    def a_node_is_lost(self, name: str) -> None:
        if name in self.cluster.state.nodes:
            self.cluster.silence(name)
            self.cluster.advance(31)


ForgettingMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=35, deadline=None)
TestForgetting = ForgettingMachine.TestCase
