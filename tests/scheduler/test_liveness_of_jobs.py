"""No job waits for ever, nobody leaves for nothing, and no pass outgrows a frame: what went wrong once."""

from __future__ import annotations

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.frame import MAX_FRAME_BYTES, encode
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, ResourceRange
from tidegate_scheduler.draft import PASS_BYTES_MAX
from tidegate_scheduler.orders import orders_for
from tidegate_scheduler.policy.parameters import Parameters, ParametersError, from_json

from tests.support.cluster import SECOND, Cluster, spec


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.node("n1", 2000)
    return made


def _elastic(minimum: int, maximum: int) -> Component:
    amount = ResourceRange(minimum=Resources(minimum, 64), maximum=Resources(maximum, 64))
    return Component(name="main", command=("x",), resources={"default": amount})


def test_room_that_a_lower_job_was_promised_does_not_hold_up_a_higher_one(cluster: Cluster) -> None:
    """Each waited for the other: the higher one for the promised room, the lower one for its turn."""
    cluster.submit(spec(2000, priority=1), "victim")
    cluster.settle()
    cluster.start("victim")
    cluster.submit(spec(1500, priority=5), "middle")
    cluster.settle()
    cluster.submit(spec(1500, priority=9), "high")
    cluster.settle()
    cluster.exit("victim", "suspended", acknowledged=True)
    assert (cluster.stage("high"), cluster.stage("middle")) == ("placed", "pending")
    cluster.start("high")
    cluster.exit("high", "completed")
    assert cluster.stage("middle") == "placed"


def test_promised_room_is_taken_by_its_owner_though_an_equal_one_in_front_is_blocked(cluster: Cluster) -> None:
    cluster.submit(spec(1000, priority=5), "peer")
    cluster.settle()
    cluster.reject("peer")
    cluster.submit(spec(1500, priority=1), "victim")
    cluster.settle()
    cluster.start("victim")
    cluster.submit(spec(2000, priority=5), "owner")
    cluster.settle()
    assert cluster.job("owner").reserved_nodes == ("n1",)
    cluster.advance(1)  # the back-off of the one in front ends, and it does not fit beside what was promised
    assert cluster.waiting["peer"].code == "Reserved", "behind the owner, whose room comes first"
    cluster.exit("victim", "suspended", acknowledged=True)
    assert cluster.stage("owner") == "placed"


def test_a_gang_whose_nodes_are_away_holds_nobody_up() -> None:
    cluster = Cluster()
    for name in ("n1", "n2", "n3"):
        cluster.node(name, 1000)
    cluster.submit(spec(1000, gang=3, priority=5), "gang")
    cluster.settle()
    cluster.start("gang")
    cluster.silence("n3")
    cluster.advance(31)
    cluster.exit("gang", "stopped")
    cluster.submit(spec(100), "small")
    cluster.advance(5)
    assert cluster.stage("small") == "placed"
    assert cluster.waiting["gang"].code == "NoNode"
    cluster.exit("small", "completed")
    for name in ("n1", "n2", "n3"):
        cluster.node(name, 1000, incarnation=2)
    cluster.settle()
    assert cluster.stage("gang") == "placed"


def test_a_gang_larger_than_the_cluster_holds_nobody_up_before_it_is_rejected(cluster: Cluster) -> None:
    cluster.submit(spec(1500, gang=2, priority=9), "giant")
    cluster.submit(spec(1000, priority=1), "small")
    cluster.settle()
    assert cluster.stage("small") == "placed"
    cluster.advance(60)
    assert cluster.stage("giant") == "rejected"


def test_a_leaving_job_gives_back_what_it_was_lent_when_another_is_placed() -> None:
    cluster = Cluster()
    cluster.node("n1", 4000)
    cluster.submit(msgspec.structs.replace(spec(priority=1), components=(_elastic(500, 4000),)), "lent")
    cluster.settle()
    cluster.start("lent")
    cluster.submit(spec(3800, priority=8), "high")
    cluster.settle()
    assert cluster.members("lent")[0].quotas[0].cpu_millis == 4000, "a leaving job keeps what nobody needs"
    cluster.submit(spec(200, priority=9), "beside")
    cluster.settle()
    assert cluster.stage("beside") == "placed"
    assert cluster.members("lent")[0].quotas[0].cpu_millis == 3800


@pytest.mark.parametrize("per_pass", [1, 7, 10_000])
def test_many_placements_come_in_passes_that_fit_a_frame(per_pass: int) -> None:
    """A frame too large for the bus ended the scheduler, which came back and decided the same."""
    cluster = Cluster(Parameters(decisions_per_pass_max=per_pass))
    jobs = min(40 * per_pass, 1800)
    cluster.node("n1", 400_000, memory=1 << 24)
    cluster.submit(msgspec.structs.replace(spec(), components=(_elastic(100, 400_000),)), "lender")
    for _ in range(jobs):
        cluster.submit(spec(100, memory=64, priority=2))
    cluster.settle()
    assert all(job.stage == "placed" for job in cluster.state.jobs.values())
    frames = [recorded.frame for recorded in cluster.frames]
    assert max(len(encode(frame)) for frame in frames) < 2 * PASS_BYTES_MAX < MAX_FRAME_BYTES
    assert max(len(frame.events) for frame in frames) <= per_pass + 1


def test_a_result_with_a_huge_number_ends_its_job_and_not_the_scheduler(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000))
    cluster.settle()
    cluster.start(job)
    cluster.exit(job, "completed", exit_code=0, result={"seen": 10**30, "low": -(10**40)})
    assert cluster.stage(job) == "completed"


def test_jobs_leave_a_node_that_came_back_smaller(cluster: Cluster) -> None:
    for name, priority in (("keep", 5), ("leave", 1)):
        cluster.submit(spec(1000, priority=priority), name)
    cluster.settle()
    held = [e.HeldSandbox(job=name, attempt=1, rank=0) for name in ("keep", "leave")]
    for name in ("keep", "leave"):
        cluster.start(name)
    cluster.node("n1", 1200, incarnation=2, held=held)
    decided = cluster.settle()
    assert [(type(event).__name__, getattr(event, "job", "")) for event in decided] == [("PreemptRequested", "leave")]
    assert decided[0].reasons[0].code == "NodeShrank"  # type: ignore[union-attr]
    cluster.exit("leave", "suspended", acknowledged=True)
    assert (cluster.stage("keep"), cluster.stage("leave")) == ("running", "suspended")
    assert not cluster.shrunk


def test_a_job_leaves_a_node_that_came_back_without_its_gpu() -> None:
    cluster = Cluster()
    cluster.node("n1", 2000, gpus=2)
    for name in ("a", "b"):
        cluster.submit(spec(100, gpus=1), name)
        cluster.settle()
        cluster.start(name)
    cluster.node("n1", 2000, gpus=1, incarnation=2, held=[e.HeldSandbox(job=name, attempt=1, rank=0) for name in "ab"])
    cluster.settle()
    assert [cluster.stage(name) for name in ("a", "b")] == ["running", "preempting"]


def test_a_lost_node_that_had_refused_the_placement_takes_jobs_again(cluster: Cluster) -> None:
    """The refusal was on its way when the node was lost: nothing else would ever say that nothing runs there."""
    job = cluster.submit(spec(1000))
    cluster.settle()
    member = cluster.members(job)[0]
    cluster.silence("n1")
    cluster.advance(31)
    heard = e.NodeReachable(id="heard", at_ns=cluster.now, node="n1", incarnation=1)
    cluster.append("scheduler", "s1", heard)
    refused = e.PlacementRejected(
        id="no", at_ns=cluster.now, tenant="t", job=job, attempt=1, rank=member.rank, node="n1",
        reason=e.Reason(code="Busy"),
    )  # fmt: skip
    cluster.append("node", "n1", refused)
    cluster.advance(60)
    assert cluster.stage(job) == "placed"


def test_a_sandbox_of_an_unknown_job_is_ended_and_its_node_takes_jobs(cluster: Cluster) -> None:
    """Left over from another journal: without an order to end it, its node would never be used again."""
    cluster.node("n1", 2000, incarnation=2, held=[e.HeldSandbox(job="foreign", attempt=3, rank=0)])
    cluster.submit(spec(1000), "mine")
    cluster.settle()
    assert cluster.stage("mine") == "pending"
    (order,) = orders_for(cluster.state, cluster.state.nodes["n1"]).sandboxes
    assert (order.job, order.attempt, order.desired) == ("foreign", 3, "stop")
    gone = e.SandboxExited(
        id="gone", at_ns=cluster.now, tenant="", job="foreign", attempt=3, rank=0, node="n1", outcome="stopped"
    )
    cluster.append("node", "n1", gone)
    cluster.settle()
    assert cluster.stage("mine") == "placed"


def test_a_node_has_its_whole_bound_though_its_leaders_clock_is_behind(cluster: Cluster) -> None:
    cluster.submit(spec(1000))
    cluster.settle()
    cluster.now -= 3600 * SECOND
    cluster.silence("n1")
    cluster.settle()
    assert cluster.state.nodes["n1"].status == "unreachable"


@pytest.mark.parametrize(
    "text", ['{"decisions_per_pass_max": 0}', '{"node_lost_seconds": -1}', '{"node_lost": 3}', "[]", "{", '{"x": 1.5}']
)
def test_parameters_that_cannot_be_used_are_refused(text: str) -> None:
    with pytest.raises(ParametersError):
        from_json(text)


def test_parameters_are_read_from_json() -> None:
    assert from_json('{"node_lost_seconds": 7}') == Parameters(node_lost_seconds=7)


def test_the_largest_gang_is_placed_in_one_frame_beside_a_full_pass() -> None:
    """The gateway takes at most 2048 members times components."""
    cluster = Cluster(Parameters(decisions_per_pass_max=10_000))
    name = "n" * 62
    for number in range(16):
        cluster.node(f"{name}{number:02}", 1_024_000, memory=1 << 24)
    amount = ResourceRange(minimum=Resources(10, 4))
    components = tuple(
        Component(name=f"{letter}" * 32, command=("true",), resources={"default": amount}) for letter in "ab"
    )
    for _ in range(300):
        cluster.submit(spec(10, priority=9))
    gang = msgspec.structs.replace(spec(), components=components, gang_size=1024)
    cluster.submit(gang, "gang")
    cluster.settle()
    assert cluster.stage("gang") == "placed"
    assert max(len(encode(recorded.frame)) for recorded in cluster.frames) < MAX_FRAME_BYTES


def test_nothing_is_kept_of_an_ended_job_when_the_node_that_held_it_comes_back_empty(cluster: Cluster) -> None:
    job = cluster.submit(spec(1000))
    cluster.settle()
    cluster.start(job)
    cluster.silence("n1")
    cluster.advance(31)
    cluster.cancel(job)
    cluster.settle()
    assert job in cluster.state.specs, "its sandbox may have to be told to end"
    cluster.node("n1", 2000, incarnation=2)
    assert job not in cluster.state.specs
