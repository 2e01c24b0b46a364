"""A strict job stays on the CPU model it began on: when it resumes, when others leave for it, when none is left."""

from __future__ import annotations

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Determinism

from tests.support.cluster import Cluster, spec


def join(cluster: Cluster, name: str, model: str) -> None:
    joined = e.NodeJoined(
        id=f"join-{name}",
        at_ns=cluster.now,
        node=name,
        incarnation=1,
        capacity=Resources(2000, 8192),
        levels=("trusted",),
        images={"host": "b3:00"},
        cpu_model=model,
    )
    cluster.append("node", name, joined)


def a_job_that_left(determinism: Determinism, *, gang: int = 1) -> Cluster:
    """It ran on an EPYC, and left that for one of higher priority; a Xeon is free."""
    cluster = Cluster()
    for number in range(gang):
        join(cluster, f"n{number}", "EPYC")
    cluster.submit(spec(2000, gang=gang, determinism=determinism), "job")
    cluster.settle()
    cluster.start("job")
    cluster.submit(spec(2000, gang=gang, priority=5), "urgent")
    cluster.settle()
    cluster.exit("job", "suspended")
    for number in range(gang):
        join(cluster, f"x{number}", "Xeon")
    cluster.settle()
    return cluster


@pytest.mark.parametrize("gang", [1, 2])
def test_it_waits_for_its_model_and_resumes_there(gang: int) -> None:
    cluster = a_job_that_left("strict", gang=gang)
    assert cluster.stage("job") == "suspended"
    cluster.start("urgent")
    cluster.exit("urgent", "completed")
    cluster.advance(1)
    assert {member.node for member in cluster.members("job")} == {f"n{number}" for number in range(gang)}


def test_one_that_is_not_strict_goes_on_elsewhere() -> None:
    assert a_job_that_left("relaxed").members("job")[0].node == "x0"


def test_where_its_model_is_gone_it_waits_and_says_so() -> None:
    cluster = a_job_that_left("strict")
    lost = e.NodeLost(id="lost", at_ns=cluster.now, node="n0", incarnation=1)
    cluster.append("scheduler", cluster.leader, lost)
    cluster.advance(100)
    assert cluster.stage("job") == "suspended"
    assert cluster.waiting["job"].code == "NoNode"
    assert cluster.job("job").cpu_model == "EPYC"


def test_it_has_others_leave_only_on_its_model() -> None:
    cluster = a_job_that_left("strict")
    cluster.submit(spec(2000), "other")
    cluster.settle()
    cluster.start("other")
    assert cluster.members("other")[0].node == "x0"
    raised = e.JobPriorityChanged(id="p", at_ns=cluster.now, tenant="t", job="job", actor="ada", priority=9)
    cluster.append("gateway", "g1", raised)
    cluster.advance(100)
    assert (cluster.stage("urgent"), cluster.stage("other")) == ("preempting", "running")
