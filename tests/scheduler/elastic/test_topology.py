"""Where jobs fit: gangs on one node or below one switch, shares of devices, models, and nodes whose devices differ."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import GpuDevice
from tidegate_scheduler.policy.registry import outlook

from tests.scheduler.elastic.lab import asked_to_leave, complete, elastic, nodes_of, run
from tests.support.cluster import Cluster, spec

CLOSE: dict[str, Any] = {"communication": "intensive"}


def two_switches(cpu: int = 2000) -> Cluster:
    cluster = elastic()
    for node, switch in (("n1", "s1"), ("n2", "s1"), ("n3", "s2"), ("n4", "s2")):
        cluster.node(node, cpu, switch=switch)
    return cluster


def test_an_intensive_gang_goes_to_one_node_where_one_has_room() -> None:
    cluster = two_switches()
    run(cluster, "fills", spec(1000))
    run(cluster, "gang", spec(1000, gang=2, **CLOSE))
    assert len(set(nodes_of(cluster, "gang"))) == 1
    run(cluster, "loose", spec(500, gang=2))
    assert set(nodes_of(cluster, "loose")) == set(nodes_of(cluster, "fills")), "a loose one fills what is left"


def test_an_intensive_gang_that_no_node_holds_goes_below_one_switch() -> None:
    cluster = two_switches()
    run(cluster, "gang", spec(1000, gang=4, locality_wait_seconds=900, **CLOSE))
    assert set(nodes_of(cluster, "gang")) in ({"n1", "n2"}, {"n3", "n4"})


def test_an_intensive_gang_waits_for_one_node_as_long_as_it_said() -> None:
    cluster = two_switches()
    for number in range(4):
        run(cluster, f"half{number}", spec(1200))
    cluster.submit(spec(800, gang=2, locality_wait_seconds=300, **CLOSE), "gang")
    cluster.settle()
    assert cluster.stage("gang") == "pending"
    assert cluster.wake_at == cluster.now + 300_000_000_000
    told = outlook(cluster.state, cluster.now).reasons(cluster.job("gang"), cluster.waiting)[0]
    assert told.numbers["one_node_until_ns"] == cluster.now + 300_000_000_000, "it says how long it waits for that"
    cluster.advance(299)
    assert cluster.stage("gang") == "pending"
    cluster.advance(1)
    assert set(nodes_of(cluster, "gang")) in ({"n1", "n2"}, {"n3", "n4"})


def test_others_leave_for_an_intensive_gang_of_many_nodes_below_the_one_switch_that_can_be_cleared() -> None:
    """The domain first: nodes of others do not use up what is looked at."""
    cluster = elastic()
    width = 36
    for switch in ("s1", "s2"):
        for number in range(width):
            cluster.node(f"{switch}-{number:02}", 1000, switch=switch)
            cluster.submit(spec(900), f"on-{switch}-{number:02}")
    cluster.settle()
    for job in list(cluster.state.jobs):
        cluster.start(job)
    kept = next(job for job in cluster.state.jobs.values() if job.members[0].node == "s1-07")
    cluster.ask(e.JobPriorityChanged, kept.id, priority=9)
    cluster.submit(spec(1000, gang=width, priority=5, **CLOSE), "gang")
    asked = asked_to_leave(cluster.settle())
    assert len(asked) == width
    assert {cluster.members(job)[0].node.split("-")[0] for job in asked} == {"s2"}


def test_an_intensive_gang_is_never_wider_than_a_switch() -> None:
    cluster = two_switches()
    run(cluster, "left", spec(1500))
    other = run(cluster, "right", spec(1500, gang=3))
    assert len(set(nodes_of(cluster, other))) == 3
    cluster.advance(100_000)
    cluster.submit(spec(500, gang=4, **CLOSE), "gang")
    cluster.settle()
    assert cluster.stage("gang") == "pending", "500 are free on each of four nodes"
    complete(cluster, "left")
    assert len({node in ("n1", "n2") for node in nodes_of(cluster, "gang")}) == 1


def test_nodes_that_name_no_switch_share_none() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 1000)
    cluster.submit(spec(1000, gang=2, **CLOSE), "gang")
    cluster.settle()
    assert cluster.stage("gang") == "pending"
    run(cluster, "loose", spec(1000, gang=2))


def test_shares_of_devices_are_packed_and_whole_devices_stay_whole() -> None:
    cluster = elastic()
    cluster.node("n1", 8000, gpus=3)
    shares = [run(cluster, f"part{number}", spec(100, gpu_millis=400)) for number in range(3)]
    devices = [cluster.members(job)[0].gpu_indices for job in shares]
    assert devices[0] == devices[1] != devices[2]
    run(cluster, "whole", spec(100, gpus=1))
    run(cluster, "fits", spec(100, gpu_millis=500))
    assert cluster.members("fits")[0].gpu_indices == devices[2]
    cluster.submit(spec(100, gpus=1), "too-much")
    cluster.submit(spec(100, gpu_millis=300), "too-large")
    cluster.settle()
    assert [cluster.stage(job) for job in ("too-much", "too-large")] == ["pending", "pending"]


def test_a_share_goes_where_a_device_is_broken_already() -> None:
    cluster = elastic()
    cluster.node("n1", 8000, gpus=2)
    run(cluster, "part", spec(7000, gpu_millis=300))
    cluster.node("n2", 4000, gpus=2)
    run(cluster, "second", spec(1000, gpu_millis=300))
    assert nodes_of(cluster, "second") == ["n1"]
    run(cluster, "pair", spec(100, gpus=2))
    assert nodes_of(cluster, "pair") == ["n2"]


def test_a_share_that_is_left_can_be_had_again() -> None:
    cluster = elastic()
    cluster.node("n1", 8000, gpus=1)
    run(cluster, "a", spec(100, gpu_millis=600))
    run(cluster, "b", spec(100, gpu_millis=400))
    cluster.submit(spec(100, gpu_millis=500), "c")
    cluster.settle()
    assert cluster.stage("c") == "pending"
    complete(cluster, "a")
    assert cluster.stage("c") == "placed"
    complete(cluster, "b")
    complete(cluster, "c")
    run(cluster, "whole", spec(100, gpus=1))


MIXED = (
    GpuDevice(0, "g0", "A", 24_000),
    GpuDevice(1, "g1", "B", 80_000),
    GpuDevice(2, "g2", "A", 80_000),
    GpuDevice(3, "g3", "B", 24_000),
)


@pytest.mark.parametrize(
    ("asked", "indices"),
    [
        ({"gpus": 1}, (0,)),
        ({"gpus": 1, "gpu_memory": 40_000}, (1,)),
        ({"gpus": 1, "gpu_models": ("B",)}, (3,)),
        ({"gpus": 1, "gpu_models": ("A",), "gpu_memory": 40_000}, (2,)),
        ({"gpus": 2, "gpu_models": ("A",)}, (0, 2)),
        ({"gpus": 3, "gpu_models": ("A", "B"), "gpu_memory": 20_000}, (0, 3, 1)),
        ({"gpu_millis": 500, "gpu_memory": 40_000}, (1,)),
        ({"gpu_millis": 500, "gpu_models": ("B",)}, (3,)),
    ],
)
def test_devices_of_one_node_may_differ(asked: dict[str, Any], indices: tuple[int, ...]) -> None:
    """The smallest that will do is taken."""
    cluster = elastic()
    cluster.node("n1", 8000, devices=MIXED)
    run(cluster, "j", spec(100, **asked))
    assert cluster.members("j")[0].gpu_indices == indices


def test_what_a_node_has_too_few_of_is_not_made_up_by_other_devices() -> None:
    cluster = elastic()
    cluster.node("n1", 8000, devices=MIXED)
    run(cluster, "one", spec(100, gpus=1, gpu_models=("A",)))
    cluster.submit(spec(100, gpus=2, gpu_models=("A",)), "two")
    cluster.submit(spec(100, gpus=1, gang=2, gpu_models=("B",)), "gang")
    cluster.submit(spec(100, gpus=1, gpu_memory=40_000), "large")
    cluster.settle()
    assert [cluster.stage(job) for job in ("two", "gang", "large")] == ["pending", "placed", "pending"]
    complete(cluster, "gang")
    assert cluster.stage("two") == "pending"
    complete(cluster, "one")
    assert cluster.members("two")[0].gpu_indices == (0, 2)


def test_models_choose_the_node() -> None:
    cluster = elastic()
    cluster.node("a", 8000, devices=tuple(GpuDevice(i, f"a{i}", "A", 80_000) for i in range(2)))
    cluster.node("b", 8000, devices=tuple(GpuDevice(i, f"b{i}", "B", 80_000) for i in range(2)))
    run(cluster, "j", spec(100, gpus=1, gpu_models=("B",)))
    assert nodes_of(cluster, "j") == ["b"]
    cluster.submit(spec(100, gpus=2, gpu_models=("B",)), "k")
    cluster.settle()
    assert cluster.stage("k") == "pending"


def test_whole_nodes_stay_whole() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 8000, gpus=4)
    for number in range(4):
        run(cluster, f"small{number}", spec(100, gpus=1))
    run(cluster, "big", spec(100, gpus=4))
    assert len({nodes_of(cluster, f"small{number}")[0] for number in range(4)}) == 1
