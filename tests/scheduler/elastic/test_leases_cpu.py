"""CPU beyond floors: what comes free is nobody's and is not leased, and what is leased hinders nobody else."""

from __future__ import annotations

from tidegate_events import events as e
from tidegate_events.resources import Resources

from tests.scheduler.elastic.lab import of
from tests.scheduler.elastic.lent import ask, borrower, enter, go, granted, lending, owner, run
from tests.support.cluster import Cluster

LOW = Resources(100, 100)


def needs(cpu: int) -> Resources:
    return Resources(cpu, 100)


def owned(cluster: Cluster, job: str) -> tuple[Resources | None, Resources | None]:
    """Return what the job has beyond its floor that was nobody's, and what belongs to others."""
    member = cluster.members(job)[0]
    return member.extra, member.leased


def test_what_comes_free_in_a_pass_is_granted_in_the_next_one_and_is_nobodys() -> None:
    cluster = lending(cpu=4000, gpus=0)
    for name in ("first", "second"):
        run(cluster, name, borrower(low=LOW, high=needs(3000)))
    go(cluster, "first", "learning")
    assert not granted(ask(cluster, "second", "learning"))
    decided = cluster.phase("first", "default")
    assert granted(decided) == {"second": "learning"}
    assert [event.job for event in of(decided, e.QuotaChanged)] == ["first", "second"]
    assert owned(cluster, "second") == (Resources(2900), None)
    assert owned(cluster, "first") == (None, None)


def test_who_goes_on_to_a_phase_of_its_own_hinders_nobody() -> None:
    cluster = lending(cpu=4000, gpus=0)
    for name in ("first", "second"):
        run(cluster, name, borrower(low=LOW, high=needs(3000)))
    go(cluster, "first", "learning")
    ask(cluster, "second", "learning")
    assert granted(go(cluster, "first", "sampling")) == {"first": "sampling", "second": "learning"}
    assert owned(cluster, "second") == (Resources(2900), None)


def test_what_is_leased_of_a_lender_that_has_left_keeps_nobody_from_the_rest() -> None:
    cluster = lending(cpu=6000, gpus=0)
    run(cluster, "lender", owner(low=LOW, high=needs(2000)))
    run(cluster, "large", borrower(low=LOW, high=needs(4500)))
    run(cluster, "small", borrower(low=LOW, high=needs(1000)))
    go(cluster, "large", "learning")
    assert owned(cluster, "large") == (Resources(3800), Resources(600))
    cluster.exit("lender", "completed")
    assert granted(ask(cluster, "small", "learning")) == {"small": "learning"}
    assert owned(cluster, "small") == (Resources(900), None)
    enter(cluster, "small")


def test_no_more_is_granted_than_nobody_has() -> None:
    cluster = lending(cpu=6000, gpus=0)
    run(cluster, "lender", owner(low=LOW, high=needs(2000)))
    run(cluster, "large", borrower(low=LOW, high=needs(4500)))
    run(cluster, "small", borrower(low=LOW, high=needs(1600)))
    go(cluster, "large", "learning")
    cluster.exit("lender", "completed")
    assert not granted(ask(cluster, "small", "learning")), "2000 are free by floors, and 600 of them are leased"
