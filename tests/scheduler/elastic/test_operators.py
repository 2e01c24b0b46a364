"""What operators ask of policy 2: hold and release, suspend and resume, requeue, drains, and maintenance windows."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.barred import Barred
from tidegate_scheduler.policy.elastic.pipeline import index_of

from tests.scheduler.elastic.lab import HOUR, asked_to_leave, complete, elastic, kinds, leave, nodes_of, of, run
from tests.support.cluster import SECOND, Cluster, spec


def one_node(cpu: int = 2000) -> Cluster:
    cluster = elastic()
    cluster.node("n1", cpu)
    return cluster


def test_a_held_job_waits_and_the_others_pass() -> None:
    cluster = one_node()
    cluster.submit(spec(2000), "first")
    cluster.submit(spec(2000), "second")
    cluster.ask(e.HoldRequested, "first")
    cluster.settle()
    assert [cluster.stage(job) for job in ("first", "second")] == ["pending", "placed"]
    assert cluster.waiting["first"].code == "Held"
    cluster.ask(e.ReleaseRequested, "first")
    complete(cluster, "second")
    assert cluster.stage("first") == "placed"


def test_what_is_kept_for_a_job_is_given_up_when_it_is_held_cancelled_or_its_queue_stops() -> None:
    for end in ("hold", "cancel", "stop"):
        cluster = one_node()
        run(cluster, "runs", spec(1500))
        cluster.submit(spec(2000, priority=1), "blocked")
        cluster.submit(spec(500, tenant="other"), "small")
        cluster.settle()
        assert (cluster.job("blocked").reserved_nodes, cluster.stage("small")) == (("n1",), "pending")
        if end == "hold":
            cluster.ask(e.HoldRequested, "blocked")
        elif end == "cancel":
            cluster.cancel("blocked")
        else:
            cluster.ask(e.QueueChanged, tenant="t", stopped=True)
        cluster.settle()
        assert cluster.stage("small") == "placed", end
        if end != "cancel":
            assert cluster.job("blocked").reserved_nodes == (), end


def test_suspend_lets_a_job_save_and_leave_and_resume_brings_it_back_where_it_was() -> None:
    cluster = one_node()
    run(cluster, "j", spec(2000, grace=40))
    cluster.ask(e.SuspendRequested, "j")
    (asked,) = of(cluster.settle(), e.PreemptRequested)
    assert (asked.hold, asked.for_job, asked.grace_seconds) == (True, "", 40)
    assert asked.reasons[0].code == "SuspendRequested"
    saved = cluster.save("j", 8)
    leave(cluster, "j")
    assert (cluster.stage("j"), cluster.waiting["j"].code, cluster.job("j").preemptions) == ("suspended", "Held", 0)
    assert cluster.advance(HOUR) == []
    cluster.ask(e.ResumeRequested, "j")
    assert kinds(cluster.settle()) == ["JobPlaced"]
    assert cluster.job("j").resumed_from.id == saved  # type: ignore[union-attr]


def test_requeue_lets_a_job_leave_and_wait_again() -> None:
    cluster = one_node()
    run(cluster, "j", spec(2000))
    cluster.ask(e.RequeueRequested, "j")
    (asked,) = of(cluster.settle(), e.PreemptRequested)
    assert (asked.hold, asked.reasons[0].code) == (False, "RequeueRequested")
    assert kinds(leave(cluster, "j")) == ["JobSuspended", "JobPlaced"]
    assert cluster.job("j").attempt == 2


def test_a_priority_that_an_operator_raises_preempts_and_one_that_is_lowered_yields() -> None:
    cluster = one_node()
    run(cluster, "runs", spec(2000, priority=5))
    cluster.submit(spec(2000, priority=5), "waits")
    assert asked_to_leave(cluster.settle()) == {}
    cluster.ask(e.JobPriorityChanged, "waits", priority=6)
    assert asked_to_leave(cluster.settle()) == {"runs": "waits"}
    other = one_node()
    run(other, "runs", spec(2000, priority=5))
    other.submit(spec(2000, priority=5), "waits")
    other.settle()
    other.ask(e.JobPriorityChanged, "runs", priority=4)
    other.now += SECOND
    other.submit(spec(100), "anything that starts a pass")
    assert asked_to_leave(other.settle()) == {"runs": "waits"}


def test_a_limit_that_an_operator_sets_ends_a_running_job_and_one_that_is_taken_away_does_not() -> None:
    cluster = one_node()
    run(cluster, "j", spec(2000, time_limit_seconds=100))
    cluster.ask(e.JobLimitChanged, "j", time_limit_seconds=None)
    assert cluster.advance(200) == []
    cluster.ask(e.JobLimitChanged, "j", time_limit_seconds=300)
    assert cluster.settle() == []
    assert cluster.wake_at == cluster.now + 100 * SECOND
    (stop,) = of(cluster.advance(100), e.StopRequested)
    assert stop.reasons[0].code == "TimeLimit"


def test_a_drained_node_takes_nothing_and_asks_all_to_leave_but_the_protected_who_leave_by_the_deadline() -> None:
    cluster = one_node(4000)
    run(cluster, "close", spec(1000, grace=30, expected_seconds=1000))
    run(cluster, "far", spec(1000, grace=30, expected_seconds=10_000))
    cluster.advance(850)
    deadline = cluster.now + 120 * SECOND
    cluster.ask(e.NodeDrainRequested, node="n1", deadline_ns=deadline)
    cluster.submit(spec(1000), "new")
    decided = of(cluster.settle(), e.PreemptRequested)
    assert [(event.job, event.reasons[0].code) for event in decided] == [("far", "NodeDrained")]
    assert cluster.stage("new") == "pending"
    assert cluster.wake_at == deadline - 30 * SECOND
    leave(cluster, "far")
    (last,) = of(cluster.advance(90), e.PreemptRequested)
    assert (last.job, last.deadline_ns) == ("close", deadline)
    leave(cluster, "close")
    assert cluster.advance(HOUR) == [], "it is drained until somebody resumes it"
    cluster.ask(e.NodeResumeRequested, node="n1")
    cluster.settle()
    assert {cluster.stage(job) for job in ("close", "far", "new")} == {"placed"}


def test_a_protected_job_that_ends_before_the_deadline_is_never_asked() -> None:
    cluster = one_node()
    run(cluster, "close", spec(1000, expected_seconds=1000))
    cluster.advance(900)
    cluster.ask(e.NodeDrainRequested, node="n1", deadline_ns=cluster.now + 600 * SECOND)
    assert cluster.settle() == []
    cluster.advance(100)
    assert kinds(complete(cluster, "close")) == ["JobCompleted"]


def test_a_drain_gives_up_what_was_kept_there() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 2000)
        run(cluster, f"on-{node}", spec(2000))
    cluster.submit(spec(2000), "blocked")
    cluster.settle()
    (kept,) = cluster.job("blocked").reserved_nodes
    cluster.ask(e.NodeDrainRequested, node=kept, deadline_ns=cluster.now + HOUR * SECOND)
    cluster.settle()
    (now_kept,) = cluster.job("blocked").reserved_nodes
    assert now_kept != kept
    complete(cluster, f"on-{now_kept}")
    assert nodes_of(cluster, "blocked") == [now_kept]


def plan(cluster: Cluster, after_seconds: int, for_seconds: int, *nodes: str) -> int:
    start = cluster.now + after_seconds * SECOND
    cluster.ask(
        e.MaintenancePlanned, name="m", nodes=nodes or ("n1",), start_ns=start, end_ns=start + for_seconds * SECOND
    )
    return start


def test_before_maintenance_only_what_ends_in_time_starts() -> None:
    cluster = one_node()
    plan(cluster, 1000, 500)
    cluster.submit(spec(100), "endless")
    cluster.submit(spec(100, time_limit_seconds=1001), "too-long")
    cluster.submit(spec(100, time_limit_seconds=900), "short")
    cluster.settle()
    assert [cluster.stage(job) for job in ("endless", "too-long", "short")] == ["pending", "pending", "placed"]
    cluster.start("short")
    cluster.exit("short", "completed")
    cluster.advance(1000)
    cluster.submit(spec(100, time_limit_seconds=1), "tiny")
    cluster.settle()
    assert cluster.stage("tiny") == "pending"
    assert cluster.wake_at == cluster.now + 500 * SECOND
    cluster.advance(500)
    assert {cluster.stage(job) for job in ("endless", "too-long", "tiny")} == {"placed"}, "it ends by itself"


def test_long_before_maintenance_nobody_is_kept_from_its_nodes() -> None:
    cluster = one_node()
    start = plan(cluster, 30 * 24 * 3600, 500)
    run(cluster, "endless", spec(100, grace=60))
    assert cluster.stage("endless") == "running"
    assert cluster.wake_at == start - 60 * SECOND, "it is asked to leave in time"
    cluster.submit(spec(100), "late")
    cluster.now = start - 3600 * SECOND
    cluster.settle()
    cluster.submit(spec(100), "too-late")
    cluster.settle()
    assert (cluster.stage("late"), cluster.stage("too-late")) == ("pending", "pending")


def test_jobs_are_asked_to_leave_in_time_for_maintenance() -> None:
    cluster = one_node()
    run(cluster, "j", spec(1000, grace=60))
    start = plan(cluster, 1000, 500)
    assert cluster.settle() == []
    assert cluster.wake_at == start - 60 * SECOND
    assert cluster.advance(939) == []
    (asked,) = of(cluster.advance(1), e.PreemptRequested)
    assert (asked.deadline_ns, asked.reasons[0].code) == (start, "Maintenance")
    leave(cluster, "j")
    assert cluster.stage("j") == "suspended"
    cluster.advance(560)
    assert cluster.stage("j") == "placed"


def test_a_cancelled_window_opens_the_node_at_once_and_other_nodes_were_never_shut() -> None:
    cluster = one_node()
    cluster.node("n2", 1000)
    plan(cluster, 10, 10_000)
    cluster.submit(spec(1500), "large")
    cluster.submit(spec(1000), "small")
    cluster.settle()
    assert (cluster.stage("large"), nodes_of(cluster, "small")) == ("pending", ["n2"])
    cluster.ask(e.MaintenanceCancelled, name="m")
    cluster.settle()
    assert nodes_of(cluster, "large") == ["n1"]


def test_windows_that_overlap_keep_the_node_shut_until_the_last_is_over() -> None:
    cluster = one_node()
    start = cluster.now + 1000 * SECOND
    for name, begin, end in (("m1", 0, 500), ("m2", 200, 900), ("m3", -100, 300)):
        cluster.ask(
            e.MaintenancePlanned,
            name=name,
            nodes=("n1",),
            start_ns=start + begin * SECOND,
            end_ns=start + end * SECOND,
        )
    cluster.submit(spec(100), "endless")
    cluster.submit(spec(100, time_limit_seconds=900), "short")
    cluster.submit(spec(100, time_limit_seconds=901), "into the first")
    cluster.settle()
    assert [cluster.stage(job) for job in ("endless", "short", "into the first")] == ["pending", "placed", "pending"]
    complete(cluster, "short")
    cluster.now = start + 899 * SECOND
    cluster.settle()
    assert cluster.stage("endless") == "pending"
    assert cluster.wake_at == start + 900 * SECOND
    cluster.advance(1)
    assert {cluster.stage(job) for job in ("endless", "into the first")} == {"placed"}


def test_a_window_that_is_moved_asks_jobs_to_leave_at_its_new_time_alone() -> None:
    cluster = one_node()
    run(cluster, "j", spec(1000, grace=60))
    plan(cluster, 1000, 500)
    assert cluster.settle() == []
    moved = plan(cluster, 5000, 500)
    assert cluster.settle() == []
    assert cluster.wake_at == moved - 60 * SECOND
    assert cluster.advance(1500) == []
    cluster.submit(spec(100, time_limit_seconds=3000), "before it")
    cluster.settle()
    assert cluster.stage("before it") == "placed", "nobody is kept out by the time that was"
    cluster.now = moved - 60 * SECOND
    assert set(asked_to_leave(cluster.settle())) == {"j"}


def test_who_comes_later_and_needs_longer_leaves_in_time_for_maintenance_too() -> None:
    cluster = one_node()
    run(cluster, "short", spec(500, grace=10))
    start = plan(cluster, 2 * HOUR, 100)
    cluster.settle()
    assert cluster.wake_at == start - 10 * SECOND
    run(cluster, "long", spec(500, grace=600, time_limit_seconds=10 * HOUR))
    assert cluster.wake_at == start - 600 * SECOND
    assert asked_to_leave(cluster.advance(2 * HOUR - 600)) == {"long": ""}
    leave(cluster, "long")
    assert cluster.wake_at == start - 10 * SECOND
    assert asked_to_leave(cluster.advance(590)) == {"short": ""}


def test_one_whose_limit_was_taken_away_is_asked_to_leave_in_time_for_maintenance() -> None:
    cluster = one_node()
    run(cluster, "j", spec(1000, grace=60, time_limit_seconds=500))
    start = plan(cluster, 1000, 500)
    cluster.settle()
    cluster.ask(e.JobLimitChanged, "j", time_limit_seconds=None)
    cluster.settle()
    assert cluster.wake_at == start - 60 * SECOND
    cluster.now = start - 60 * SECOND
    assert set(asked_to_leave(cluster.settle())) == {"j"}


def test_windows_are_looked_at_once_for_many_jobs_that_are_alike_to_them() -> None:
    cluster = one_node(1000)
    run(cluster, "runs", spec(1000, time_limit_seconds=600))
    plan(cluster, 1000, 500)
    for number in range(5):
        cluster.submit(spec(900 + number), f"waits{number}")
    table = index_of(cluster.state).table
    draft = Draft(cluster.state, cluster.now)
    barred = Barred(draft, table)
    cluster.settle()
    found = [barred.unwanted(cluster.job(f"waits{number}")) for number in range(5)]
    assert found == [frozenset({table.rows["n1"]})] * 5
    assert len({id(each) for each in found}) == 1
