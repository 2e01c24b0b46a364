"""Both policies by scenario, where they agree: what must happen, written down. What only policy 2 does: `elastic/`."""

from __future__ import annotations

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, ResourceRange
from tidegate_scheduler.explain import explain
from tidegate_scheduler.orders import orders_for

from tests.support.cluster import Cluster, spec


def kinds(events: list[e.AnyEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


@pytest.fixture(params=[1, 2], ids=["first", "elastic"])
def policy(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def cluster(policy: int) -> Cluster:
    made = Cluster(policy=policy)
    made.node("n1", 2000)
    return made


def but_reservations(events: list[e.AnyEvent]) -> list[e.AnyEvent]:
    """Policy 2 keeps room for whoever is blocked, where policy 1 keeps whole nodes closed in each pass."""
    return [event for event in events if not isinstance(event, e.RoomReserved)]


def test_a_job_is_placed_started_and_completed(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000))
    assert kinds(cluster.settle()) == ["JobPlaced"]
    assert kinds(cluster.start(job)) == ["JobStarted"]
    decided = cluster.exit(job, "completed", exit_code=0, result={"mean_return": 200.0})
    assert kinds(decided) == ["JobCompleted"]
    assert decided[0].result == {"mean_return": 200.0}  # type: ignore[union-attr]
    assert cluster.stage(job) == "completed"


def test_higher_priority_goes_first_then_order_of_submission(cluster: Cluster) -> None:
    first = cluster.submit(spec(2000, priority=1))
    second = cluster.submit(spec(2000, priority=5))
    third = cluster.submit(spec(2000, priority=5))
    cluster.settle()
    assert [cluster.stage(job) for job in (first, second, third)] == ["pending", "placed", "pending"]
    cluster.start(second)
    cluster.exit(second, "completed")
    assert [cluster.stage(job) for job in (first, third)] == ["pending", "placed"]


def test_a_small_job_does_not_overtake_on_the_node_that_the_first_waits_for(cluster: Cluster, policy: int) -> None:
    cluster.submit(spec(1500), "running")
    cluster.settle()
    cluster.submit(spec(1000), "first")
    cluster.submit(spec(100), "small")
    cluster.settle()
    assert cluster.stage("small") == "pending"
    assert cluster.waiting["first"].code == {1: "Resources", 2: "Reserved"}[policy]
    assert cluster.waiting["first"].numbers["cpu_millis_free"] == 500
    if policy == 2:
        assert cluster.waiting["small"].code == "Reserved", "it has its own room, behind that of the first"
        return
    assert cluster.waiting["small"].code == "Priority"
    assert "first" in cluster.waiting["small"].detail


def test_preemption_saves_suspends_and_resumes_from_the_checkpoint(cluster: Cluster) -> None:
    low = cluster.submit(spec(1500, priority=1, grace=20), "low")
    cluster.settle()
    cluster.start(low)
    high = cluster.submit(spec(1500, priority=9), "high")
    decided = cluster.settle()
    assert kinds(decided) == ["RoomReserved", "PreemptRequested"]
    request = decided[1]
    assert isinstance(request, e.PreemptRequested)
    assert (request.job, request.for_job, request.grace_seconds) == ("low", "high", 20)
    assert cluster.waiting["high"].code == "Reserved"
    assert orders_for(cluster.state, cluster.state.nodes["n1"]).sandboxes[0].desired == "suspend"
    saved = cluster.save(low, 40)
    left = cluster.exit(low, "suspended", acknowledged=True, last_step=40)
    assert kinds(but_reservations(left)) == ["JobSuspended", "JobPlaced"]
    assert cluster.stage(low) == "suspended"
    cluster.start(high)
    cluster.exit(high, "completed")
    placed = cluster.job(low).resumed_from
    assert placed is not None
    assert placed.id == saved
    decided = cluster.start(low)
    assert kinds(decided) == ["JobResumed"]
    assert decided[0].step == 40  # type: ignore[union-attr]
    assert cluster.job(low).preemptions == 1


def test_room_that_is_being_left_is_for_the_preemptor_alone(cluster: Cluster) -> None:
    cluster.submit(spec(2000, priority=1), "low")
    cluster.settle()
    cluster.start("low")
    cluster.submit(spec(1800, priority=5), "high")
    cluster.settle()
    cluster.submit(spec(200, priority=1), "fits-beside")
    cluster.submit(spec(500, priority=4), "thief")
    cluster.settle()
    assert cluster.stage("thief") == "pending"
    cluster.exit("low", "stopped", last_step=10)
    assert cluster.stage("high") == "placed"
    assert cluster.stage("thief") == "pending"


def test_a_leaving_victim_is_not_counted_twice(cluster: Cluster) -> None:
    cluster.node("n2", 2000)
    for name in ("a", "b"):
        cluster.submit(spec(2000, priority=1), name)
    cluster.settle()
    for name in ("a", "b"):
        cluster.start(name)
    cluster.submit(spec(1000, priority=5), "p1")
    cluster.submit(spec(1000, priority=5), "p2")
    cluster.settle()
    leaving = [name for name in ("a", "b") if cluster.stage(name) == "preempting"]
    assert len(leaving) == 1, "both preemptors fit in the room of one victim"


def test_nobody_leaves_when_the_preemptor_would_still_not_fit(cluster: Cluster) -> None:
    cluster.submit(spec(1000, priority=9), "equal")
    cluster.submit(spec(500, priority=1), "low")
    cluster.settle()
    cluster.submit(spec(1800, priority=9), "big")
    assert but_reservations(cluster.settle()) == []
    assert cluster.stage("low") == "placed"


def test_needless_victims_are_spared(policy: int) -> None:
    cluster = Cluster(policy=policy)
    cluster.node("n1", 4000)
    for name, cpu in (("small", 500), ("large", 3000)):
        cluster.submit(spec(cpu, priority=1), name)
        cluster.settle()
        cluster.start(name)
        cluster.advance(1)
    cluster.submit(spec(3500, priority=5), "high")
    cluster.settle()
    assert cluster.stage("small") == "running", "500 free and the 3000 of the other are enough"
    assert cluster.stage("large") == "preempting"


def test_equal_priority_never_preempts(cluster: Cluster) -> None:
    cluster.submit(spec(2000, priority=5), "a")
    cluster.settle()
    cluster.submit(spec(2000, priority=5), "b")
    assert but_reservations(cluster.settle()) == []


def test_a_gang_is_placed_whole_or_not_at_all(cluster: Cluster) -> None:
    cluster.node("n2", 2000)
    cluster.submit(spec(1500, priority=1), "occupant")
    cluster.settle()
    cluster.submit(spec(1000, gang=3), "gang")
    cluster.settle()
    assert cluster.stage("gang") == "pending"
    cluster.start("occupant")
    cluster.exit("occupant", "completed")
    assert cluster.stage("gang") == "placed"
    assert sorted(member.node for member in cluster.members("gang")) in (["n1", "n1", "n2"], ["n1", "n2", "n2"])


def test_gpus_fit_by_number_and_by_memory_and_are_given_once(policy: int) -> None:
    cluster = Cluster(policy=policy)
    cluster.node("small", 8000, gpus=2, gpu_memory=16_000)
    cluster.node("large", 8000, gpus=2, gpu_memory=80_000)
    cluster.submit(spec(100, gpus=1, gpu_memory=40_000), "needs-large")
    cluster.submit(spec(100, gpus=2), "two")
    cluster.settle()
    assert cluster.members("needs-large")[0].node == "large"
    assert cluster.members("two")[0].node == "small"
    cluster.submit(spec(100, gpus=1, gpu_memory=40_000), "second")
    cluster.submit(spec(100, gpus=1), "none-left")
    cluster.settle()
    taken = cluster.members("needs-large")[0].gpu_indices + cluster.members("second")[0].gpu_indices
    assert sorted(taken) == [0, 1]
    assert cluster.waiting["none-left"].numbers["gpus_free"] == 0


def test_a_phase_change_moves_cpu_between_components(policy: int) -> None:
    cluster = Cluster(policy=policy)
    cluster.node("n1", 2000)
    sims = Component(
        name="sim",
        kind="simulator",
        command=("s",),
        replicas=4,
        resources={
            "default": _range(100, 200),
            "sampling": _range(200, 400),
            "learning": _range(50, 50),
        },
    )
    learner = Component(
        name="learner",
        kind="learner",
        command=("l",),
        resources={"default": _range(200, 400), "sampling": _range(100, 200), "learning": _range(700, 1500)},
    )
    job = cluster.submit(msgspec.structs.replace(spec(), components=(sims, learner)))
    cluster.settle()
    cluster.start(job)
    decided = cluster.phase(job, "sampling")
    assert kinds(decided) == ["QuotaChanged"]
    assert _millis(cluster, job) == {"sim": 400, "learner": 200}
    cluster.phase(job, "learning")
    assert _millis(cluster, job) == {"sim": 50, "learner": 1500}


def test_what_a_phase_does_not_need_is_lent_and_comes_back(policy: int) -> None:
    cluster = Cluster(policy=policy)
    cluster.node("n1", 2000)
    owner = Component(name="main", command=("x",), resources={"default": _range(1000, 1000), "idle": _range(100, 100)})
    borrower = Component(name="main", command=("y",), resources={"default": _range(500, 2000)})
    cluster.submit(msgspec.structs.replace(spec(priority=5), components=(owner,)), "owner")
    cluster.submit(msgspec.structs.replace(spec(priority=1), components=(borrower,)), "borrower")
    cluster.settle()
    for job in ("owner", "borrower"):
        cluster.start(job)
    assert _millis(cluster, "borrower") == {"main": 1000}
    cluster.phase("owner", "idle")
    assert _millis(cluster, "borrower") == {"main": 1900}
    cluster.phase("owner", "default")
    assert (_millis(cluster, "owner"), _millis(cluster, "borrower")) == ({"main": 1000}, {"main": 1000})


def test_a_lost_node_sends_its_jobs_back_to_their_last_checkpoint(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000))
    cluster.settle()
    cluster.start(job)
    saved = cluster.save(job, 7)
    cluster.node("n2", 2000)
    cluster.silence("n1")
    assert cluster.settle() == []
    assert cluster.wake_at == cluster.now + 30_000_000_000
    decided = cluster.advance(30)
    assert kinds(decided) == ["NodeLost", "JobRequeued"]
    assert decided[1].outcome == "lost"  # type: ignore[union-attr]
    cluster.advance(1)
    assert cluster.members(job)[0].node == "n2"
    assert cluster.job(job).resumed_from.id == saved  # type: ignore[union-attr]


def test_a_node_that_comes_back_with_a_superseded_sandbox_must_end_it_first(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000))
    cluster.settle()
    cluster.start(job)
    cluster.silence("n1")
    cluster.advance(30)
    cluster.advance(1)
    assert cluster.waiting[job].code == "NoNode"
    cluster.node("n1", 2000, incarnation=2, held=[e.HeldSandbox(job=job, attempt=1, rank=0)])
    cluster.settle()
    assert cluster.stage(job) == "pending", "the room is not free while the old sandbox runs"
    orders = orders_for(cluster.state, cluster.state.nodes["n1"]).sandboxes
    assert [(order.attempt, order.desired) for order in orders] == [(1, "stop")]
    gone = e.SandboxExited(
        id="gone", at_ns=cluster.now, tenant="t", job=job, attempt=1, rank=0, node="n1", outcome="stopped"
    )
    cluster.append("node", "n1", gone)
    cluster.settle()
    assert (cluster.stage(job), cluster.job(job).attempt) == ("placed", 2)


def test_an_agent_that_restarts_and_still_holds_the_sandbox_loses_nothing(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000))
    cluster.settle()
    cluster.start(job)
    cluster.node("n1", 2000, incarnation=2, held=[e.HeldSandbox(job=job, attempt=1, rank=0)])
    assert cluster.settle() == []
    assert kinds(cluster.exit(job, "completed")) == ["JobCompleted"]


def test_an_agent_that_comes_back_without_the_sandbox_lost_it(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000))
    cluster.settle()
    cluster.start(job)
    cluster.node("n1", 2000, incarnation=2)
    assert kinds(cluster.settle()) == ["JobRequeued"]
    assert cluster.job(job).failures == 0, "infrastructure is not the job's own failure"


def test_a_job_fails_by_its_own_fault_after_its_attempts(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000, attempts=2))
    cluster.settle()
    cluster.start(job)
    decided = cluster.exit(job, "failed", exit_code=1)
    assert kinds(decided) == ["JobRequeued"]
    assert cluster.waiting[job].code == "BackOff"
    cluster.advance(1)
    cluster.start(job)
    decided = cluster.exit(job, "failed", exit_code=1, oom=True, signal=9)
    assert kinds(decided) == ["JobFailed"]
    assert decided[0].reasons[0].code == "OutOfMemory"  # type: ignore[union-attr]


def test_a_lost_member_makes_the_gangs_failure_infrastructure(cluster: Cluster) -> None:
    job = cluster.submit(spec(500, gang=2))
    cluster.settle()
    cluster.start(job)
    assert kinds(cluster.exit(job, "failed", ranks=[0], exit_code=1)) == ["StopRequested"]
    decided = cluster.exit(job, "lost", ranks=[1])
    assert kinds(decided) == ["JobRequeued"]
    assert decided[0].outcome == "lost"  # type: ignore[union-attr]


def test_a_rejected_placement_backs_off_and_goes_elsewhere(cluster: Cluster) -> None:
    cluster.node("n2", 3000)
    job = cluster.submit(spec(1000))
    cluster.settle()
    assert cluster.members(job)[0].node == "n1", "the tighter node comes first"
    cluster.reject(job)
    assert cluster.waiting[job].code == "BackOff"
    cluster.advance(1)
    assert cluster.members(job)[0].node == "n2"


def test_rejections_are_bounded_and_counted_as_infrastructure(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000))
    cluster.settle()
    for _ in range(30):
        if job in cluster.state.finished:
            break
        cluster.reject(job)
        cluster.advance(60)
    assert cluster.stage(job) == "failed"
    last = cluster.frames[-1].frame.events[-1]
    assert last.reasons[0].code == "Infrastructure"  # type: ignore[union-attr]


@pytest.mark.parametrize("moment", ["pending", "placed", "running", "preempting", "suspended"])
def test_cancel_at_any_moment(cluster: Cluster, moment: str) -> None:
    job = cluster.submit(spec(1500, priority=1), "victim")
    if moment != "pending":
        cluster.settle()
    if moment not in ("pending", "placed"):
        cluster.start(job)
    if moment in ("preempting", "suspended"):
        cluster.submit(spec(1500, priority=5), "high")
        cluster.settle()
    if moment == "suspended":
        cluster.exit(job, "suspended", acknowledged=True)
    cluster.cancel(job)
    decided = cluster.settle()
    if moment in ("pending", "suspended"):
        assert kinds(decided) == ["JobCancelled"]
    else:
        assert kinds(decided) == ["StopRequested"]
        decided = cluster.exit(job, "stopped")
        assert kinds(decided)[0] == "JobCancelled"
    assert cluster.stage(job) == "cancelled"


def test_the_time_limit_counts_what_earlier_attempts_ran(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000, attempts=2, time_limit_seconds=100))
    cluster.settle()
    cluster.start(job)
    cluster.advance(60)
    cluster.exit(job, "failed", exit_code=1)
    cluster.advance(1)
    cluster.start(job)
    assert cluster.advance(39) == []
    decided = cluster.advance(1)
    assert kinds(decided) == ["StopRequested"]
    assert decided[0].reasons[0].code == "TimeLimit"  # type: ignore[union-attr]
    assert kinds(cluster.exit(job, "stopped")) == ["JobFailed"]


def test_unacknowledged_exit_after_a_request_is_a_suspension_with_its_loss(cluster: Cluster) -> None:
    job = cluster.submit(spec(2000, priority=1))
    cluster.settle()
    cluster.start(job)
    cluster.save(job, 100)
    cluster.submit(spec(2000, priority=5))
    cluster.settle()
    decided = cluster.exit(job, "stopped", exit_code=0, last_step=130)
    assert isinstance(decided[0], e.JobSuspended)
    assert (decided[0].acknowledged, decided[0].step, decided[0].lost_steps) == (False, 100, 30)


@pytest.mark.parametrize("ending", ["JobFailed", "JobCancelled"])
def test_a_job_that_ends_while_it_is_asked_to_leave_has_its_loss_recorded(cluster: Cluster, ending: str) -> None:
    job = cluster.submit(spec(2000, priority=1))
    cluster.settle()
    cluster.start(job)
    cluster.save(job, 100)
    cluster.submit(spec(2000, priority=5))
    assert "PreemptRequested" in kinds(cluster.settle())
    if ending == "JobCancelled":
        cluster.cancel(job)
        cluster.settle()
    decided = cluster.exit(job, "failed", exit_code=1, last_step=130)
    assert kinds(decided)[0] == ending
    assert decided[0].lost_steps == 30  # type: ignore[union-attr]


def test_a_checkpoint_that_did_not_verify_is_not_resumed_from(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000))
    cluster.settle()
    cluster.start(job)
    good = cluster.save(job, 10)
    bad = cluster.save(job, 20)
    failed = e.CheckpointFailed(
        id="bad", at_ns=cluster.now, tenant="t", job=job, attempt=1, stage="verify",
        reason=e.Reason(code="HashMismatch"), checkpoint_id=bad,
    )  # fmt: skip
    cluster.append("checkpoint", "c1", failed)
    cluster.exit(job, "lost")
    cluster.advance(1)
    assert cluster.job(job).resumed_from.id == good  # type: ignore[union-attr]


def test_a_job_larger_than_the_cluster_is_rejected_after_a_while(cluster: Cluster) -> None:
    cluster.submit(spec(5000))
    assert cluster.settle() == []
    decided = cluster.advance(60)
    assert kinds(decided) == ["JobRejected"]
    assert decided[0].reasons[0].numbers["cpu_millis"] == 5000  # type: ignore[union-attr]


def test_an_inadmissible_job_at_the_head_does_not_block_the_queue(cluster: Cluster) -> None:
    cluster.submit(spec(5000, priority=9), "giant")
    cluster.submit(spec(1000, priority=1), "small")
    cluster.settle()
    assert cluster.stage("small") == "placed"


def test_a_level_that_no_node_offers_is_never_lowered(cluster: Cluster) -> None:
    cluster.submit(msgspec.structs.replace(spec(100), isolation="vm"), "vm")
    cluster.submit(msgspec.structs.replace(spec(100), isolation="unisolated"), "unisolated")
    cluster.settle()
    assert [cluster.stage(job) for job in ("vm", "unisolated")] == ["pending", "pending"]


def test_explain_gives_the_position_in_line() -> None:
    cluster = Cluster(policy=1)
    cluster.node("n1", 2000)
    for name in ("a", "b", "c"):
        cluster.submit(spec(2000), name)
    cluster.settle()
    answer = explain(cluster.state, cluster.waiting, "c")
    assert (answer.position, answer.reasons[0].code) == (2, "Priority")
    assert explain(cluster.state, cluster.waiting, "a").position == 0
    assert explain(cluster.state, cluster.waiting, "nobody").state == "unknown"


def _range(minimum: int, maximum: int) -> ResourceRange:
    return ResourceRange(minimum=Resources(minimum, 64), maximum=Resources(maximum, 64))


def _millis(cluster: Cluster, job: str) -> dict[str, int]:
    return {quota.component: quota.cpu_millis for quota in cluster.members(job)[0].quotas}
