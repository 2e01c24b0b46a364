"""What operators ask for, fact by fact: what it changes, which decisions it voids, and when it is void itself."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.contract import CONTRACT, may_say
from tidegate_events.frame import Writer
from tidegate_events.resources import Resources
from tidegate_scheduler import operations
from tidegate_scheduler.policy.limits import time_limit_seconds
from tidegate_scheduler.state import MAINTENANCE_MAX, Maintenance, Queue, State

from tests.support.cluster import SECOND, Cluster, spec

ASKED: dict[str, Any] = {"actor": "ada"}
OF_A_JOB: list[type[e.JobEvent]] = [
    e.HoldRequested,
    e.ReleaseRequested,
    e.SuspendRequested,
    e.ResumeRequested,
    e.RequeueRequested,
]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.node("n1", 2000)
    made.submit(spec(1500, priority=1), "j")
    return made


def ask(cluster: Cluster, kind: type[e.Event], **fields: Any) -> None:
    """An operator asks for something, of the job `j` where it is about a job."""
    if issubclass(kind, e.JobEvent):
        fields = {"tenant": "t", "job": "j", **fields}
    event = kind(id=f"{kind.__name__}-{len(cluster.frames)}", at_ns=cluster.now, **ASKED, **fields)
    cluster.append("gateway", "g1", event)  # type: ignore[arg-type]


def run(cluster: Cluster) -> None:
    """Let the job `j` run."""
    cluster.settle()
    cluster.start("j")


def decide_preemption(cluster: Cluster, revision: int, **fields: Any) -> None:
    cluster.append(
        "scheduler",
        cluster.leader,
        e.PreemptRequested(
            id=f"preempt-{len(cluster.frames)}",
            at_ns=cluster.now,
            tenant="t",
            job="j",
            revision=revision,
            attempt=1,
            grace_seconds=5,
            deadline_ns=cluster.now + 5 * SECOND,
            for_job="",
            **fields,
        ),
    )


def decide_leaving(cluster: Cluster, kind: type[e.JobSuspended | e.JobRequeued], **fields: Any) -> None:
    """Every member is gone, and the scheduler says what that means."""
    for member in cluster.members("j"):
        if member.active:
            cluster.node_fact("j", member, e.SandboxExited, outcome="suspended", acknowledged=True)
    cluster.append(
        "scheduler",
        cluster.leader,
        kind(
            id=f"left-{len(cluster.frames)}",
            at_ns=cluster.now,
            tenant="t",
            job="j",
            revision=cluster.job("j").revision,
            attempt=1,
            **fields,
        ),
    )


def test_hold_keeps_the_job_until_release_and_voids_what_was_decided_before(cluster: Cluster) -> None:
    revision = cluster.job("j").revision
    ask(cluster, e.HoldRequested)
    assert (cluster.job("j").held, cluster.job("j").revision) == (True, revision + 1)
    assert cluster.job("j").cause == f"{len(cluster.frames)}.0"
    ask(cluster, e.HoldRequested)
    assert cluster.job("j").revision == revision + 1, "it was held already"
    ask(cluster, e.ReleaseRequested)
    assert (cluster.job("j").held, cluster.job("j").revision) == (False, revision + 1)
    assert cluster.job("j").cause == f"{len(cluster.frames)}.0"


def test_a_hold_that_races_a_placement_wins(cluster: Cluster) -> None:
    before = cluster.job("j").revision
    ask(cluster, e.HoldRequested)
    placement = e.MemberPlacement(
        rank=0,
        node="n1",
        incarnation=1,
        quotas=(e.Quota(component="main", cpu_millis=1500, memory_mib=512),),
    )
    placed = e.JobPlaced(
        id="late", at_ns=cluster.now, tenant="t", job="j", revision=before, attempt=1, members=(placement,)
    )
    cluster.append("scheduler", cluster.leader, placed)
    assert cluster.stage("j") == "pending"


def test_a_running_job_goes_on_when_it_is_held_and_stays_held_afterwards(cluster: Cluster) -> None:
    run(cluster)
    ask(cluster, e.HoldRequested)
    assert cluster.stage("j") == "running"
    decide_preemption(cluster, cluster.job("j").revision)
    decide_leaving(cluster, e.JobSuspended, acknowledged=True)
    assert (cluster.stage("j"), cluster.job("j").held) == ("suspended", True)


def test_a_waiting_job_that_is_suspended_is_held_at_once(cluster: Cluster) -> None:
    revision = cluster.job("j").revision
    ask(cluster, e.SuspendRequested)
    job = cluster.job("j")
    assert (job.held, job.suspend_requested, job.revision) == (True, False, revision + 1)
    ask(cluster, e.SuspendRequested)
    assert job.revision == revision + 1


@pytest.mark.parametrize("kind", [e.JobSuspended, e.JobRequeued])
def test_a_running_job_that_is_suspended_is_held_however_it_leaves(
    cluster: Cluster, kind: type[e.JobSuspended | e.JobRequeued]
) -> None:
    run(cluster)
    revision = cluster.job("j").revision
    ask(cluster, e.SuspendRequested)
    job = cluster.job("j")
    assert (job.held, job.suspend_requested, job.revision) == (False, True, revision + 1)
    more: dict[str, Any] = {"acknowledged": True} if kind is e.JobSuspended else {"outcome": "lost", "not_before_ns": 0}
    decide_leaving(cluster, kind, **more)
    assert (job.held, job.suspend_requested, job.waiting) == (True, False, True)


def test_a_request_to_leave_for_an_operator_holds_and_uses_up_no_budget(cluster: Cluster) -> None:
    run(cluster)
    decide_preemption(cluster, cluster.job("j").revision, hold=True)
    job = cluster.job("j")
    assert (job.stage, job.held, job.preemptions) == ("preempting", True, 0)


def test_resume_ends_hold_and_suspension_and_voids_the_request_that_would_hold_again(cluster: Cluster) -> None:
    run(cluster)
    ask(cluster, e.SuspendRequested)
    decided_at = cluster.job("j").revision
    ask(cluster, e.ResumeRequested)
    decide_preemption(cluster, decided_at, hold=True)
    job = cluster.job("j")
    assert (job.stage, job.held, job.suspend_requested) == ("running", False, False)
    ask(cluster, e.ResumeRequested)
    assert job.revision == decided_at + 1, "there was nothing to end"


def test_a_job_resumed_while_it_leaves_is_not_held_afterwards(cluster: Cluster) -> None:
    run(cluster)
    ask(cluster, e.SuspendRequested)
    decide_preemption(cluster, cluster.job("j").revision, hold=True)
    ask(cluster, e.ResumeRequested)
    decide_leaving(cluster, e.JobSuspended, acknowledged=True)
    assert (cluster.stage("j"), cluster.job("j").held) == ("suspended", False)


def test_release_does_not_end_a_suspension_under_way(cluster: Cluster) -> None:
    run(cluster)
    ask(cluster, e.HoldRequested)
    ask(cluster, e.SuspendRequested)
    ask(cluster, e.ReleaseRequested)
    assert (cluster.job("j").held, cluster.job("j").suspend_requested) == (False, True)


def test_requeue_asks_once_is_over_when_the_job_waits_and_means_nothing_to_a_waiting_one(cluster: Cluster) -> None:
    revision = cluster.job("j").revision
    ask(cluster, e.RequeueRequested)
    assert (cluster.job("j").requeue_requested, cluster.job("j").revision) == (False, revision)
    run(cluster)
    revision = cluster.job("j").revision
    for _ in range(2):
        ask(cluster, e.RequeueRequested)
    assert (cluster.job("j").requeue_requested, cluster.job("j").revision) == (True, revision + 1)
    decide_leaving(cluster, e.JobRequeued, outcome="suspended", not_before_ns=0)
    assert (cluster.job("j").requeue_requested, cluster.job("j").held) == (False, False)


def test_priority_and_limit_count_at_once_and_void_nothing(cluster: Cluster) -> None:
    run(cluster)
    revision = cluster.job("j").revision
    ask(cluster, e.JobPriorityChanged, priority=7)
    ask(cluster, e.JobLimitChanged, time_limit_seconds=90)
    job = cluster.job("j")
    assert (job.priority, job.revision) == (7, revision)
    assert time_limit_seconds(job, cluster.state.specs[job.id]) == 90
    assert job.cause == f"{len(cluster.frames)}.0"


def test_a_limit_can_be_set_and_taken_away_whatever_the_job_asked_for() -> None:
    cluster = Cluster()
    cluster.submit(spec(time_limit_seconds=60), "j")
    job = cluster.job("j")
    assert time_limit_seconds(job, cluster.state.specs[job.id]) == 60
    ask(cluster, e.JobLimitChanged, time_limit_seconds=None)
    assert time_limit_seconds(job, cluster.state.specs[job.id]) is None
    ask(cluster, e.JobLimitChanged, time_limit_seconds=30)
    assert time_limit_seconds(job, cluster.state.specs[job.id]) == 30


@pytest.mark.parametrize("kind", OF_A_JOB)
def test_nothing_can_be_asked_of_a_job_that_ended_or_never_was(cluster: Cluster, kind: type[e.JobEvent]) -> None:
    run(cluster)
    cluster.exit("j", "completed")
    assert cluster.stage("j") == "completed"
    for job in ("j", "unheard-of"):
        before = _but_writers(cluster.state)
        ask(cluster, kind, job=job)
        assert _but_writers(cluster.state) == before


def test_a_queue_is_set_as_a_whole(cluster: Cluster) -> None:
    guaranteed, ceiling = Resources(1000, gpus=1), Resources(4000)
    ask(cluster, e.QueueChanged, tenant="lab", weight=3, guaranteed=guaranteed, ceiling=ceiling)
    assert cluster.state.queues == {"lab": Queue("lab", 3, guaranteed, ceiling)}
    ask(cluster, e.QueueChanged, tenant="lab", stopped=True)
    assert cluster.state.queues == {"lab": Queue("lab", 1, None, None, True)}
    ask(cluster, e.QueueChanged, tenant="lab", weight=0)
    assert cluster.state.queues["lab"].weight == 1, "shares are divided by it"


def test_a_drain_and_a_cordon_outlive_the_agent_and_end_with_resume(cluster: Cluster) -> None:
    ask(cluster, e.NodeDrainRequested, node="n1", deadline_ns=cluster.now)
    _cordon(cluster, incarnation=1)
    cluster.node("n1", 2000, incarnation=2)
    node = cluster.state.nodes["n1"]
    assert (node.incarnation, node.drain_deadline_ns, node.cordoned) == (2, cluster.now, True)
    ask(cluster, e.NodeResumeRequested, node="n1")
    assert (node.drain_deadline_ns, node.cordoned) == (0, False)


def test_a_drain_that_names_no_time_is_still_a_drain(cluster: Cluster) -> None:
    ask(cluster, e.NodeDrainRequested, node="n1", deadline_ns=0)
    assert cluster.state.nodes["n1"].drain_deadline_ns > 0


def test_a_cordon_is_of_one_incarnation(cluster: Cluster) -> None:
    _cordon(cluster, incarnation=7)
    assert not cluster.state.nodes["n1"].cordoned


@pytest.mark.parametrize("kind", [e.NodeDrainRequested, e.NodeResumeRequested])
def test_nothing_can_be_asked_of_a_node_that_never_joined(cluster: Cluster, kind: type[e.Event]) -> None:
    before = _but_writers(cluster.state)
    ask(cluster, kind, node="n9", **({"deadline_ns": 1} if kind is e.NodeDrainRequested else {}))
    assert _but_writers(cluster.state) == before


def plan(cluster: Cluster, name: str, start_ns: int, end_ns: int, nodes: tuple[str, ...] = ("n1",)) -> None:
    ask(cluster, e.MaintenancePlanned, name=name, nodes=nodes, start_ns=start_ns, end_ns=end_ns)


def test_maintenance_is_planned_replanned_and_cancelled(cluster: Cluster) -> None:
    plan(cluster, "m", 10, 20, ("n1", "not-there-yet"))
    assert cluster.state.maintenance == {"m": Maintenance("m", ("n1", "not-there-yet"), 10, 20)}
    plan(cluster, "m", 30, 40)
    assert cluster.state.maintenance == {"m": Maintenance("m", ("n1",), 30, 40)}
    ask(cluster, e.MaintenanceCancelled, name="another")
    assert set(cluster.state.maintenance) == {"m"}
    ask(cluster, e.MaintenanceCancelled, name="m")
    assert cluster.state.maintenance == {}


@pytest.mark.parametrize(("start_ns", "end_ns", "nodes"), [(10, 10, ("n1",)), (20, 10, ("n1",)), (10, 20, ())])
def test_maintenance_of_no_time_or_no_node_is_none(
    cluster: Cluster, start_ns: int, end_ns: int, nodes: tuple[str, ...]
) -> None:
    plan(cluster, "m", start_ns, end_ns, nodes)
    assert cluster.state.maintenance == {}


def test_windows_are_bounded_and_those_that_ended_first_make_room(cluster: Cluster) -> None:
    over = cluster.now - 10 * SECOND
    for number in range(MAINTENANCE_MAX):
        ended = over + number if number < 3 else cluster.now + SECOND
        plan(cluster, f"m{number}", over - SECOND, ended)
    assert len(cluster.state.maintenance) == MAINTENANCE_MAX, "those that are over stay while there is room"
    plan(cluster, "m7", over, cluster.now + 2 * SECOND)
    assert len(cluster.state.maintenance) == MAINTENANCE_MAX, "one of a known name needs no room"
    for number in range(3):
        plan(cluster, f"new{number}", over, cluster.now + SECOND)
        assert f"m{number}" not in cluster.state.maintenance
        assert len(cluster.state.maintenance) == MAINTENANCE_MAX
    plan(cluster, "too-many", over, cluster.now + SECOND)
    assert "too-many" not in cluster.state.maintenance


def test_every_request_of_an_operator_has_its_rule_and_only_the_gateway_may_say_it() -> None:
    rows = [row for row in CONTRACT if "note" in row.kind.__struct_fields__]
    assert {row.kind for row in rows} == set(operations.RULES)
    assert {row.writer for row in rows} == {"gateway"}


def test_nobody_else_asks_in_an_operators_name(cluster: Cluster) -> None:
    drain = e.NodeDrainRequested(id="x", at_ns=1, actor="n1", node="n1", deadline_ns=1)
    assert may_say(Writer("gateway", "g1", 1, 0), drain)
    for service in ("node", "scheduler", "metrics", "checkpoint", "keeper"):
        assert not may_say(Writer(service, "n1", 1, 0), drain)  # type: ignore[arg-type]
    cluster.append("node", "n1", drain)
    assert cluster.state.nodes["n1"].drain_deadline_ns == 0


def _cordon(cluster: Cluster, incarnation: int) -> None:
    reason = e.Reason(code="KeepsFailing")
    cordoned = e.NodeCordoned(
        id=f"cordon-{len(cluster.frames)}", at_ns=cluster.now, node="n1", incarnation=incarnation, reasons=(reason,)
    )
    cluster.append("scheduler", cluster.leader, cordoned)


def _but_writers(state: State) -> list[str]:
    """Return all that is known but who wrote how much."""
    tables = (state.header, state.jobs, state.finished, state.nodes, state.queues, state.maintenance)
    return [repr(table) for table in tables]
