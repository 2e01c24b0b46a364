"""How long a job that the nodes could not hold, were they empty, waits for others to join before it is rejected."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.offers import CHANGES_FOR_MAX

from tests.scheduler.elastic.lab import HOUR, elastic, of, run
from tests.scheduler.elastic.lent import borrower
from tests.support.cluster import SECOND, Cluster, spec
from tests.support.images import say_images

AFTER = 60
STRANGE: dict[str, Any] = {"image": "that no node has"}
YEAR = 365 * 24 * HOUR


def one_node() -> Cluster:
    cluster = elastic()
    cluster.node("n0", 4000)
    cluster.submit(spec(1000), "small")
    cluster.settle()
    return cluster


def seconds_until_rejected(cluster: Cluster, *, joins_every: int = 0) -> int:
    """Return for how long the job waits, while nodes join that are of no use to it."""
    began = cluster.now
    for number in range(1, 40 * AFTER):
        if joins_every and number % joins_every == 0:
            cluster.node(f"new{number}", 1000)
        if of(cluster.advance(1), e.JobRejected):
            return (cluster.now - began) // SECOND
    raise AssertionError("it waits for ever")


@pytest.mark.parametrize(
    ("joins_every", "waits"),
    [(0, AFTER), (AFTER + 1, AFTER), (AFTER - 10, CHANGES_FOR_MAX * AFTER), (1, CHANGES_FOR_MAX * AFTER)],
)
def test_a_job_waits_for_nodes_while_they_join_and_not_for_ever(joins_every: int, waits: int) -> None:
    cluster = one_node()
    cluster.advance(HOUR)
    cluster.submit(spec(1000, **STRANGE), "never")
    cluster.settle()
    assert seconds_until_rejected(cluster, joins_every=joins_every) in range(waits, waits + AFTER)


@pytest.mark.parametrize(
    "large",
    [{"gpus": 9}, {"gpu_millis": 500}, {"gang": 9, "communication": "intensive"}, {"memory": 1 << 30, **STRANGE}],
)
def test_where_no_node_joins_any_more_a_job_larger_than_all_is_refused_at_once(large: dict[str, Any]) -> None:
    cluster = one_node()
    cluster.advance(AFTER - 1)
    cluster.submit(spec(1000, **large), "never")
    cluster.submit(spec(1000, **STRANGE), "waits")
    assert cluster.settle() == [], "another node may be on its way"
    cluster.advance(1)
    assert (cluster.stage("never"), cluster.stage("waits")) == ("rejected", "pending")
    cluster.submit(spec(1000, **large), "never again")
    assert [event.job for event in of(cluster.settle(), e.JobRejected)] == ["never again"]


def test_where_nodes_join_after_a_pause_a_job_that_waits_long_waits_for_those_too() -> None:
    """Its node is gone for good; it would have been placed there."""
    cluster = one_node()
    cluster.node("large", 4000, gpus=1)
    cluster.submit(spec(1000, gpus=1), "runs")
    cluster.settle()
    cluster.start("runs")
    cluster.submit(spec(1000, gpus=1), "waits")
    cluster.advance(HOUR)
    assert cluster.stage("waits") == "pending"
    cluster.node("new", 1000)
    cluster.node("large", 4000, incarnation=2)  # it came back without its device
    assert seconds_until_rejected(cluster) == AFTER


def test_an_agent_whose_clock_is_ahead_keeps_nobody_waiting() -> None:
    cluster = one_node()
    now = cluster.now
    cluster.now += YEAR * SECOND
    cluster.node("ahead", 1000)
    cluster.now = now
    cluster.advance(1)
    cluster.submit(spec(1000, **STRANGE), "never")
    cluster.submit(spec(1000, gpus=9), "larger than all")
    assert [event.job for event in of(cluster.settle(), e.JobRejected)] == ["larger than all"]
    assert seconds_until_rejected(cluster) == AFTER
    cluster.submit(spec(1000, **STRANGE), "never again")
    cluster.settle()
    waited = seconds_until_rejected(cluster, joins_every=AFTER - 10)
    assert CHANGES_FOR_MAX * AFTER <= waited <= (CHANGES_FOR_MAX + 1) * AFTER, "it counts from when others joined"


def test_an_agent_whose_clock_is_behind_is_waited_for_as_any_other() -> None:
    cluster = one_node()
    cluster.submit(spec(1000, **STRANGE), "never")
    cluster.settle()
    cluster.advance(AFTER - 10)
    now = cluster.now
    cluster.submit(spec(1000), "placed just now")
    cluster.settle()
    cluster.now -= HOUR * SECOND
    cluster.node("behind", 1000)
    cluster.now = now
    assert seconds_until_rejected(cluster) == AFTER


FULL: dict[str, Any] = {"cpu": 64_000, "gpus": 8, "levels": ("trusted", "guarded"), "switch": "s1", "cpu_model": "EPYC"}
ALL: dict[str, Any] = {"memory": 10_000, "gpus": 8, "gpu_memory": 50_000, "isolation": "guarded"}
"""What the nodes of FULL can hold, and only while they offer all that they do."""

PAIR: dict[str, Any] = {"gang": 2, "communication": "intensive", "determinism": "strict"}
LESS: list[dict[str, Any]] = [
    {"cpu": 32_000},
    {"memory": 8192},
    {"gpus": 7},
    {"gpu_memory": 40_000},
    {"levels": ("trusted",)},
    {"switch": "s2"},
    {"cpu_model": "Xeon"},
]


def a_queue_for_all() -> Cluster:
    """For an hour two members wait for the only nodes that can hold them, which are drained."""
    cluster = one_node()
    for name in ("big0", "big1"):
        cluster.node(name, **FULL)
        drained = e.NodeDrainRequested(
            id=f"drain-{name}", at_ns=cluster.now, actor="ada", node=name, deadline_ns=cluster.now
        )
        cluster.append("gateway", "g1", drained)
    cluster.submit(spec(50_000, **ALL, **PAIR), "waits")
    cluster.advance(HOUR)
    assert cluster.stage("waits") == "pending"
    return cluster


@pytest.mark.parametrize("less", LESS, ids="-".join)
def test_what_a_node_offers_no_more_is_waited_for_as_one_that_may_join(less: dict[str, Any]) -> None:
    cluster = a_queue_for_all()
    cluster.node("big1", **(FULL | less), incarnation=2)
    assert cluster.advance(AFTER - 1) == [], "its agent restarts while a device is reset"
    cluster.node("big1", **FULL, incarnation=3)
    assert cluster.advance(HOUR) == []
    cluster.node("big1", **(FULL | less), incarnation=4)
    cluster.settle()
    assert seconds_until_rejected(cluster) == AFTER


def test_a_node_that_is_forgotten_may_join_again() -> None:
    cluster = a_queue_for_all()
    lost = e.NodeLost(id="lost", at_ns=cluster.now, node="big1", incarnation=1)
    cluster.append("scheduler", cluster.leader, lost)
    assert cluster.advance(HOUR) == [], "it is remembered"
    gone = e.NodeForgotten(id="gone", at_ns=cluster.now, node="big1", incarnation=1)
    cluster.append("scheduler", cluster.leader, gone)
    cluster.settle()
    assert seconds_until_rejected(cluster) == AFTER


def images(cluster: Cluster, *names: str) -> None:
    say_images(cluster, "n0", {name: f"b3:{name}" for name in names})


@pytest.mark.parametrize("image", ["torch", "b3:torch"])
def test_an_image_that_is_gone_for_a_moment_costs_nobody_its_place(image: str) -> None:
    cluster = one_node()
    images(cluster, "host", "torch")
    cluster.submit(spec(4000, image=image), "waits")
    cluster.advance(HOUR)
    images(cluster, "host")
    cluster.advance(AFTER - 1)
    assert cluster.stage("waits") == "pending"
    images(cluster, "host", "torch")
    cluster.advance(1)
    images(cluster, "host")
    cluster.settle()
    assert seconds_until_rejected(cluster) == AFTER


def test_where_nodes_offer_less_all_the_time_nobody_waits_for_ever_and_nobody_in_vain() -> None:
    """What others lack all the time neither lets a job wait without end nor has one rejected that lost its node."""
    cluster = one_node()
    cluster.node("big", 50_000)
    run(cluster, "runs", spec(50_000))
    cluster.submit(spec(50_000), "waits")
    cluster.submit(spec(1000, gpus=9), "never")
    began = cluster.now
    for number in range(CHANGES_FOR_MAX * 2):
        if number == CHANGES_FOR_MAX * 2 - 1:
            held = [e.HeldSandbox(job="runs", attempt=1, rank=0)]
            cluster.node("big", 49_000, incarnation=2, held=held)
        cluster.node(f"new{number}", 1000)
        rejected = {
            event.job: (cluster.now - began) // SECOND for event in of(cluster.advance(AFTER - 1), e.JobRejected)
        }
        assert "waits" not in rejected
        if "never" in rejected:
            assert rejected["never"] <= (CHANGES_FOR_MAX + 1) * AFTER
    assert cluster.stage("never") == "rejected"


def rejected(job: JobSpec) -> e.Reason:
    """Return why a job is rejected by two nodes that have been there for long, of which one has a device."""
    cluster = elastic()
    cluster.node("n1", 4000, gpus=1)
    cluster.node("n2", 2000, memory=32_768)
    cluster.advance(HOUR)
    cluster.submit(job, "never")
    (event,) = of(cluster.advance(AFTER), e.JobRejected)
    return event.reasons[0]


def test_a_rejection_says_what_is_too_large_and_not_what_may_come() -> None:
    reason = rejected(spec(9000, **STRANGE))
    assert reason.detail == "no node is large enough for a member"
    assert (reason.numbers["cpu_millis_needed"], reason.numbers["cpu_millis_most"]) == (9000, 4000)
    gang = rejected(spec(1000, gang=7, **STRANGE))
    assert gang.detail == "all nodes together are too small for the gang"
    assert (gang.numbers["members_needed"], gang.numbers["members_most"]) == (7, 6)
    assert "that no node has" in rejected(spec(1000, **STRANGE)).detail


@pytest.mark.parametrize(
    ("high", "detail", "numbers"),
    [
        (Resources(9000, 60), "no node is large enough for a member", ("cpu_millis", 9000, 4000)),
        (Resources(100, 40_000), "no node is large enough for a member", ("memory_mib", 40_000, 32_768)),
        (Resources(100, 60, 2), "no node has the GPUs that a member needs", ("gpus", 2, 1)),
        (Resources(3000, 20_000), "no node has all at once that a member needs", ("memory_mib", 20_000, 32_768)),
    ],
)
def test_a_rejection_speaks_of_the_phase_that_no_node_could_hold(
    high: Resources, detail: str, numbers: tuple[str, int, int]
) -> None:
    reason = rejected(borrower(low=Resources(100, 50), high=high))
    assert reason.detail == detail
    name, needed, most = numbers
    assert (reason.numbers[f"{name}_needed"], reason.numbers[f"{name}_most"]) == (needed, most)


def test_a_rejection_says_where_each_phase_has_a_node_and_no_node_has_both() -> None:
    reason = rejected(borrower(low=Resources(100, 20_000), high=Resources(4000, 60)))
    assert reason.detail == "no node is large enough for a member in each of its phases"


def a_bounded_tenant(**queue: Any) -> Cluster:
    """One node, and the queue of tenant `a`, which holds half of the node."""
    cluster = elastic()
    cluster.node("n1", 4000)
    cluster.advance(HOUR)
    run(cluster, "runs", spec(2000, tenant="a"))
    changed = e.QueueChanged(id="queue", at_ns=cluster.now, tenant="a", actor="olga", **queue)
    cluster.append("gateway", "g1", changed)
    return cluster


QUEUES: list[dict[str, Any]] = [{"ceiling": Resources(2000, 1 << 20, 4)}, {"stopped": True}]


@pytest.mark.parametrize("queue", QUEUES, ids=["ceiling", "stopped"])
def test_what_no_node_could_hold_does_not_wait_for_its_queue_either(queue: dict[str, Any]) -> None:
    cluster = a_bounded_tenant(**queue)
    for number in range(3):
        cluster.submit(spec(9000, tenant="a"), f"giant{number}")
    cluster.submit(spec(500, tenant="a", **STRANGE), "strange")
    cluster.submit(spec(500, tenant="a"), "waits")
    refused = [event.job for event in of(cluster.settle(), e.JobRejected)]
    assert refused == ["giant0", "giant1", "giant2"]
    assert (cluster.stage("strange"), cluster.stage("waits")) == ("pending", "pending")
    assert [event.job for event in of(cluster.advance(AFTER), e.JobRejected)] == ["strange"]
    assert not of(cluster.advance(HOUR), e.JobRejected)


def test_a_job_that_is_cancelled_in_a_stopped_queue_is_not_rejected_as_well() -> None:
    cluster = a_bounded_tenant(stopped=True)
    for name in ("cancelled", "giant"):
        cluster.submit(spec(9000, tenant="a"), name)
    cluster.cancel("cancelled")
    decided = cluster.settle()
    assert [(type(event).__name__, event.job) for event in decided if isinstance(event, e.JobEvent)] == [
        ("JobCancelled", "cancelled"),
        ("JobRejected", "giant"),
    ]


def test_a_job_larger_than_its_ceiling_says_so_and_starts_when_that_is_raised() -> None:
    cluster = a_bounded_tenant(ceiling=Resources(2500, 1 << 20, 4))
    cluster.submit(spec(1000, tenant="a"), "later")
    cluster.submit(spec(3000, gpus=0, tenant="a"), "larger")
    cluster.advance(HOUR)
    at_ceiling, larger = cluster.waiting["later"], cluster.waiting["larger"]
    assert at_ceiling.code == larger.code == "QuotaReached"
    assert larger.numbers == {"cpu_millis_needed": 3000, "cpu_millis_ceiling": 2500}
    assert "3000 cpu_millis of 2500" in larger.detail
    assert "never" in larger.detail
    assert "never" not in at_ceiling.detail
    raised = e.QueueChanged(
        id="raised", at_ns=cluster.now, tenant="a", actor="olga", ceiling=Resources(4000, 1 << 20, 4)
    )
    cluster.append("gateway", "g1", raised)
    cluster.exit("runs", "completed")
    cluster.cancel("later")
    cluster.settle()
    assert cluster.stage("larger") == "placed"


@pytest.mark.parametrize("queue", [{}, *QUEUES], ids=["open", "ceiling", "stopped"])
def test_one_that_has_begun_and_waits_for_its_node_keeps_none_behind_it_waiting(queue: dict[str, Any]) -> None:
    cluster = elastic()
    cluster.node("large", 64_000)
    cluster.node("small", 4000)
    alike = spec(9000, tenant="a", attempts=5)
    run(cluster, "began", alike)
    if queue:
        changed = e.QueueChanged(id="queue", at_ns=cluster.now, tenant="a", actor="olga", **queue)
        cluster.append("gateway", "g1", changed)
    cluster.node("large", 4000, incarnation=2)
    cluster.settle()
    for number in range(2):
        cluster.submit(alike, f"alike{number}")
    cluster.advance(10)
    cluster.advance(AFTER - 11)
    assert cluster.job("began").not_before_ns < cluster.now, "it stands in front of them"
    assert [cluster.stage(name) for name in ("began", "alike0", "alike1")] == ["pending"] * 3
    assert [event.job for event in of(cluster.advance(1), e.JobRejected)] == ["alike0", "alike1"]
    cluster.advance(HOUR)
    assert cluster.stage("began") == "pending"
