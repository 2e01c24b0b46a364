"""A job that resumes goes to the node that its checkpoint lies on, if that is as good as any other."""

from __future__ import annotations

import msgspec
import pytest
from tidegate_events import events as e

from tests.scheduler.elastic.lab import elastic, leave, nodes_of, run
from tests.support.cluster import SECOND, Cluster, spec


def nodes(*names: str, cpu: int = 4000) -> Cluster:
    cluster = elastic()
    for name in names:
        cluster.node(name, cpu)
    return cluster


def suspend(cluster: Cluster, job: str) -> None:
    """The job saves and leaves, and is held."""
    cluster.ask(e.SuspendRequested, job)
    cluster.settle()
    leave(cluster, job)
    assert cluster.stage(job) == "suspended"


def resume(cluster: Cluster, job: str) -> list[str]:
    """Return where the job goes when it is let go."""
    cluster.ask(e.ResumeRequested, job)
    cluster.settle()
    assert cluster.stage(job) == "placed"
    return nodes_of(cluster, job)


def saved_on_n3(cluster: Cluster) -> None:
    """A job that ran on n3, where its checkpoint is, is held, and all nodes are whole again."""
    for name in ("n1", "n2"):
        cluster.ask(e.NodeDrainRequested, node=name, deadline_ns=cluster.now + 600 * SECOND)
    run(cluster, "j", spec(1000))
    cluster.save("j", 7)
    assert cluster.job("j").saved_on == "n3"
    suspend(cluster, "j")
    for name in ("n1", "n2"):
        cluster.ask(e.NodeResumeRequested, node=name)
    cluster.settle()


def test_of_nodes_that_are_as_good_it_takes_that_of_its_checkpoint() -> None:
    cluster = nodes("n1", "n2", "n3")
    saved_on_n3(cluster)
    run(cluster, "other", spec(4000))
    assert nodes_of(cluster, "other") == ["n1"], "who has no checkpoint takes the first by name"
    assert resume(cluster, "j") == ["n3"]


def test_what_breaks_up_a_whole_node_is_never_taken_for_a_checkpoint() -> None:
    cluster = nodes("n1", "n2", "n3")
    saved_on_n3(cluster)
    run(cluster, "begun", spec(500))
    assert nodes_of(cluster, "begun") == ["n1"]
    assert resume(cluster, "j") == ["n1"]


@pytest.mark.parametrize("gone", ["drained", "lost", "refused"])
def test_where_its_node_takes_nobody_it_goes_elsewhere(gone: str) -> None:
    cluster = nodes("n1", "n2", "n3")
    saved_on_n3(cluster)
    if gone == "drained":
        cluster.ask(e.NodeDrainRequested, node="n3", deadline_ns=cluster.now + 600 * SECOND)
    elif gone == "lost":
        cluster.silence("n3")
        cluster.advance(10_000)
    else:
        assert resume(cluster, "j") == ["n3"]
        cluster.reject("j")
        cluster.advance(600)
        assert nodes_of(cluster, "j") == ["n1"]
        return
    cluster.settle()
    assert resume(cluster, "j") == ["n1"]


def test_a_gang_that_resumes_has_rank_0_where_it_saved() -> None:
    cluster = elastic()
    for name in ("n1", "n2", "n3", "n4"):
        cluster.node(name, 1000, switch="s1" if name in ("n1", "n2") else "s2")
    run(cluster, "first", spec(1000, gang=2, communication="intensive"))
    run(cluster, "gang", spec(1000, gang=2, communication="intensive"))
    assert nodes_of(cluster, "gang") == ["n3", "n4"]
    cluster.save("gang", 5)
    suspend(cluster, "gang")
    suspend(cluster, "first")
    assert cluster.job("gang").saved_on == "n3"
    assert resume(cluster, "gang") == ["n3", "n4"], "that switch is as good as the first by name"


def test_the_first_rank_of_a_loose_gang_returns_to_its_checkpoint() -> None:
    cluster = nodes("n1", "n2", "n3", cpu=1000)
    run(cluster, "one", spec(1000))
    run(cluster, "gang", spec(1000, gang=2))
    assert nodes_of(cluster, "gang") == ["n2", "n3"]
    cluster.save("gang", 5)
    suspend(cluster, "gang")
    suspend(cluster, "one")
    assert resume(cluster, "gang") == ["n2", "n1"]


def test_a_job_whose_newest_checkpoint_is_broken_goes_where_the_one_before_is() -> None:
    cluster = nodes("n1")
    run(cluster, "j", spec(1000))
    cluster.save("j", 1)
    broken = cluster.save("j", 2)
    member = cluster.members("j")[0]
    reason = e.Reason(code="WrongHash")
    failed = {"stage": "verify", "reason": reason, "checkpoint_id": broken, "_node": False}
    cluster.node_fact("j", member, _without_rank, **failed)
    assert (cluster.job("j").saved_on, cluster.job("j").saved_ns) == ("n1", 0), "of the same attempt, so there"
    suspend(cluster, "j")
    cluster.node("n2", 4000)
    cluster.ask(e.NodeDrainRequested, node="n1", deadline_ns=cluster.now + 600 * SECOND)
    cluster.settle()
    assert resume(cluster, "j") == ["n2"]
    cluster.start("j")
    newest = cluster.save("j", 3)
    assert cluster.job("j").saved_on == "n2"
    cluster.node_fact("j", cluster.members("j")[0], _without_rank, **(failed | {"checkpoint_id": newest}))
    assert cluster.job("j").saved_on == "", "that of another attempt is where nobody noted"


def test_a_checkpoint_in_a_tier_that_nodes_share_is_near_to_none() -> None:
    cluster = nodes("n1")
    run(cluster, "j", spec(1000))
    checkpoint = e.CheckpointRef(id="c1", step=1, attempt=1, directory="1")
    cluster.node_fact("j", cluster.members("j")[0], e.CheckpointSaved, checkpoint=checkpoint, tier="warm")
    assert cluster.job("j").saved_on == ""
    assert cluster.job("j").newest_checkpoint == checkpoint


def test_histories_of_policy_1_know_nothing_of_it() -> None:
    cluster = Cluster(policy=1)
    cluster.node("n1")
    run(cluster, "j", spec(1000))
    cluster.save("j", 1)
    assert b"saved_on" not in msgspec.json.encode(cluster.job("j"))


def _without_rank(rank: int, **fields: object) -> e.CheckpointFailed:
    """Return the fact: a checkpoint that could not be read is of its attempt, and of no rank."""
    return e.CheckpointFailed(**fields)  # type: ignore[arg-type]
