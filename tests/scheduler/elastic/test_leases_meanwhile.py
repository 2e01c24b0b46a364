"""Leases while other things happen: ends, losses, jobs that come, turns, bounds, and questions about all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_scheduler.decide import decide
from tidegate_scheduler.dry_run import dry_run
from tidegate_scheduler.explain import explain
from tidegate_scheduler.history import verify
from tidegate_scheduler.history.cluster import free_room
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import asked_to_leave
from tests.scheduler.elastic.lent import (
    GRACE,
    HAND_BACK,
    ask,
    at,
    borrower,
    enter,
    go,
    granted,
    hand_back,
    lending,
    lent_out,
    mib,
    node,
    owner,
    recalled,
    refused,
    run,
)
from tests.scheduler.elastic.test_replicas import sampler
from tests.scheduler.elastic.world import answers, assert_balanced
from tests.support.cluster import Cluster, spec

# ---- what else happens meanwhile ----


def test_an_owner_that_is_cancelled_while_it_waits_leaves_the_borrower_what_it_has() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    cluster.cancel("owner")
    cluster.settle()
    cluster.exit("owner", "stopped")
    assert cluster.stage("owner") == "cancelled"
    assert cluster.members("borrower")[0].hand_back_ns == 0
    hand_back(cluster)
    assert granted(ask(cluster, "borrower", "learning")) == {}, "not at once again"
    assert granted(cluster.advance(1)) == {"borrower": "learning"}
    assert cluster.members("borrower")[0].leased is None, "nobody else's now"


def test_a_recall_of_what_was_handed_back_while_it_was_decided_is_void() -> None:
    cluster = lent_out()
    ask(cluster, "borrower", "sampling")
    enter(cluster, "borrower")
    refused(cluster, "borrower", 3000)
    owners = cluster.members("owner")[0]
    cluster.node_fact("owner", owners, e.PhaseRequested, phase="learning", _node=False)
    decided = decide(cluster.state, cluster.now).events
    assert recalled(list(decided)) == {"borrower": "owner"}
    member = cluster.members("borrower")[0]
    cluster.node_fact(
        "borrower", member, e.QuotaApplied, quotas=member.quotas
    )  # it is in the journal before the recall
    cluster.append("scheduler", cluster.leader, *decided)
    member = cluster.members("borrower")[0]
    assert (member.held_mib, member.hand_back_ns, member.hand_back_for) == (0, 0, "")
    assert not recalled(cluster.settle()), "there is nothing to take back"
    enter(cluster, "owner")
    assert not asked_to_leave(cluster.advance(HAND_BACK + GRACE))
    assert (cluster.stage("borrower"), cluster.members("owner")[0].phase) == ("running", "learning")


def test_what_a_job_that_ends_had_leased_is_its_owners_again() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    assert granted(cluster.exit("borrower", "completed"))["owner"] == "learning"


def test_a_lost_node_ends_all_of_it() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    cluster.silence("n1")
    cluster.advance(31)
    assert {cluster.stage(job) for job in ("owner", "borrower")} == {"pending"}
    node(cluster, "n2")
    cluster.advance(60)
    assert {cluster.stage(job) for job in ("owner", "borrower")} == {"placed"}


def test_nobody_is_asked_to_leave_a_node_that_is_lost_in_the_same_moment() -> None:
    cluster = lent_out()
    cluster.silence("n1")
    cluster.advance(30 - HAND_BACK)
    assert recalled(ask(cluster, "owner", "learning")) == {"borrower": "owner"}
    decided = cluster.advance(HAND_BACK)
    assert not asked_to_leave(decided)
    assert {cluster.stage(job) for job in ("owner", "borrower")} == {"pending"}


@pytest.mark.parametrize("phase", ["learning", "sampling", "unheard-of"])
def test_a_phase_that_was_entered_without_a_grant_gets_what_is_there_and_no_more(phase: str) -> None:
    cluster = lent_out()
    cluster.phase("owner", phase)
    assert cluster.members("owner")[0].phase == phase
    assert mib(cluster, "owner") == 500
    assert bool(cluster.members("borrower")[0].hand_back_ns) == (phase == "learning"), (
        "it is its own, so it is recalled"
    )


def test_a_phase_changed_that_comes_after_the_member_was_asked_to_leave_changes_no_limits() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    cluster.advance(HAND_BACK)
    assert cluster.stage("borrower") == "preempting"
    cluster.phase("borrower", "sampling")
    assert mib(cluster, "borrower") == 4000, "it is saving: nothing is taken from it"
    assert granted(cluster.exit("borrower", "suspended"))["owner"] == "learning"


def test_an_owner_that_leaves_while_others_have_what_is_its_own_does_not_wait_for_them() -> None:
    cluster = lent_out()
    cluster.exit("owner", "completed")
    assert cluster.stage("owner") == "completed"
    assert cluster.members("borrower")[0].gpu_indices == (0, 1)


def test_a_job_that_comes_to_room_that_is_still_leased_waits_for_it_with_the_room_kept() -> None:
    cluster = lent_out()
    cluster.exit("owner", "completed")
    cluster.submit(spec(100, memory=3000, gpus=2), "new")
    decided = cluster.settle()
    assert recalled(decided) == {"borrower": "new"}
    assert cluster.job("new").reserved_nodes == ("n1",)
    assert cluster.waiting["new"].code == "Reserved"
    assert cluster.job("new").reserved_start_ns == at(cluster, HAND_BACK + GRACE)
    hand_back(cluster)
    assert (cluster.stage("new"), cluster.members("new")[0].gpu_indices) == ("placed", (0, 1))


def test_who_waits_for_one_that_is_late_to_leave_does_not_spin() -> None:
    cluster = lent_out()
    cluster.exit("owner", "completed")
    cluster.submit(spec(100, memory=3000, gpus=2), "new")
    cluster.settle()
    cluster.advance(HAND_BACK)
    assert cluster.stage("borrower") == "preempting"
    cluster.advance(GRACE + 1)
    assert cluster.stage("new") == "pending"
    assert cluster.wake_at is None or cluster.wake_at >= at(cluster, 1)
    cluster.exit("borrower", "suspended")
    assert cluster.stage("new") == "placed"


def test_it_goes_elsewhere_if_there_is_room() -> None:
    cluster = lent_out()
    cluster.exit("owner", "completed")
    node(cluster, "n2")
    cluster.submit(spec(100, memory=3000, gpus=2), "new")
    assert not recalled(cluster.settle())
    assert cluster.members("new")[0].node == "n2"


def test_two_borrowers_take_turns_with_one_device() -> None:
    cluster = lending(gpus=1, cpu=8000)
    run(cluster, "owner", owner(high=Resources(500, 500, 1)))
    wants = {"a": borrower(high=Resources(500, 500, 1)), "b": borrower(high=Resources(500, 500, 1))}
    for name, job in wants.items():
        run(cluster, name, job)
    ask(cluster, "a", "learning")
    ask(cluster, "b", "learning")
    had: list[str] = []
    for _ in range(8):
        (name,) = [name for name in wants if cluster.members(name)[0].granted]
        had.append(name)
        enter(cluster, name)
        cluster.advance(30)
        go(cluster, name, "sampling")
        ask(cluster, name, "learning")
    assert had == ["a", "b"] * 4


def test_nothing_more_is_leased_while_an_owner_waits() -> None:
    cluster = lending(memory=6000, cpu=8000, gpus=3)
    run(cluster, "owner", owner(high=Resources(1000, 4000, 2)))
    run(cluster, "other", owner(high=Resources(500, 500, 1)))
    run(cluster, "borrower", borrower())
    run(cluster, "late", borrower(high=Resources(500, 500, 1)))
    go(cluster, "borrower", "learning")
    assert recalled(ask(cluster, "owner", "learning"))
    assert not granted(ask(cluster, "late", "learning"))
    decided = hand_back(cluster)
    assert granted(decided) == {"borrower": "sampling", "owner": "learning", "late": "learning"}


def test_leases_do_not_flap() -> None:
    cluster = lending(Parameters(lend_interval_seconds=30))
    run(cluster, "owner", owner())
    run(cluster, "borrower", borrower())
    go(cluster, "borrower", "learning")
    hand_back(cluster)
    assert not granted(ask(cluster, "borrower", "learning"))
    assert cluster.wake_at == at(cluster, 30)
    assert granted(cluster.advance(30)) == {"borrower": "learning"}


def test_a_ceiling_bounds_what_is_held_beyond_floors_and_not_what_is_leased() -> None:
    cluster = lending()
    cluster.ask(e.QueueChanged, tenant="b", ceiling=Resources(4000, 4000, 1))
    run(cluster, "borrower", borrower(tenant="b"))
    assert not ask(cluster, "borrower", "learning")
    cluster.ask(e.QueueChanged, tenant="b", ceiling=Resources(4000, 4000, 2))
    assert granted(cluster.settle()) == {"borrower": "learning"}


def test_who_preempts_a_borrower_gets_all_that_it_holds() -> None:
    cluster = lending()
    run(cluster, "borrower", borrower())
    go(cluster, "borrower", "learning")
    cluster.submit(spec(100, memory=4501, gpus=2, priority=5), "urgent")
    assert asked_to_leave(cluster.settle()) == {"borrower": "urgent"}
    cluster.exit("borrower", "suspended", acknowledged=True)
    assert cluster.stage("urgent") == "placed"


def test_a_borrower_whose_leased_device_is_gone_is_asked_to_leave() -> None:
    cluster = lent_out()
    held = [e.HeldSandbox(job=job, attempt=1, rank=0) for job in ("owner", "borrower")]
    cluster.node("n1", 4000, memory=5000, gpus=1, incarnation=2, held=held)
    assert asked_to_leave(cluster.settle()) == {"owner": "", "borrower": ""}, "it is the owner's too"


# ---- sandboxes that were given up ----

GIVEN_UP = e.HeldSandbox(job="gone", attempt=3, rank=0)


def comes_back(cluster: Cluster, *jobs: str, memory: int = 5000) -> None:
    """The agent begins anew, and finds a sandbox beside those of the jobs that nobody knows any more."""
    held = [*(e.HeldSandbox(job=job, attempt=1, rank=0) for job in jobs), GIVEN_UP]
    cluster.node("n1", 4000, memory=memory, gpus=2, incarnation=2, held=held)
    cluster.settle()


def it_ends(cluster: Cluster) -> list[e.AnyEvent]:
    ended = e.SandboxExited(
        id="gone", at_ns=cluster.now, tenant="t", job="gone", attempt=3, rank=0, node="n1", outcome="stopped"
    )
    cluster.append("node", "n1", ended)
    return cluster.settle()


@pytest.mark.parametrize("need", [Resources(500, 4000), Resources(500, 500, 2)])
def test_what_a_sandbox_that_was_given_up_may_hold_is_granted_to_nobody(need: Resources) -> None:
    cluster = lending()
    run(cluster, "owner", owner(high=need))
    run(cluster, "borrower", borrower(high=need))
    comes_back(cluster, "owner", "borrower")
    assert not granted(ask(cluster, "borrower", "learning"))
    assert not granted(ask(cluster, "owner", "learning"))
    (why,) = explain(cluster.state, cluster.waiting, "owner").reasons
    assert why.detail == "waits to enter learning; sandboxes that were given up must end first: gone"
    assert granted(it_ends(cluster)) == {"owner": "learning"}


def test_who_hands_back_meanwhile_is_not_kept_from_it_and_is_told_to() -> None:
    cluster = lent_out()
    comes_back(cluster, "owner", "borrower")
    assert recalled(ask(cluster, "owner", "learning")) == {"borrower": "owner"}
    assert granted(hand_back(cluster)) == {"borrower": "sampling"}, "it needs no more for that"
    assert granted(it_ends(cluster)) == {"owner": "learning"}


def test_no_simulators_are_added_where_one_was_given_up() -> None:
    cluster = lending(cpu=4000, memory=4000)
    cluster.submit(sampler(), "sampler")
    cluster.settle()
    comes_back(cluster, "sampler", memory=4000)
    cluster.start("sampler")
    assert cluster.members("sampler")[0].quotas[0].replicas is None
    it_ends(cluster)
    cluster.advance(5)
    assert cluster.members("sampler")[0].quotas[0].replicas == 6


# ---- asking about all of it ----


def test_a_dry_run_sees_what_is_leased_and_leaves_all_as_it_is() -> None:
    cluster = lent_out()
    before = answers(cluster.state, cluster.now)
    assert dry_run(cluster.state, spec(100, memory=100, gpus=2), cluster.now).verdict == "waits", "the owner holds them"
    assert dry_run(cluster.state, borrower(), cluster.now).nodes == ("n1",)
    assert answers(cluster.state, cluster.now) == before
    cluster.exit("owner", "completed")
    found = dry_run(cluster.state, spec(100, memory=100, gpus=2), cluster.now)
    assert found.nodes == ("n1",)
    assert found.starts_at_ns == at(cluster, HAND_BACK + GRACE)


def test_a_history_of_leases_verifies_bit_for_bit() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    cluster.advance(HAND_BACK)
    cluster.exit("borrower", "suspended", acknowledged=True)
    enter(cluster, "owner")
    cluster.exit("owner", "completed")

    async def replay() -> AsyncIterator[Recorded]:
        for recorded in cluster.frames:
            yield recorded

    report = asyncio.run(verify(replay()))
    assert report.ok, report.difference
    assert report.state_digest == cluster.state.digest()


def test_quotas_balance_when_all_have_ended() -> None:
    cluster = lent_out()
    ask(cluster, "owner", "learning")
    for job in ("owner", "borrower"):
        cluster.exit(job, "completed")
    assert_balanced(cluster)


def test_what_is_free_of_a_node_counts_what_is_held_and_not_who_has_it() -> None:
    cluster = lent_out()
    assert cluster.members("borrower")[0].extra == Resources(500, 500)
    assert free_room(cluster.state, cluster.state.nodes["n1"]) == Resources(2000, 0, 0)


def test_who_needs_more_is_passed_by_only_for_a_while() -> None:
    cluster = lending(gpus=2, cpu=8000)
    run(cluster, "owner", owner(high=Resources(500, 500, 2)))
    run(cluster, "both", borrower(high=Resources(500, 500, 2)))
    for name in ("a", "b"):
        run(cluster, name, borrower(high=Resources(500, 500, 1)))
    go(cluster, "a", "learning")
    ask(cluster, "both", "learning")
    assert granted(ask(cluster, "b", "learning")) == {"b": "learning"}, "nobody who could have it waits for it yet"
    enter(cluster, "b")
    go(cluster, "a", "sampling")
    cluster.advance(300)
    assert not granted(ask(cluster, "a", "learning")), "both would wait for ever"
    assert granted(go(cluster, "b", "sampling"))["both"] == "learning"


def test_simulators_leave_for_a_phase_that_needs_but_their_memory() -> None:
    cluster = lending(gpus=2, cpu=8000, memory=4600)
    run(cluster, "borrower", borrower(high=Resources(500, 2000, 1)))
    run(cluster, "sampler", sampler(2, 6, memory=400))
    assert cluster.members("sampler")[0].quotas[0].replicas == 6
    assert not granted(ask(cluster, "borrower", "learning"))
    assert cluster.members("sampler")[0].quotas[0].replicas == 5, "1500 of 2800 MiB are for the phase"
    assert granted(cluster.advance(15)) == {"borrower": "learning"}


def test_simulators_stay_where_that_would_not_help() -> None:
    cluster = lending(gpus=1, cpu=8000, memory=4700)
    run(cluster, "holder", spec(500, memory=100, gpus=1))
    run(cluster, "borrower", borrower(high=Resources(500, 2000, 1)))
    run(cluster, "sampler", sampler(2, 6, memory=400))
    ask(cluster, "borrower", "learning")
    assert cluster.members("sampler")[0].quotas[0].replicas == 6
