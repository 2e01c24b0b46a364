"""Borrowers in phases within their own floors: they keep nothing that is leased, and get back what is theirs."""

from __future__ import annotations

from typing import Any

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, PreemptionRule, ResourceRange

from tests.scheduler.elastic.lab import asked_to_leave
from tests.scheduler.elastic.lent import (
    GRACE,
    HAND_BACK,
    applied,
    ask,
    borrower,
    enter,
    go,
    granted,
    hand_back,
    lending,
    lent_out,
    mib,
    owner,
    recalled,
    refused,
    run,
)
from tests.support.cluster import Cluster


def with_a_floor() -> JobSpec:
    """A borrower that is guaranteed one device and 1500 MiB, and needs neither while it samples."""
    resources = {
        "default": ResourceRange(minimum=Resources(500, 1500, 1)),
        "sampling": ResourceRange(minimum=Resources(500, 500)),
        "learning": ResourceRange(minimum=Resources(500, 2500, 1)),
    }
    fields: dict[str, Any] = {"name": "j", "tenant": "t", "submitter": "u", "phase_entry": "asked", "borrows": True}
    component = Component(name="main", command=("true",), resources=resources)
    leaves = PreemptionRule(grace_seconds=GRACE, hand_back_seconds=HAND_BACK)
    return JobSpec(components=(component,), preemption=leaves, **fields)


def lent_by_a_borrower() -> Cluster:
    """A node on which a borrower samples, and another one learns with what is the first one's floor."""
    cluster = lending(memory=2500, gpus=1)
    run(cluster, "lender", with_a_floor())
    applied(cluster, "lender")
    go(cluster, "lender", "sampling")
    run(cluster, "taker", borrower(high=Resources(500, 1500, 1)))
    go(cluster, "taker", "learning")
    assert cluster.members("taker")[0].leased is not None
    return cluster


def test_what_a_borrower_needs_within_its_floor_is_recalled() -> None:
    cluster = lent_by_a_borrower()
    assert recalled(ask(cluster, "lender", "default")) == {"taker": "lender"}
    assert granted(hand_back(cluster, "taker"))["lender"] == "default"
    assert cluster.members("lender")[0].gpu_indices == (0,)


def test_whoever_is_in_a_phase_within_its_floor_has_nothing_leased_whatever_led_there() -> None:
    for told in (True, False):
        cluster = lent_out()
        if told:
            cluster.phase("borrower", "default")
            applied(cluster, "borrower")
        else:
            go(cluster, "borrower", "default")
        member = cluster.members("borrower")[0]
        assert (member.leased, member.extra, member.gpu_indices, member.held_mib) == (None, None, (), 0)
        assert granted(ask(cluster, "owner", "learning")) == {"owner": "learning"}


def test_who_was_granted_a_phase_and_never_enters_it_hands_back() -> None:
    cluster = lending()
    run(cluster, "owner", owner())
    run(cluster, "borrower", borrower())
    ask(cluster, "borrower", "learning")
    assert recalled(ask(cluster, "owner", "learning")) == {"borrower": "owner"}
    cluster.phase("borrower", "default")
    assert granted(applied(cluster, "borrower")) == {"owner": "learning"}


def test_what_the_kernel_keeps_of_a_phase_that_was_left_long_ago_is_in_the_way() -> None:
    cluster = lent_out()
    ask(cluster, "borrower", "sampling")
    enter(cluster, "borrower")
    refused(cluster, "borrower", 3000)
    cluster.advance(3600)
    assert recalled(ask(cluster, "owner", "learning")) == {"borrower": "owner"}
    assert asked_to_leave(cluster.advance(HAND_BACK)) == {"borrower": "owner"}


def two_parts(default: tuple[int, int], sampling: tuple[int, int]) -> JobSpec:
    """A borrower of two components, with the memory of each in two phases."""
    components = tuple(
        Component(
            name=name,
            command=("true",),
            resources={
                "default": ResourceRange(minimum=Resources(100, default[number])),
                "sampling": ResourceRange(minimum=Resources(100, sampling[number])),
            },
        )
        for number, name in enumerate(("first", "second"))
    )
    leaves = PreemptionRule(grace_seconds=GRACE, hand_back_seconds=HAND_BACK)
    fields: dict[str, Any] = {"name": "j", "tenant": "t", "submitter": "u", "phase_entry": "asked", "borrows": True}
    return JobSpec(components=components, preemption=leaves, **fields)


def between_two_phases() -> Cluster:
    """A borrower that may enter a phase within its floor, and has what both phases need until it does."""
    cluster = lending(memory=4700, gpus=0)
    run(cluster, "owner", owner(high=Resources(500, 4000)))
    run(cluster, "borrower", two_parts((400, 100), (100, 400)))
    assert granted(ask(cluster, "borrower", "sampling")) == {"borrower": "sampling"}
    applied(cluster, "borrower")
    assert mib(cluster, "borrower") == 800, "300 more than its floor, of what is the owner's"
    return cluster


def test_what_is_needed_to_go_from_one_phase_to_another_is_in_the_way_too_and_is_told_once() -> None:
    cluster = between_two_phases()
    decided = ask(cluster, "owner", "learning")
    assert recalled(decided) == {"borrower": "owner"}
    assert len([each for each in decided if isinstance(each, e.HandBackRequested)]) == 1
    enter(cluster, "borrower")
    assert mib(cluster, "borrower") == 500
    assert granted(applied(cluster, "borrower")) == {"owner": "learning"}
    assert cluster.members("borrower")[0].hand_back_ns == 0


def test_who_stays_between_two_phases_is_asked_to_leave() -> None:
    cluster = between_two_phases()
    ask(cluster, "owner", "learning")
    assert not recalled(cluster.advance(HAND_BACK - 1)), "it was told"
    assert asked_to_leave(cluster.advance(1)) == {"borrower": "owner"}
    assert granted(cluster.exit("borrower", "suspended", acknowledged=True))["owner"] == "learning"
