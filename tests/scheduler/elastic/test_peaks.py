"""Where borrowers go: by what they will ask for, though they hold no more than their default phase."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec

from tests.scheduler.elastic.lab import elastic, looked_up, nodes_of
from tests.scheduler.elastic.lent import ask, borrower, enter, go, owner, run
from tests.support.cluster import Cluster, spec

LOW = Resources(100, 100)


def learner(cpu: int = 1000, gpus: int = 0, memory: int = 100, **more: Any) -> JobSpec:
    """A borrower that needs little but in its learning phase."""
    return borrower(low=LOW, high=Resources(cpu, memory, gpus), **more)


def cluster_of(**cpu: int) -> Cluster:
    """Nodes of so much CPU, each with two devices."""
    cluster = elastic()
    for name, millis in cpu.items():
        cluster.node(name, millis, memory=100_000, gpus=2)
    return cluster


def placed(cluster: Cluster, *jobs: JobSpec) -> list[str]:
    """Submit the jobs one after another; return where each is."""
    names = [cluster.submit(job) for job in jobs]
    cluster.settle()
    return [node for name in names for node in nodes_of(cluster, name)]


def test_borrowers_go_apart_where_not_all_of_them_could_have_their_phases_at_once() -> None:
    cluster = cluster_of(n1=4000, n2=4000)
    assert placed(cluster, learner(4000), learner(4000)) == ["n1", "n2"]


def test_where_a_peak_fits_the_tightest_node_is_best() -> None:
    cluster = cluster_of(n1=8000, n2=4000, n3=2000)
    assert placed(cluster, learner(3000)) == ["n2"]
    assert placed(cluster, learner(1000)) == ["n2"]
    assert placed(cluster, learner(1000)) == ["n3"]


@pytest.mark.parametrize(
    ("job", "expected"),
    [(learner(7500), "n1"), (learner(1000, gpus=2), "n2"), (learner(7500, gpus=2), "n2")],
)
def test_where_no_peak_fits_it_goes_where_least_is_asked_for_of_what_is_scarcest(job: JobSpec, expected: str) -> None:
    cluster = cluster_of(n1=8000, n2=8000)
    assert placed(cluster, learner(1000, gpus=2)) == ["n1"]
    assert placed(cluster, learner(7500)) == ["n2"]
    assert placed(cluster, job) == [expected]


def test_what_was_granted_is_not_counted_twice() -> None:
    cluster = cluster_of(n1=8000, n2=8000)
    first = run(cluster, "first", learner(5000))
    go(cluster, first, "learning")
    assert looked_up(cluster).table.peaks.on(looked_up(cluster).table.rows["n1"]) == (0, 0, 0)
    assert placed(cluster, learner(3000)) == ["n1"], "beside the 5000 that it has there are 3000"
    assert placed(cluster, learner(3000)) == ["n2"]


def test_who_ends_asks_for_nothing_any_more() -> None:
    cluster = cluster_of(n1=4000, n2=4000)
    placed(cluster, learner(4000))
    cluster.start("j1")
    cluster.exit("j1", "completed")
    assert placed(cluster, learner(4000)) == ["n1"]


def test_a_node_that_could_never_give_a_phase_is_not_taken_though_the_default_phase_fits() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    name = cluster.submit(learner(1000, gpus=1))
    cluster.settle()
    assert cluster.job(name).waiting
    assert cluster.waiting[name].code == "NoNode"
    cluster.node("n2", 4000, gpus=1)
    cluster.settle()
    assert nodes_of(cluster, name) == ["n2"]


def test_no_more_members_of_a_gang_are_on_a_node_than_could_have_their_phase_there() -> None:
    cluster = cluster_of(n1=8000, n2=8000)
    gang = run(cluster, "gang", learner(1000, gpus=1, gang_size=4))
    assert sorted(nodes_of(cluster, gang)) == ["n1", "n1", "n2", "n2"]
    ask(cluster, gang, "learning", ranks=(0, 1, 2, 3))
    for rank in range(4):
        enter(cluster, gang, rank=rank)
    assert {member.phase for member in cluster.members(gang)} == {"learning"}


def test_what_will_be_asked_for_keeps_nobody_out() -> None:
    cluster = cluster_of(n1=4000)
    assert placed(cluster, learner(4000), learner(4000), spec(3800, memory=100, gpus=2)) == ["n1"] * 3


def test_owners_are_placed_as_before() -> None:
    cluster = cluster_of(n1=8000, n2=4000)
    placed(cluster, learner(4000))
    assert placed(cluster, owner(low=LOW, high=Resources(3000, 100))) == ["n2"]
