"""What is recorded beside the life of a job: progress, slowness, failures of nodes, when things last moved.

What facts of policy 1's histories could tell already is recorded from policy 2 on: their digests were taken without it.
"""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.state import FAILURES_KEPT, HINTS_KEPT, NodeFailure

from tests.support.cluster import SECOND, Cluster, spec


def a_cluster(policy: int, gang: int = 1) -> Cluster:
    """The job `j` runs, placed by policy 1, and the policy of the test is in force."""
    cluster = Cluster()
    cluster.node("n1", 2000)
    cluster.submit(spec(500, gang=gang), "j")
    cluster.settle()
    cluster.start("j")
    decide(cluster, e.PolicyChanged, policy=policy, parameters={})
    return cluster


@pytest.fixture
def cluster() -> Cluster:
    return a_cluster(2)


def decide(cluster: Cluster, kind: type[e.Event], **fields: Any) -> None:
    event = kind(id=f"{kind.__name__}-{len(cluster.frames)}", at_ns=cluster.now, **fields)
    cluster.append("scheduler", cluster.leader, event)  # type: ignore[arg-type]


def about(cluster: Cluster) -> dict[str, Any]:
    return {"tenant": "t", "job": "j", "revision": cluster.job("j").revision}


def leave(cluster: Cluster) -> None:
    """The job is asked to leave, leaves, and waits."""
    request = {"grace_seconds": 5, "deadline_ns": cluster.now + 5 * SECOND, "for_job": "other"}
    decide(cluster, e.PreemptRequested, **about(cluster), attempt=1, **request)
    fact(cluster, e.SandboxExited, outcome="suspended", acknowledged=True)
    decide(cluster, e.JobSuspended, **about(cluster), attempt=1, acknowledged=True)


def place(cluster: Cluster, attempt: int, resume: e.CheckpointRef | None = None) -> None:
    quota = e.Quota(component="main", cpu_millis=500, memory_mib=512)
    members = (e.MemberPlacement(rank=0, node="n1", incarnation=1, quotas=(quota,)),)
    decide(cluster, e.JobPlaced, **about(cluster), attempt=attempt, members=members, resume=resume)


def fact(cluster: Cluster, kind: Any, rank: int = 0, **fields: Any) -> None:
    cluster.node_fact("j", cluster.members("j")[rank], kind, **fields)


def progress(cluster: Cluster, millis: int, rank: int = 0) -> None:
    fact(cluster, e.ProgressReported, rank, _node=False, progress_millis=millis)


def rate(cluster: Cluster, kind: type[e.StepRateLow | e.StepRateRecovered], attempt: int = 1) -> None:
    event = kind(
        id=f"rate-{len(cluster.frames)}",
        at_ns=cluster.now,
        tenant="t",
        job="j",
        attempt=attempt,
        rate_millis=1,
        target_millis=2,
        window_seconds=3,
    )
    cluster.append("metrics", "m1", event)


# ---- progress ----


def test_progress_is_the_last_word_of_rank_0_and_moves_no_job_on() -> None:
    cluster = a_cluster(2, gang=2)
    job = cluster.job("j")
    before = (job.revision, job.cause)
    progress(cluster, 350)
    assert (job.progress_millis, job.progress_ns, job.revision, job.cause) == (350, cluster.now, *before)
    progress(cluster, 900, rank=1)
    assert job.progress_millis == 350
    progress(cluster, 300)
    assert job.progress_millis == 300, "it may have gone back to a checkpoint"
    for absurd in (-1, 1001):
        progress(cluster, absurd)
        assert job.progress_millis == 300


def test_progress_is_kept_where_the_next_attempt_goes_on_and_not_where_it_begins_anew(cluster: Cluster) -> None:
    progress(cluster, 350)
    cluster.save("j", 35)
    checkpoint = cluster.job("j").newest_checkpoint
    leave(cluster)
    assert cluster.job("j").progress_millis == 350
    place(cluster, 2, resume=checkpoint)
    assert cluster.job("j").progress_millis == 350
    leave(cluster)
    place(cluster, 3)
    assert (cluster.job("j").progress_millis, cluster.job("j").progress_ns) == (0, 0)


def test_progress_of_another_attempt_is_void(cluster: Cluster) -> None:
    late = e.ProgressReported(id="late", at_ns=cluster.now, tenant="t", job="j", attempt=7, rank=0, progress_millis=500)
    cluster.append("node", "n1", late)
    assert cluster.job("j").progress_millis == 0


# ---- step rate ----


def test_a_job_is_slow_until_it_recovers_or_its_attempt_ends(cluster: Cluster) -> None:
    job = cluster.job("j")
    revision = job.revision
    rate(cluster, e.StepRateLow)
    assert (job.slow, job.revision, job.cause) == (True, revision, f"{len(cluster.frames)}.0")
    rate(cluster, e.StepRateRecovered)
    assert not job.slow
    rate(cluster, e.StepRateLow)
    leave(cluster)
    assert not job.slow
    rate(cluster, e.StepRateLow)
    assert not job.slow, "it waits"
    place(cluster, 2)
    rate(cluster, e.StepRateLow, attempt=1)
    assert not job.slow, "of an earlier attempt"


# ---- nodes ----


def test_a_node_says_where_it_stands_and_what_it_is(cluster: Cluster) -> None:
    join(cluster)
    node = cluster.state.nodes["n2"]
    assert (node.rack, node.switch, node.cpu_model, node.isa) == ("r1", "s1", "EPYC", "x86-64-v3")


def join(cluster: Cluster, name: str = "n2") -> None:
    joined = e.NodeJoined(
        id=f"join-{name}",
        at_ns=cluster.now,
        node=name,
        incarnation=1,
        capacity=Resources(1000, 1024),
        levels=("trusted",),
        cpu_model="EPYC",
        isa="x86-64-v3",
        rack="r1",
        switch="s1",
    )
    cluster.append("node", name, joined)


def failures(cluster: Cluster, node: str = "n1") -> list[NodeFailure]:
    return cluster.state.nodes[node].failures


@pytest.mark.parametrize(("outcome", "blamed"), [("failed", 1), ("lost", 1), ("stopped", 0), ("completed", 0)])
def test_a_node_is_blamed_for_what_failed_or_was_lost_there(cluster: Cluster, outcome: str, blamed: int) -> None:
    fact(cluster, e.SandboxExited, outcome=outcome)
    assert failures(cluster) == [NodeFailure("j", 1, cluster.now)] * blamed


def test_a_node_is_blamed_for_what_it_refused() -> None:
    cluster = a_cluster(2)
    leave(cluster)
    place(cluster, 2)
    fact(cluster, e.PlacementRejected, reason=e.Reason(code="NoRoom"))
    assert failures(cluster) == [NodeFailure("j", 2, cluster.now)]


def test_a_gang_blames_a_node_once_and_only_for_who_fell_first() -> None:
    cluster = a_cluster(2, gang=3)
    fact(cluster, e.SandboxExited, 1, outcome="failed")
    fact(cluster, e.SandboxExited, 2, outcome="lost")
    assert len(failures(cluster)) == 1
    other = a_cluster(2, gang=3)
    fact(other, e.SandboxExited, 1, outcome="stopped")
    fact(other, e.SandboxExited, 2, outcome="failed")
    assert failures(other) == [], "its failure is the consequence of the other's end"


def test_a_node_that_loses_its_members_is_blamed_and_remembers_it_over_its_restart(cluster: Cluster) -> None:
    cluster.node("n1", 2000, incarnation=2)
    assert failures(cluster) == [NodeFailure("j", 1, cluster.now, with_node=True)]
    gone = a_cluster(2)
    gone.silence("n1")
    decide(gone, e.NodeLost, node="n1", incarnation=1)
    assert failures(gone) == [NodeFailure("j", 1, gone.now, with_node=True)]
    gone.node("n1", 2000, incarnation=2)
    assert failures(gone) == [NodeFailure("j", 1, gone.now, with_node=True)]


def test_failures_are_bounded_and_forgotten_on_an_operators_word(cluster: Cluster) -> None:
    leave(cluster)
    for attempt in range(2, FAILURES_KEPT + 5):
        place(cluster, attempt)
        fact(cluster, e.SandboxExited, outcome="failed")
        decide(cluster, e.JobRequeued, **about(cluster), attempt=attempt, outcome="failed", not_before_ns=0)
    assert [failure.attempt for failure in failures(cluster)] == list(range(5, FAILURES_KEPT + 5))
    resumed = e.NodeResumeRequested(id="r", at_ns=cluster.now, actor="ada", node="n1")
    cluster.append("gateway", "g1", resumed)
    assert failures(cluster) == []


def test_a_hint_is_remembered_once_bounded_and_until_the_agent_joins_again(cluster: Cluster) -> None:
    for image in ("a", "b", "a"):
        decide(cluster, e.ImagePrefetchHinted, node="n1", image=image)
    assert cluster.state.nodes["n1"].hinted == ["a", "b"]
    for number in range(HINTS_KEPT):
        decide(cluster, e.ImagePrefetchHinted, node="n1", image=f"i{number}")
    assert cluster.state.nodes["n1"].hinted == [f"i{number}" for number in range(HINTS_KEPT)]
    cluster.node("n1", 2000, incarnation=2)
    assert cluster.state.nodes["n1"].hinted == []


# ---- when things last moved ----


def test_a_job_knows_when_it_last_left_because_it_was_asked_to(cluster: Cluster) -> None:
    fact(cluster, e.SandboxExited, outcome="suspended", acknowledged=True)
    decide(cluster, e.JobSuspended, **about(cluster), attempt=1, acknowledged=True)
    assert cluster.job("j").suspended_ns == 0, "it left by itself"
    place(cluster, 2)
    cluster.now += SECOND
    leave_at = cluster.now
    request = {"grace_seconds": 5, "deadline_ns": cluster.now, "for_job": "other"}
    decide(cluster, e.PreemptRequested, **about(cluster), attempt=2, **request)
    decide(cluster, e.JobRequeued, **about(cluster), attempt=2, outcome="lost", not_before_ns=0)
    assert cluster.job("j").suspended_ns == leave_at


def test_a_member_knows_when_it_was_last_resized(cluster: Cluster) -> None:
    resize(cluster)
    assert cluster.members("j")[0].resized_ns == cluster.now
    leave(cluster)
    place(cluster, 2)
    assert cluster.members("j")[0].resized_ns == 0


def resize(cluster: Cluster) -> None:
    quota = e.Quota(component="main", cpu_millis=600, memory_mib=512)
    decide(cluster, e.QuotaChanged, **about(cluster), attempt=1, rank=0, quotas=(quota,))


def test_a_job_knows_when_its_newest_checkpoint_was_saved(cluster: Cluster) -> None:
    saved = cluster.save("j", 10)
    at_ns = cluster.now
    cluster.now += SECOND
    cluster.save("j", 5)
    assert cluster.job("j").saved_ns == at_ns, "an older one came late"
    broken = e.CheckpointFailed(
        id="broken",
        at_ns=cluster.now,
        tenant="t",
        job="j",
        attempt=1,
        stage="verify",
        reason=e.Reason(code="BadHash"),
        checkpoint_id=saved,
    )
    cluster.append("checkpoint", "c1", broken)
    assert cluster.job("j").saved_ns == 0, "nobody knows when the one before was"


def test_reserved_room_is_expected_until_it_is_given_back_or_taken(cluster: Cluster) -> None:
    leave(cluster)
    decide(cluster, e.RoomReserved, **about(cluster), nodes=("n1",), start_by_ns=77)
    assert cluster.job("j").reserved_start_ns == 77
    decide(cluster, e.RoomReserved, **about(cluster), nodes=(), start_by_ns=88)
    assert cluster.job("j").reserved_start_ns == 0
    decide(cluster, e.RoomReserved, **about(cluster), nodes=("n1",), start_by_ns=99)
    place(cluster, 2)
    assert cluster.job("j").reserved_start_ns == 0


def test_why_a_job_leaves_is_the_reason_that_was_given(cluster: Cluster) -> None:
    request = {"grace_seconds": 5, "deadline_ns": cluster.now, "for_job": ""}
    reasons = (e.Reason(code="NodeDrained", detail="free text that the state does not keep"),)
    decide(cluster, e.PreemptRequested, **about(cluster), attempt=1, reasons=reasons, **request)
    assert cluster.job("j").stop_reason == "NodeDrained"


# ---- policy 1 ----


def test_policy_1_records_none_of_what_its_histories_were_digested_without() -> None:
    cluster = a_cluster(1)
    rate(cluster, e.StepRateLow)
    resize(cluster)
    cluster.save("j", 10)
    request = {"grace_seconds": 5, "deadline_ns": cluster.now, "for_job": ""}
    decide(cluster, e.PreemptRequested, **about(cluster), attempt=1, reasons=(e.Reason(code="NodeShrank"),), **request)
    job = cluster.job("j")
    assert (job.slow, job.members[0].resized_ns, job.saved_ns) == (False, 0, 0)
    assert job.stop_reason == "its node became smaller"
    fact(cluster, e.SandboxExited, outcome="lost")
    decide(cluster, e.JobSuspended, **about(cluster), attempt=1, acknowledged=False)
    assert (job.suspended_ns, failures(cluster)) == (0, [])
    join(cluster)
    node = cluster.state.nodes["n2"]
    assert (node.cpu_model, node.isa) == ("", "")
