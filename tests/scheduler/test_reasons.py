"""Why a job waits under policy 2: the dominant reason first, then what else is in its way, with the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.explain import Explanation, count_waiting, explain, queue
from tidegate_scheduler.history.verdicts import verdicts
from tidegate_scheduler.policy.parameters import Parameters

from tests.support.cluster import SECOND, Cluster, spec


def say(cluster: Cluster, kind: Any, **fields: Any) -> None:
    """An operator or a user asks for something."""
    event = kind(id=f"{kind.__name__}-{len(cluster.frames)}", at_ns=cluster.now, actor="olga", **fields)
    cluster.append("gateway", "g1", event)


def run(cluster: Cluster, job: str, cpu: int = 1000, **declared: Any) -> None:
    cluster.submit(spec(cpu, **declared), job)
    cluster.settle()
    cluster.start(job)


def asked(cluster: Cluster, job: str) -> Explanation:
    """Explain one job; the queue says the same of it, and counting agrees on what dominates."""
    cluster.settle()
    found = explain(cluster.state, cluster.waiting, job, cluster.now)
    assert found in queue(cluster.state, cluster.waiting, cluster.now).queue
    counted = {each.reason for each in count_waiting(cluster.state, cluster.waiting, cluster.now)}
    assert found.reasons[0].code in counted
    return found


def codes(cluster: Cluster, job: str) -> list[str]:
    return [reason.code for reason in asked(cluster, job).reasons]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.node("n1", cpu=1000)
    return made


def test_a_job_that_is_held_says_so_and_has_no_start(cluster: Cluster) -> None:
    cluster.submit(spec(), "j")
    say(cluster, e.HoldRequested, tenant="t", job="j")
    found = asked(cluster, "j")
    assert [reason.code for reason in found.reasons] == ["Held"]
    assert (found.position, found.starts_at_ns) == (1, None)
    say(cluster, e.QueueChanged, tenant="t", stopped=True)
    assert codes(cluster, "j") == ["Held", "QueueStopped"]


def test_a_stopped_queue_says_so_of_all_its_jobs_which_stand_behind_the_others(cluster: Cluster) -> None:
    run(cluster, "runs")
    cluster.submit(spec(priority=90), "mine")
    say(cluster, e.QueueChanged, tenant="t", stopped=True)
    event = e.JobSubmitted(id="other", at_ns=cluster.now, tenant="u", job="theirs", spec=spec())
    cluster.append("gateway", "g1", event)
    assert codes(cluster, "mine") == ["QueueStopped"]
    assert asked(cluster, "theirs").position == 1
    assert asked(cluster, "mine").position == 2


def test_who_reached_the_ceiling_is_told_what_is_used_and_what_it_is(cluster: Cluster) -> None:
    cluster.node("n2", cpu=4000)
    say(cluster, e.QueueChanged, tenant="t", ceiling=Resources(1500, 0))
    run(cluster, "runs")
    cluster.submit(spec(), "j")
    found = asked(cluster, "j")
    assert found.reasons[0].code == "QuotaReached"
    assert found.reasons[0].numbers["cpu_millis_used"] == 1000
    assert found.reasons[0].numbers["cpu_millis_ceiling"] == 1500


def test_a_pause_has_its_end_as_the_earliest_start_whatever_comes_then() -> None:
    cluster = Cluster()
    cluster.node("n1", cpu=1000)
    run(cluster, "j", attempts=3)
    cluster.exit("j", "failed", exit_code=1)
    cluster.settle()
    run(cluster, "other")  # it declares nothing, so when there is room after the pause is unknown
    found = asked(cluster, "j")
    assert found.reasons[0].code == "BackOff"
    assert (found.starts_at_ns, found.starts_basis) == (cluster.now + SECOND, "backoff")


@pytest.mark.parametrize(("act", "code"), [("drain", "NodeDrained"), ("away", "NodeAway"), ("window", "Maintenance")])
def test_where_only_closed_nodes_could_hold_it_that_dominates(cluster: Cluster, act: str, code: str) -> None:
    cluster.node("small", cpu=100)
    if act == "drain":
        say(cluster, e.NodeDrainRequested, node="n1", deadline_ns=cluster.now + 60 * SECOND)
    elif act == "away":
        cluster.silence("n1")
    else:
        times = {"start_ns": cluster.now - SECOND, "end_ns": cluster.now + 600 * SECOND}
        say(cluster, e.MaintenancePlanned, name="firmware", nodes=("n1",), **times)
    cluster.submit(spec(), "j")
    found = asked(cluster, "j")
    assert [reason.code for reason in found.reasons] == [code]
    assert ("n1" in found.reasons[0].detail) or code == "Maintenance"
    assert found.reasons[0].numbers["nodes"] == 1
    if code == "Maintenance":
        assert (found.starts_at_ns, found.starts_basis) == (cluster.now + 600 * SECOND, "maintenance")
    by_node = {each.node: each.code for each in verdicts(cluster.state, cluster.job("j"), cluster.now)}
    assert by_node == {"n1": code, "small": "TooSmall"}


def test_a_drained_node_that_could_help_is_named_after_what_is_short(cluster: Cluster) -> None:
    cluster.node("n2", cpu=1000)
    say(cluster, e.NodeDrainRequested, node="n2", deadline_ns=cluster.now + 60 * SECOND)
    run(cluster, "runs")
    cluster.submit(spec(), "j")
    found = codes(cluster, "j")
    assert found[-1] == "NodeDrained"
    assert found[0] in ("Resources", "Reserved")


def test_the_protected_are_named_with_how_long_they_are(cluster: Cluster) -> None:
    run(cluster, "old", expected_seconds=100, grace=5)
    cluster.advance(81)
    cluster.submit(spec(priority=50), "high")
    found = asked(cluster, "high")
    protected = next(reason for reason in found.reasons if reason.code == "Protected")
    assert "old" in protected.detail
    assert (protected.numbers["protected"], protected.numbers["cool_down"], protected.numbers["budget"]) == (1, 0, 0)
    assert protected.numbers["until_ns"] == cluster.job("old").started_ns + 125 * SECOND + 1
    assert found.reasons[0].code != "Protected", "what is short comes first: counting says the same"


def test_nobody_is_called_protected_who_was_asked_to_leave(cluster: Cluster) -> None:
    run(cluster, "low")
    cluster.submit(spec(priority=50), "high")
    assert codes(cluster, "high") == ["Reserved"]


def test_what_no_node_has_is_said(cluster: Cluster) -> None:
    cluster.submit(spec(gpus=2), "gpus")
    cluster.submit(spec(cpu=9000), "large")
    cluster.submit(spec(gang=5), "gang")
    cluster.submit(spec(isolation="guarded"), "level")
    details = {job: asked(cluster, job).reasons[0] for job in ("gpus", "large", "gang", "level")}
    assert {reason.code for reason in details.values()} == {"NoNode"}
    assert details["gpus"].numbers["gpus_most"] == 0
    assert details["large"].numbers["cpu_millis_most"] == 1000
    assert details["gang"].numbers == {"members_needed": 5, "members_most": 1}
    assert "guarded" in details["level"].detail


def test_an_intensive_gang_says_that_topology_is_short(cluster: Cluster) -> None:
    cluster.node("n2", cpu=1000)
    cluster.submit(spec(gang=2, communication="intensive"), "gang")
    found = asked(cluster, "gang")
    assert found.reasons[0].code in ("GangTopology", "NoNode")
    assert "switch" in found.reasons[0].detail
    meant = verdicts(cluster.state, cluster.job("gang"), cluster.now)
    assert [each.code for each in meant] == ["GangTopology", "GangTopology"]


# ---- the line ----


def line(cluster: Cluster) -> list[str]:
    return [one.job for one in queue(cluster.state, cluster.waiting, cluster.now).queue]


def test_tenants_take_turns_in_the_line_as_their_shares_grow(cluster: Cluster) -> None:
    run(cluster, "runs")
    for tenant, count in (("a", 4), ("b", 2)):
        for number in range(count):
            job = f"{tenant}{number}"
            submitted = e.JobSubmitted(id=job, at_ns=cluster.now, tenant=tenant, job=job, spec=spec())
            cluster.append("gateway", "g1", submitted)
    cluster.settle()
    assert line(cluster) == ["a0", "b0", "a1", "b1", "a2", "a3"]
    positions = [explain(cluster.state, cluster.waiting, job, cluster.now).position for job in line(cluster)]
    assert positions == [1, 2, 3, 4, 5, 6]


def test_the_line_is_the_order_in_which_jobs_are_placed() -> None:
    """Room for one at a time: whoever is first in line is the next one placed, to the end."""
    cluster = Cluster(Parameters(ageing_seconds=60, preemptions_max=0))
    cluster.node("n1", cpu=1000)
    run(cluster, "now")
    for number in range(12):
        tenant, priority = "abc"[number % 3], (0, 5)[number % 2]
        job = f"{tenant}{number}"
        submitted = e.JobSubmitted(
            id=job, at_ns=cluster.now, tenant=tenant, job=job, spec=spec(500 + 100 * (number % 4), priority=priority)
        )
        cluster.append("gateway", "g1", submitted)
        cluster.advance(20)
    running = "now"
    while expected := line(cluster)[:1]:
        cluster.exit(running, "completed")
        assert cluster.job(expected[0]).stage == "placed", expected
        running = expected[0]
        cluster.start(running)
        for other in [job.id for job in cluster.state.jobs.values() if job.members and job.id != running]:
            cluster.start(other)
            cluster.exit(other, "completed")


def test_far_behind_the_place_is_counted_by_lines(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run(cluster, "runs")
    for number in range(60):
        tenant = "ab"[number % 3 == 0]
        job = f"{tenant}{number}"
        told = spec(1000, priority=number % 2)
        cluster.append("gateway", "g1", e.JobSubmitted(id=job, at_ns=cluster.now, tenant=tenant, job=job, spec=told))
    cluster.settle()
    exact = {job: place for place, job in enumerate(line(cluster), start=1)}
    monkeypatch.setattr("tidegate_scheduler.policy.elastic.order.WALKED_MAX", 5)
    counted = {job: explain(cluster.state, cluster.waiting, job, cluster.now).position for job in exact}
    assert all(counted[job] == place for job, place in exact.items() if place <= 5)
    assert max(abs(counted[job] - place) for job, place in exact.items()) <= 2


def test_what_a_job_reports_of_its_progress_moves_the_forecast_by_half_at_most(cluster: Cluster) -> None:
    run(cluster, "runs", expected_seconds=100)
    cluster.submit(spec(), "j")
    cluster.advance(20)
    assert asked(cluster, "j").starts_at_ns == cluster.now + 80 * SECOND
    member = cluster.members("runs")[0]
    for millis, seconds in ((100, 120), (900, 40)):
        cluster.node_fact("runs", member, e.ProgressReported, progress_millis=millis, step=None, _node=False)
        assert asked(cluster, "j").starts_at_ns == cluster.now + seconds * SECOND


def test_of_one_that_is_about_to_be_cancelled_the_queue_says_what_is_said_of_it_alone() -> None:
    cluster = Cluster(Parameters(reservations_max=2))
    cluster.node("n1", cpu=4000)
    run(cluster, "first", 4000)
    for number in range(6):
        cluster.submit(spec(1000), f"j{number}")
        cluster.submit(spec(500), f"small{number}")
    cluster.settle()
    for name in ("j0", "j3", "j5", "small0"):
        cluster.cancel(name)
        line = queue(cluster.state, cluster.waiting, cluster.now).queue
        assert all(explain(cluster.state, cluster.waiting, each.job, cluster.now) == each for each in line)
        assert all(len(each.reasons) == 1 for each in line if cluster.job(each.job).cancel_requested)
