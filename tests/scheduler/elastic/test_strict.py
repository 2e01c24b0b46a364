"""A strict job stays on the CPU model it began on: when it resumes, when others leave for it, when none is left."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Determinism, JobSpec
from tidegate_scheduler.policy.registry import outlook

from tests.support.cluster import SECOND, Cluster, spec


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


def strict(gang: int = 2, **more: Any) -> JobSpec:
    return spec(2000, gang=gang, determinism="strict", **more)


def models_of(cluster: Cluster, job: str) -> set[str]:
    return {cluster.state.nodes[member.node].cpu_model for member in cluster.members(job)}


def test_a_strict_gang_goes_to_one_model_and_one_that_none_can_hold_says_so() -> None:
    cluster = Cluster()
    for name, model in (("a1", "EPYC"), ("b1", "Xeon"), ("b2", "Xeon")):
        join(cluster, name, model)
    cluster.node("a0", 2000, cpu_model="EPYC")
    cluster.submit(spec(2000), "fills")
    cluster.settle()
    assert cluster.members("fills")[0].node == "a0"
    cluster.submit(strict(3), "never")
    cluster.submit(strict(2), "gang")
    cluster.settle()
    assert models_of(cluster, "gang") == {"Xeon"}
    never = outlook(cluster.state, cluster.now + 60 * SECOND).never(cluster.job("never"))  # no node joins any more
    assert never is not None
    assert (never.code, never.detail) == ("GangTopology", "no CPU model has nodes for all members")
    assert never.numbers == {"members_needed": 3, "members_most": 4, "members_most_together": 2}


@pytest.mark.parametrize(("determinism", "stage"), [("strict", "pending"), ("relaxed", "placed")])
def test_only_a_strict_gang_minds_that_the_free_nodes_differ(determinism: Determinism, stage: str) -> None:
    cluster = Cluster()
    for name, model in (("a1", "EPYC"), ("a2", "EPYC"), ("b1", "Xeon"), ("b2", "Xeon")):
        join(cluster, name, model)
        cluster.submit(spec(2000), f"on-{name}")
        cluster.settle()
        cluster.start(f"on-{name}")
    for name in ("a1", "b1"):
        cluster.exit(f"on-{name}", "completed")
    cluster.submit(spec(2000, gang=2, determinism=determinism), "gang")
    cluster.settle()
    assert cluster.stage("gang") == stage
    if determinism == "strict":
        told = cluster.waiting["gang"]
        kept = {cluster.state.nodes[name].cpu_model for name in cluster.job("gang").reserved_nodes}
        assert len(kept) == 1, "room is kept for it on nodes of one model"
        assert told.code == "Reserved"
        cluster.exit("on-b2" if kept == {"Xeon"} else "on-a2", "completed")
        assert models_of(cluster, "gang") == kept
        assert cluster.job("gang").cpu_model in kept


def test_others_leave_for_a_strict_gang_on_one_model_only() -> None:
    cluster = Cluster()
    for name, model in (("a1", "EPYC"), ("b1", "Xeon"), ("b2", "Xeon")):
        join(cluster, name, model)
        cluster.submit(spec(2000), f"on-{name}")
        cluster.settle()
        cluster.start(f"on-{name}")
        cluster.advance(100)
    cluster.save("on-a1", 1)
    cluster.submit(strict(2, priority=5), "gang")
    cluster.settle()
    assert [cluster.stage(f"on-{name}") for name in ("a1", "b1", "b2")] == ["running", "preempting", "preempting"]


def test_nodes_whose_model_is_not_known_are_like_no_other() -> None:
    cluster = Cluster()
    for name in ("n1", "n2"):
        join(cluster, name, "")
    cluster.submit(strict(2), "gang")
    cluster.advance(10)
    assert cluster.stage("gang") == "pending"
    big = spec(1000, gang=2, determinism="strict")
    cluster.submit(big, "on-one")
    cluster.settle()
    assert len({member.node for member in cluster.members("on-one")}) == 1


def test_one_that_ran_before_policy_2_keeps_its_model_when_its_node_joins_again() -> None:
    cluster = Cluster(policy=1)
    for name, model in (("n1", "EPYC"), ("x1", "Xeon")):
        join(cluster, name, model)
    for job, determinism in (("job", "strict"), ("free", "relaxed")):
        cluster.submit(spec(1000, determinism=determinism), job)
        cluster.settle()
        cluster.start(job)
    assert {cluster.members(job)[0].node for job in ("job", "free")} == {"n1"}
    taken = e.PolicyChanged(id="2", at_ns=cluster.now, policy=2, parameters=cluster.state.header.parameters)
    cluster.append("scheduler", cluster.leader, taken)
    assert cluster.job("job").cpu_model == "", "its node's model was not recorded"
    held = [e.HeldSandbox(job=job, attempt=1, rank=0) for job in ("job", "free")]
    cluster.node("n1", 2000, memory=8192, incarnation=2, held=held, cpu_model="EPYC")
    assert [cluster.job(job).cpu_model for job in ("job", "free")] == ["EPYC", ""]


def test_a_later_policy_keeps_what_is_known_already() -> None:
    cluster = Cluster()
    join(cluster, "n1", "EPYC")
    cluster.submit(spec(1000, determinism="strict"), "job")
    cluster.settle()
    cluster.start("job")
    cluster.job("job").cpu_model = ""  # as a job has it that ran before its node's model was known
    again = e.PolicyChanged(id="again", at_ns=cluster.now, policy=2, parameters=cluster.state.header.parameters)
    cluster.append("scheduler", cluster.leader, again)
    assert cluster.job("job").cpu_model == "EPYC"
