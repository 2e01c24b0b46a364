"""Every act of an operator, and every reason that people know from other schedulers, from its event to its proof.

Each is told in a history of its own: the event with who asked and why, what `why` answers then, and that all decisions
verify.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.history import verify
from tidegate_scheduler.history.listing import Wanted, newest
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import FileSource
from tidegate_scheduler.history.why import Why, why
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import elastic, run
from tests.scheduler.elastic.test_cordon import a_cluster, fail_on
from tests.scheduler.history.files import history_in, told
from tests.support.cluster import SECOND, Cluster, spec

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference"


async def proved(source: FileSource) -> None:
    found = await verify(source.read(0, source.end))
    assert found.ok, found.difference
    assert found.until == source.end


async def answered(source: FileSource, job: str) -> Why:
    return await why(source, job, Moment(), told)


# ---- reasons ----


def one_node(cpu: int = 1000) -> Cluster:
    cluster = elastic()
    cluster.node("n1", cpu)
    return cluster


def blocked(cluster: Cluster, **more: Any) -> Cluster:
    """A job of another tenant runs, and `j` does not fit beside it."""
    run(cluster, "runs", spec(tenant="other"))
    cluster.submit(spec(**more), "j")
    cluster.settle()
    return cluster


def resources() -> Cluster:
    """There is room for so many reservations; who comes behind them says what is short."""
    cluster = elastic(Parameters(reservations_max=1))
    cluster.node("n1", 1000)
    run(cluster, "runs", spec(tenant="other"))
    cluster.submit(spec(), "front")
    cluster.submit(spec(), "j")
    cluster.settle()
    return cluster


def priority() -> Cluster:
    cluster = elastic(Parameters(reservations_max=1))
    cluster.node("n1", 2000)
    run(cluster, "runs", spec(1500, priority=5))
    cluster.submit(spec(2000, priority=3), "front")
    cluster.submit(spec(500), "j")
    cluster.settle()
    return cluster


def quota_reached() -> Cluster:
    cluster = one_node(4000)
    cluster.ask(e.QueueChanged, tenant="t", ceiling=Resources(1000, 8192))
    run(cluster, "runs", spec())
    cluster.submit(spec(), "j")
    cluster.settle()
    return cluster


def gang_topology() -> Cluster:
    cluster = elastic(Parameters(reservations_max=1))
    for node, switch in (("n1", "s1"), ("n2", "s2"), ("n3", "s1"), ("n4", "s2")):
        cluster.node(node, 1000, switch=switch)
    for node in ("n1", "n2"):
        run(cluster, f"on-{node}", spec(1000, priority=3))
    for name in ("front", "j"):
        cluster.submit(spec(1000, gang=2, communication="intensive"), name)
    cluster.settle()
    return cluster


def held() -> Cluster:
    cluster = one_node()
    cluster.submit(spec(), "j")
    cluster.ask(e.HoldRequested, "j", note="wrong data")
    cluster.settle()
    return cluster


def is_protected() -> Cluster:
    cluster = one_node()
    run(cluster, "old", spec(expected_seconds=100, grace=5))
    cluster.advance(81)
    cluster.submit(spec(priority=50), "j")
    cluster.settle()
    return cluster


def drained() -> Cluster:
    cluster = one_node()
    cluster.node("small", 100)
    cluster.ask(e.NodeDrainRequested, node="n1", deadline_ns=cluster.now + 60 * SECOND, note="disk")
    cluster.submit(spec(), "j")
    cluster.settle()
    return cluster


REASONS: dict[str, Callable[[], Cluster]] = {
    "Resources": resources,
    "Priority": priority,
    "QuotaReached": quota_reached,
    "GangTopology": gang_topology,
    "Reserved": lambda: blocked(one_node()),
    "Held": held,
    "Protected": is_protected,
    "NodeDrained": drained,
}


@pytest.mark.parametrize("code", REASONS)
async def test_who_waits_is_told_why_and_all_of_it_is_proved(code: str, tmp_path: Path) -> None:
    cluster = REASONS[code]()
    assert cluster.stage("j") == "pending"
    source = history_in(tmp_path, cluster)
    found = await answered(source, "j")
    assert found.waits is not None
    reasons = {reason.code: reason for reason in found.waits.place.reasons}
    if code != "Protected":  # what is short comes first: that others are protected is why nobody leaves for it
        assert found.waits.place.reasons[0].code == code
    assert reasons[code].numbers or reasons[code].detail or code == "Held"
    assert code in found.answer
    assert cluster.waiting["j"].code in (*reasons, "NoNode"), "the pass said so too"
    assert f"`{code}`" in (REFERENCE / "reason-codes.md").read_text()
    await proved(source)


# ---- acts ----

Told = tuple[Cluster, str]
"""What happened, and a word of the answer to why `j` is as it is then."""


def asks(kind: type[e.JobEvent], word: str, *, runs: bool = True, **fields: Any) -> Callable[[], Told]:
    """Return a story of a job that runs, or waits, of which somebody asks that."""

    def story() -> Told:
        cluster = one_node()
        if runs:
            run(cluster, "j", spec(time_limit_seconds=1000))
        else:
            cluster.submit(spec(), "j")
        cluster.ask(kind, "j", note="as agreed", **fields)
        cluster.settle()
        return cluster, word

    return story


def released() -> Told:
    cluster = held()
    cluster.ask(e.ReleaseRequested, "j", note="as agreed")
    cluster.settle()
    return cluster, "it is placed on n1"


def resumed() -> Told:
    cluster = one_node()
    run(cluster, "j", spec())
    cluster.ask(e.SuspendRequested, "j", note="for a demo")
    cluster.settle()
    cluster.save("j", 7)
    cluster.exit("j", "suspended", acknowledged=True)
    assert cluster.waiting["j"].code == "Held"
    cluster.ask(e.ResumeRequested, "j", note="as agreed")
    cluster.settle()
    return cluster, "it is placed on n1"


def limited() -> Told:
    cluster, _ = asks(e.JobLimitChanged, "", time_limit_seconds=60)()
    cluster.advance(61)
    return cluster, "it is being stopped: TimeLimit"


def raised() -> Told:
    cluster = blocked(one_node())
    cluster.ask(e.JobPriorityChanged, "j", note="as agreed", priority=9)
    cluster.settle()
    assert cluster.stage("runs") == "preempting"
    return cluster, "Reserved"


def queue_set(word: str, **settings: Any) -> Callable[[], Told]:
    def story() -> Told:
        cluster = one_node()
        cluster.ask(e.QueueChanged, tenant="t", note="as agreed", **settings)
        cluster.submit(spec(), "j")
        cluster.settle()
        return cluster, word

    return story


def node_resumed() -> Told:
    cluster = drained()
    cluster.ask(e.NodeResumeRequested, node="n1", note="as agreed")
    cluster.settle()
    return cluster, "it is placed on n1"


def node_drained() -> Told:
    cluster = one_node()
    run(cluster, "j", spec())
    cluster.ask(e.NodeDrainRequested, node="n1", deadline_ns=cluster.now + 60 * SECOND, note="as agreed")
    cluster.settle()
    return cluster, "NodeDrained"


def maintained(*, cancelled: bool) -> Callable[[], Told]:
    def story() -> Told:
        cluster = one_node()
        times = {"start_ns": cluster.now + 60 * SECOND, "end_ns": cluster.now + 600 * SECOND}
        cluster.ask(e.MaintenancePlanned, name="firmware", nodes=("n1",), note="as agreed", **times)
        cluster.submit(spec(), "j")
        cluster.settle()
        if cancelled:
            cluster.ask(e.MaintenanceCancelled, name="firmware", note="as agreed")
            cluster.settle()
        return cluster, "it is placed on n1" if cancelled else "Maintenance"

    return story


ACTS: dict[str, tuple[type[e.Event], Callable[[], Told], str]] = {
    "hold": (e.HoldRequested, asks(e.HoldRequested, "Held", runs=False), "tidegate hold JOB"),
    "release": (e.ReleaseRequested, released, "tidegate release JOB"),
    "suspend": (e.SuspendRequested, asks(e.SuspendRequested, "it is leaving"), "tidegate suspend JOB"),
    "resume": (e.ResumeRequested, resumed, "tidegate resume JOB"),
    "requeue": (e.RequeueRequested, asks(e.RequeueRequested, "it is leaving"), "tidegate requeue JOB"),
    "priority": (e.JobPriorityChanged, raised, "tidegate job set JOB priority"),
    "limit": (e.JobLimitChanged, limited, "job set JOB limit"),
    "queue ceiling": (e.QueueChanged, queue_set("QuotaReached", ceiling=Resources(500, 8192)), "create\\|set TENANT"),
    "queue stop": (e.QueueChanged, queue_set("QueueStopped", stopped=True), "stop TENANT"),
    "queue weight": (e.QueueChanged, queue_set("it is placed on n1", weight=3), "tidegate queue list"),
    "node drain": (e.NodeDrainRequested, node_drained, "tidegate node drain NODE --deadline"),
    "node resume": (e.NodeResumeRequested, node_resumed, "resume NODE"),
    "maintenance": (e.MaintenancePlanned, maintained(cancelled=False), "tidegate maintenance plan NAME"),
    "maintenance cancel": (e.MaintenanceCancelled, maintained(cancelled=True), "cancel NAME"),
}


@pytest.mark.parametrize("act", ACTS)
async def test_what_an_operator_asks_is_in_the_history_with_who_and_why_and_is_proved(act: str, tmp_path: Path) -> None:
    kind, story, command = ACTS[act]
    cluster, word = story()
    source = history_in(tmp_path, cluster)
    (listed,) = await newest(source, Wanted(frozenset({kind.__name__})), 1)
    assert (listed["data"]["actor"], listed["data"]["note"], listed["void"]) == ("ada", "as agreed", "")
    found = await answered(source, "j")
    assert word in found.answer
    if issubclass(kind, e.JobEvent):
        assert kind.__name__ in [each["kind"] for each in found.story]
    assert command in (REFERENCE / "cli.md").read_text()
    await proved(source)


async def test_a_node_that_keeps_failing_jobs_is_cordoned_and_says_so_to_who_waits(tmp_path: Path) -> None:
    cluster = a_cluster()
    for job in ("a", "b", "a", "b", "c"):
        fail_on(cluster, "n1", job)
    assert cluster.state.nodes["n1"].cordoned
    cluster.submit(spec(99_000), "j")
    cluster.node("big", 99_000)
    cluster.settle()
    source = history_in(tmp_path, cluster)
    (cordoned,) = await newest(source, Wanted(frozenset({"NodeCordoned"})), 9)
    assert (cordoned["node"], cordoned["reasons"][0]["code"]) == ("n1", "KeepsFailingJobs")
    await proved(source)
    cluster.ask(e.NodeResumeRequested, node="n1", note="new memory")
    cluster.settle()
    assert not cluster.state.nodes["n1"].cordoned
    await proved(history_in(tmp_path, cluster))
