"""Dry runs: what would become of a job, and that asking leaves no trace."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.decide import decide
from tidegate_scheduler.dry_run import TRIAL, Displaced, DryRun, dry_run
from tidegate_scheduler.policy.elastic.pipeline import index_of

from tests.support.cluster import SECOND, Cluster, spec


@pytest.fixture(params=[1, 2])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A cluster under each policy."""
    made = Cluster(policy=request.param)
    made.node("n1", cpu=1000)
    return made


def _run(cluster: Cluster, job: str, **declared: Any) -> None:
    cluster.submit(spec(**declared), job)
    cluster.settle()
    cluster.start(job)


def test_where_there_is_room_it_starts_now(cluster: Cluster) -> None:
    found = dry_run(cluster.state, spec(), cluster.now)
    assert (found.verdict, found.nodes, found.starts_at_ns, found.starts_basis) == (
        *("starts_now", ("n1",)),
        *(cluster.now, "now"),
    )
    assert found.position == 0
    assert [reason.code for reason in found.reasons] == ["Fits"]


def test_it_says_whom_it_would_displace_and_until_when_they_may_take(cluster: Cluster) -> None:
    _run(cluster, "low", grace=20)
    found = dry_run(cluster.state, spec(priority=50), cluster.now)
    assert (found.verdict, found.nodes) == ("displaces", ("n1",))
    assert found.displaces == (Displaced("low", "t", 0),)
    assert (found.starts_at_ns, found.starts_basis) == (cluster.now + 20 * SECOND, "deadline")
    assert found.reasons[0].code == "Reserved"


def test_it_waits_at_its_place_in_line_with_the_earliest_start(cluster: Cluster) -> None:
    _run(cluster, "runs", expected_seconds=60)
    cluster.submit(spec(expected_seconds=30), "ahead")
    cluster.advance(10)
    found = dry_run(cluster.state, spec(), cluster.now)
    assert (found.verdict, found.position, found.displaces) == ("waits", 2, ())
    assert (found.starts_at_ns, found.starts_basis) == (cluster.now + 80 * SECOND, "expected")
    assert found.reasons[0].code in ("Resources", "Priority")


def test_what_no_node_could_hold_never_starts(cluster: Cluster) -> None:
    cluster.advance(60)  # where a node joined just now others may be on their way
    found = dry_run(cluster.state, spec(cpu=1001), cluster.now)
    assert (found.verdict, found.nodes, found.starts_at_ns) == ("never", (), None)
    assert found.reasons[0].code in ("NoNode", "Inadmissible")
    assert dry_run(Cluster().state, spec(), cluster.now).verdict == "waits", "nodes may still join"


def test_where_what_nodes_offer_changed_just_now_it_waits_as_the_job_itself_would() -> None:
    cluster = Cluster()
    cluster.node("n1", cpu=1000, gpus=1)

    def verdicts() -> list[str]:
        jobs = [spec(cpu=1001), spec(image="strange"), spec(gpus=1)]
        return [dry_run(cluster.state, each, cluster.now).verdict for each in jobs]

    assert verdicts() == ["waits", "waits", "starts_now"]
    found = dry_run(cluster.state, spec(cpu=1001), cluster.now)
    assert (found.reasons[0].code, found.reasons[0].detail) == ("NoNode", "no node is large enough for a member")
    cluster.submit(spec(cpu=1001), "real")
    cluster.advance(59)
    assert (verdicts()[0], cluster.stage("real")) == ("waits", "pending")
    cluster.advance(1)
    assert (verdicts(), cluster.stage("real")) == (["never", "never", "starts_now"], "rejected")
    cluster.node("n1", cpu=1000, incarnation=2)
    assert verdicts() == ["waits", "waits", "waits"]
    cluster.advance(60)
    assert verdicts() == ["never", "never", "never"]


def test_a_job_above_the_ceiling_of_its_tenant_never_starts() -> None:
    cluster = Cluster()
    cluster.node("n1", cpu=4000)
    ceiling = e.QueueChanged(id="q", at_ns=cluster.now, tenant="t", actor="olga", ceiling=Resources(2000, 8192))
    cluster.append("gateway", "g1", ceiling)
    found = dry_run(cluster.state, spec(cpu=3000), cluster.now)
    assert (found.verdict, found.reasons[0].code) == ("never", "QuotaReached")
    assert found.reasons[0].numbers == {"cpu_millis_needed": 3000, "cpu_millis_ceiling": 2000}
    cluster.advance(60)
    larger = dry_run(cluster.state, spec(cpu=5000), cluster.now)
    assert (larger.verdict, larger.reasons[0].code) == ("never", "NoNode"), "no ceiling would help"
    assert dry_run(cluster.state, spec(cpu=2000), cluster.now).verdict == "starts_now"


def _story(cluster: Cluster, *, asks: bool) -> list[e.AnyEvent]:
    """Tell one story; ask before every pass what would become of jobs of every kind, or do not."""
    questions = [spec(), spec(priority=90), spec(cpu=4000, priority=90), spec(cpu=99_000), spec(gang=3, priority=5)]

    def ask() -> None:
        for each in questions if asks else ():
            before = cluster.state.digest()
            assert isinstance(dry_run(cluster.state, each, cluster.now), DryRun)
            assert cluster.state.digest() == before
            assert TRIAL not in cluster.state.jobs
            assert TRIAL not in cluster.state.specs

    decided: list[e.AnyEvent] = []
    for number in range(8):
        cluster.node(f"m{number % 3}", cpu=2000, incarnation=number + 1) if number < 3 else None
        cluster.submit(spec(priority=number % 3, cpu=700 + 100 * number, expected_seconds=20), f"j{number}")
        ask()
        decided += cluster.settle()
        ask()
        if cluster.stage(f"j{number}") == "placed":
            decided += cluster.start(f"j{number}")
        ask()
        decided += cluster.advance(7)
    for job in ("j0", "j1"):
        if job in cluster.state.jobs and cluster.job(job).members:
            decided += cluster.exit(job, "completed")
            ask()
    return decided


def test_asking_changes_neither_the_state_nor_what_is_decided_next(cluster: Cluster) -> None:
    policy = cluster.state.header.policy
    plain, asked = Cluster(policy=policy), Cluster(policy=policy)
    assert _story(asked, asks=True) == _story(plain, asks=False)
    assert asked.state.digest() == plain.state.digest()
    assert decide(asked.state, asked.now).events == decide(plain.state, plain.now).events


def test_the_tables_are_afterwards_as_they_were() -> None:
    cluster = Cluster()
    _story(cluster, asks=False)
    index = index_of(cluster.state)
    index.refresh(cluster.now)
    free, later = index.table.free.copy(), index.table.later.copy()
    aside, lines = list(index.aside), set(index.lines)
    shares = {tenant: msgspec.structs.replace(share) for tenant, share in index.shares.items()}
    for each in (spec(), spec(priority=90), spec(gang=3)):
        dry_run(cluster.state, each, cluster.now)
    index.refresh(cluster.now)
    assert (index.table.free == free).all()
    assert (index.table.later == later).all()
    assert (index.shares, list(index.aside), set(index.lines)) == (shares, aside, lines)
