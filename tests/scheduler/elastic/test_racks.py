"""Nodes below switches in racks: how wide an intensive gang may be, how close a loose one stays, what is told of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tidegate_events.resources import GpuDevice
from tidegate_scheduler.policy.elastic.sites import Domain
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.policy.registry import outlook

from tests.scheduler.elastic.lab import complete, elastic, looked_up, nodes_of, run
from tests.support.cluster import SECOND, Cluster, spec

CLOSE: dict[str, Any] = {"communication": "intensive"}
RACK: dict[str, Any] = {"communication": "intensive", "widest_domain": "rack"}


def two_racks(cpu: int = 2000, parameters: Parameters | None = None) -> Cluster:
    """Eight nodes, two at each switch, two switches in each rack; their names tell where they stand.

    Each has one GPU of a model of its own, so that jobs can be put there.
    """
    cluster = elastic(parameters)
    for rack in ("a", "b"):
        for switch in ("1", "2"):
            for node in ("x", "y"):
                name = f"{rack}{switch}{node}"
                devices = (GpuDevice(0, f"gpu-{name}", name, 80_000),)
                cluster.node(name, cpu, devices=devices, rack=rack, switch=switch)
    return cluster


def occupy(cluster: Cluster, cpu: int, *nodes: str) -> None:
    for node in nodes:
        run(cluster, f"on-{node}", spec(cpu, gpus=1, gpu_models=(node,)))


def racks_of(cluster: Cluster, job: str) -> set[str]:
    return {node[:1] for node in nodes_of(cluster, job)}


def switches_of(cluster: Cluster, job: str) -> set[str]:
    return {node[:2] for node in nodes_of(cluster, job)}


def reason(cluster: Cluster, job: str) -> Any:
    return outlook(cluster.state, cluster.now).reasons(cluster.job(job), cluster.waiting)[0]


@pytest.mark.parametrize(("gang", "nodes", "switches"), [(2, 1, 1), (4, 2, 1), (6, 3, 2), (8, 4, 2)])
def test_an_intensive_gang_goes_to_one_node_else_one_switch_else_one_rack(gang: int, nodes: int, switches: int) -> None:
    cluster = two_racks()
    run(cluster, "gang", spec(1000, gang=gang, **RACK))
    assert len(set(nodes_of(cluster, "gang"))) == nodes
    assert len(switches_of(cluster, "gang")) == switches
    assert len(racks_of(cluster, "gang")) == 1


def test_it_is_never_wider_than_it_may_be() -> None:
    cluster = two_racks()
    occupy(cluster, 2000, "a1x", "a2x", "b1x", "b2x")
    cluster.submit(spec(1000, gang=3, **CLOSE), "below-switch")
    cluster.submit(spec(1000, gang=5, **RACK), "in-rack")
    run(cluster, "fits", spec(1000, gang=4, **RACK))
    assert len(racks_of(cluster, "fits")) == 1
    assert [cluster.stage(job) for job in ("below-switch", "in-rack")] == ["pending", "pending"]


def test_switches_of_one_name_in_two_racks_are_two() -> None:
    cluster = elastic()
    for node, rack in (("n1", "a"), ("n2", "b"), ("n3", ""), ("n4", "")):
        cluster.node(node, 1000, rack=rack, switch="1")
    cluster.submit(spec(1000, gang=3, **CLOSE), "three")
    run(cluster, "two", spec(1000, gang=2, **CLOSE))
    assert set(nodes_of(cluster, "two")) == {"n3", "n4"}, "a switch that names no rack is one of its own"
    assert cluster.stage("three") == "pending"


def test_what_names_no_rack_is_in_one_of_its_own() -> None:
    cluster = elastic()
    for node, switch in (("n1", ""), ("n2", ""), ("n3", "s"), ("n4", "s"), ("n5", "t")):
        cluster.node(node, 1000, switch=switch)
    cluster.submit(spec(1000, gang=3, **RACK), "three")
    run(cluster, "two", spec(1000, gang=2, **RACK))
    assert set(nodes_of(cluster, "two")) == {"n3", "n4"}
    assert cluster.stage("three") == "pending"


def test_nodes_of_a_rack_that_name_no_switch_share_the_rack_alone() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 1000, rack="a")
    cluster.submit(spec(1000, gang=2, **CLOSE), "below-switch")
    run(cluster, "in-rack", spec(1000, gang=2, **RACK))
    assert cluster.stage("below-switch") == "pending"


def test_it_waits_for_the_narrowest_place_that_could_hold_it_and_says_how_long() -> None:
    cluster = two_racks(parameters=Parameters(reservations_max=0))
    occupy(cluster, 1500, "a1x", "a2x", "b1x", "b2x")
    cluster.submit(spec(1000, gang=4, locality_wait_seconds=300, **RACK), "gang")
    cluster.settle()
    assert cluster.stage("gang") == "pending"
    told = reason(cluster, "gang")
    assert told.numbers["one_switch_until_ns"] == cluster.now + 300 * SECOND == cluster.wake_at
    assert "one_node_until_ns" not in told.numbers
    cluster.advance(300)
    assert (len(racks_of(cluster, "gang")), len(switches_of(cluster, "gang"))) == (1, 2)


def test_what_is_short_names_the_rack_and_how_many_fit_there() -> None:
    cluster = two_racks(parameters=Parameters(reservations_max=0))
    occupy(cluster, 2000, "a1x", "a1y", "a2x", "b1x", "b2x")
    cluster.submit(spec(1000, gang=5, **RACK), "gang")
    cluster.settle()
    told = reason(cluster, "gang")
    assert (told.code, told.detail) == ("GangTopology", "most of its members would fit together at rack b")
    assert told.numbers.items() >= {"members_needed": 5, "members_fit": 6, "members_fit_together": 4}.items()


def test_a_gang_that_no_rack_could_hold_is_told_so() -> None:
    cluster = two_racks()
    cluster.submit(spec(1000, gang=9, **RACK), "gang")
    cluster.settle()
    told = reason(cluster, "gang")
    assert (told.code, told.detail) == ("GangTopology", "no rack has nodes for all members")
    assert told.numbers["members_most_together"] == 8
    run(cluster, "loose", spec(1000, gang=9))


def test_a_strict_gang_is_of_one_model_in_one_rack() -> None:
    cluster = elastic()
    for node, rack, model in (("n1", "a", "X"), ("n2", "a", "Y"), ("n3", "b", "X"), ("n4", "b", "X")):
        cluster.node(node, 1000, rack=rack, switch=node, cpu_model=model)
    run(cluster, "gang", spec(1000, gang=2, determinism="strict", **RACK))
    assert set(nodes_of(cluster, "gang")) == {"n3", "n4"}


# ---- loose gangs ----


def test_a_loose_gang_stays_below_one_switch_else_in_one_rack_else_in_few() -> None:
    cluster = two_racks()
    run(cluster, "four", spec(1000, gang=4))
    assert len(switches_of(cluster, "four")) == 1
    run(cluster, "seven", spec(1000, gang=7))
    assert len(racks_of(cluster, "seven")) == 1
    assert racks_of(cluster, "seven") != racks_of(cluster, "four")
    run(cluster, "rest", spec(1000, gang=5))
    assert racks_of(cluster, "rest") == {"a", "b"}, "it may be anywhere"


def test_a_loose_gang_begins_no_whole_node_more_to_stay_together() -> None:
    cluster = two_racks()
    occupy(cluster, 1000, "a1x", "b1x")
    run(cluster, "loose", spec(1000, gang=2))
    assert set(nodes_of(cluster, "loose")) == {"a1x", "b1x"}, "together on a whole node it would break that up"


def test_a_node_that_comes_back_elsewhere_counts_where_it_stands() -> None:
    cluster = two_racks()
    cluster.submit(spec(1000, gang=10, **RACK), "ten")
    cluster.settle()
    assert cluster.stage("ten") == "pending"
    cluster.node("b1x", 2000, incarnation=2, rack="a", switch="1")
    cluster.settle()
    assert len(nodes_of(cluster, "ten")) == 10
    complete(cluster, "ten")


def test_what_is_held_together_is_kept_up_with_what_changes() -> None:
    """Kept by what changed, it is what a look at all rows gives; whatever is placed, ends, and moves."""
    cluster = two_racks()
    shape = looked_up(cluster).line_key(_waiting(cluster, spec(500, gang=2, **RACK))).shape
    levels: tuple[Domain, ...] = ("switch", "rack")

    def check() -> None:
        index = looked_up(cluster)
        fit, sites = index.fit(shape), index.table.sites
        for level in levels:
            kept = fit.holds_together(level)
            fresh = np.zeros(len(sites.names(level)), np.int64)
            rows = np.arange(len(index.table))
            np.add.at(fresh, sites.numbers(level)[rows], fit.members(index.table.now, rows))
            assert kept.tolist() == fresh.tolist(), level

    check()
    for number in range(12):
        run(cluster, f"j{number}", spec(700))
        check()
    cluster.node("a1y", 4000, incarnation=2, rack="b", switch="9")
    cluster.settle()
    check()
    cluster.node("new", 4000, rack="a", switch="1")
    cluster.settle()
    check()
    for number in range(12):
        if f"j{number}" in cluster.state.jobs and cluster.stage(f"j{number}") == "running":
            complete(cluster, f"j{number}")
            check()


def _waiting(cluster: Cluster, job: Any) -> Any:
    return cluster.job(cluster.submit(job, "asks"))


def test_a_strict_gang_waits_for_no_switch_whose_nodes_are_of_other_models() -> None:
    cluster = elastic()
    for name, model, switch in (("n1", "A", "1"), ("n2", "B", "1"), ("n3", "A", "2")):
        cluster.node(name, 2000, cpu_model=model, switch=switch, rack="a")
    run(cluster, "gang", spec(2000, gang=2, determinism="strict", locality_wait_seconds=3600, **RACK))
    assert sorted(nodes_of(cluster, "gang")) == ["n1", "n3"]
