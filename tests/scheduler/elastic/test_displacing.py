"""A dry run names whom the real submission asks for room, how, and by when, whichever stage it is that asks."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.dry_run import Displaced, DryRun, dry_run

from tests.scheduler.elastic.lab import asked_to_leave, elastic
from tests.scheduler.elastic.lent import GRACE, HAND_BACK, lent_out, recalled
from tests.scheduler.elastic.test_defragment import big, fragmented
from tests.scheduler.elastic.test_leases_bounds import beyond_its_floor
from tests.support.cluster import SECOND, Cluster, spec


def tried_and_done(cluster: Cluster, job: JobSpec) -> tuple[DryRun, list[e.AnyEvent]]:
    """Return what the dry run says, and what is decided when the job is submitted then."""
    before = cluster.state.digest()
    found = dry_run(cluster.state, job, cluster.now)
    assert cluster.state.digest() == before
    cluster.submit(job, "new")
    return found, cluster.settle()


def seconds(cluster: Cluster, found: DryRun) -> float:
    assert (found.verdict, found.starts_basis) == ("displaces", "deadline")
    assert found.starts_at_ns is not None
    return (found.starts_at_ns - cluster.now) / SECOND


def test_preemption_names_who_leaves() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    for name in ("a", "b"):
        cluster.submit(spec(1000, grace=25), name)
        cluster.settle()
        cluster.start(name)
    found, decided = tried_and_done(cluster, spec(2000, priority=5))
    assert found.displaces == (Displaced("a", "t", 0, "leaves"), Displaced("b", "t", 0, "leaves"))
    assert asked_to_leave(decided) == {"a": "new", "b": "new"}
    assert (seconds(cluster, found), found.nodes) == (25.0, ("n1",))


def test_a_guarantee_that_is_reclaimed_names_who_leaves() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    cluster.submit(spec(2000, tenant="borrows"), "lent")
    cluster.settle()
    cluster.start("lent")
    cluster.ask(e.QueueChanged, tenant="t", guaranteed=Resources(cpu_millis=2000))
    found, decided = tried_and_done(cluster, spec(1000))
    assert found.displaces == (Displaced("lent", "borrows", 0, "leaves"),)
    assert asked_to_leave(decided) == {"lent": "new"}


def test_defragmentation_names_who_moves() -> None:
    cluster = fragmented()
    found, decided = tried_and_done(cluster, big())
    (moved,) = asked_to_leave(decided)
    assert found.displaces == (Displaced(moved, "t", 0, "moves"),)
    assert seconds(cluster, found) == 10.0
    assert found.nodes == cluster.job("new").reserved_nodes


def test_room_beyond_a_guarantee_names_who_hands_back() -> None:
    cluster = beyond_its_floor()
    found, decided = tried_and_done(cluster, spec(500, memory=3000))
    assert found.displaces == (Displaced("borrower", "t", 0, "hands_back"),)
    assert (recalled(decided), asked_to_leave(decided)) == ({"borrower": "new"}, {})
    assert seconds(cluster, found) == HAND_BACK + GRACE
    assert found.starts_at_ns == cluster.job("new").reserved_start_ns


def test_room_that_an_owner_has_lent_names_who_hands_back() -> None:
    """By floors it is free, and somebody has it on lease: it is recalled for who comes."""
    cluster = lent_out(memory=9000, gpus=2)
    found, decided = tried_and_done(cluster, spec(500, memory=4500))
    assert found.displaces == tuple(Displaced(name, "t", 0, "hands_back") for name in sorted(recalled(decided)))
    assert found.verdict == ("displaces" if recalled(decided) else "starts_now")


@pytest.mark.parametrize("job", [spec(100), spec(4000), spec(99_000), spec(1000, gang=2)])
def test_who_asks_nobody_displaces_nobody(job: Any) -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    cluster.submit(spec(4000), "runs")
    cluster.settle()
    cluster.start("runs")
    found, decided = tried_and_done(cluster, job)
    assert found.displaces == ()
    assert (asked_to_leave(decided), recalled(decided)) == ({}, {})
