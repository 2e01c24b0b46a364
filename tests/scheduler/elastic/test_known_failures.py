"""Failures that schedulers are known for, each with the right outcome written down."""

from __future__ import annotations

import pytest
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded
from tidegate_events.resources import Resources
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.policy.elastic.queue import NONE
from tidegate_scheduler.snapshot import decode_snapshot, encode_snapshot

from tests.scheduler.elastic.lab import (
    HOUR,
    all_events,
    asked_to_leave,
    complete,
    elastic,
    kinds,
    leave,
    looked_up,
    millis,
    nodes_of,
    of,
    phased,
    run,
)
from tests.support.cluster import Cluster, spec


def test_two_queues_do_not_take_the_same_room_from_each_other_in_turn() -> None:
    """Both are guaranteed more than there is for both: whoever holds its own keeps it."""
    cluster = elastic()
    cluster.node("n1", 3000)
    for tenant in ("a", "b"):
        cluster.ask(e.QueueChanged, tenant=tenant, guaranteed=Resources(2000))
    run(cluster, "mine", spec(2000, tenant="a"))
    cluster.submit(spec(2000, tenant="b"), "theirs")
    cluster.settle()
    for _ in range(48):
        cluster.advance(HOUR)
    assert of(all_events(cluster), e.PreemptRequested) == []
    assert (cluster.stage("mine"), cluster.stage("theirs")) == ("running", "pending")
    complete(cluster, "mine")
    assert cluster.stage("theirs") == "placed"


def test_who_gave_back_what_it_borrowed_does_not_take_it_again() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    for tenant in ("a", "b"):
        cluster.ask(e.QueueChanged, tenant=tenant, guaranteed=Resources(2000))
    for name in ("own", "borrowed"):
        run(cluster, name, spec(2000, tenant="a"))
        cluster.advance(1)
    cluster.submit(spec(2000, tenant="b"), "theirs")
    asked = asked_to_leave(cluster.settle())
    assert asked == {"borrowed": "theirs"}, "the younger has less to lose, and one is enough"
    leave(cluster, "borrowed")
    cluster.start("theirs")
    for _ in range(48):
        assert asked_to_leave(cluster.advance(HOUR)) == {}
    assert [cluster.stage(job) for job in ("own", "theirs", "borrowed")] == ["running", "running", "suspended"]


@pytest.mark.parametrize("tenant", ["t", "newcomer"])
def test_a_freed_slot_is_not_taken_by_someone_else(tenant: str) -> None:
    """Not by an equal, however small, nor by a tenant that has less of its fair share."""
    cluster = elastic()
    cluster.node("n1", 4000)
    run(cluster, "beside", spec(2000, priority=5))
    run(cluster, "low", spec(2000, priority=1))
    cluster.submit(spec(2000, priority=5), "high")
    assert asked_to_leave(cluster.settle()) == {"low": "high"}
    cluster.submit(spec(500, priority=5, tenant=tenant), "thief")
    cluster.settle()
    decided = leave(cluster, "low")
    assert [event.job for event in of(decided, e.JobPlaced)] == ["high"]
    assert cluster.stage("thief") == "pending"


@pytest.mark.parametrize("whole", [False, True])
def test_scattered_gpus_are_not_evicted_for_one_who_still_would_not_fit(whole: bool) -> None:
    cluster = elastic()
    if whole:
        cluster.node("n0", 16_000, gpus=8)
        run(cluster, "whole", spec(100, gpus=8, priority=1))
    for node in ("n1", "n2"):
        cluster.node(node, 16_000, gpus=8)
        run(cluster, f"kept-{node}", spec(100, gpus=4, priority=9))
        for number in range(4):
            run(cluster, f"low-{node}-{number}", spec(100, gpus=1, priority=1))
            assert nodes_of(cluster, f"low-{node}-{number}") == [node]
    cluster.submit(spec(100, gpus=8, priority=5), "one-node")
    cluster.submit(spec(100, gpus=1, gang=8, priority=5, communication="intensive"), "one-switch")
    asked = asked_to_leave(cluster.settle())
    assert asked == ({"whole": "one-node"} if whole else {}), "eight could leave, and neither would fit"


def test_two_gangs_do_not_hold_half_each() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 2000)
        run(cluster, f"on-{node}", spec(2000))
    for gang in ("g1", "g2"):
        cluster.submit(spec(2000, gang=2), gang)
    cluster.settle()
    complete(cluster, "on-n1")
    assert [cluster.stage(gang) for gang in ("g1", "g2")] == ["pending", "pending"]
    complete(cluster, "on-n2")
    assert [cluster.stage(gang) for gang in ("g1", "g2")] == ["placed", "pending"]
    complete(cluster, "g1")
    assert cluster.stage("g2") == "placed"


def test_a_finished_job_is_not_admitted_again_after_a_restart() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    submitted = len(cluster.frames)
    run(cluster, "j", spec(1000))
    cluster.exit("j", "completed")
    cluster.state = decode_snapshot(encode_snapshot(cluster.state))
    old = cluster.frames[submitted]
    again = Recorded(len(cluster.frames) + 1, old.subject, old.frame)
    cluster.frames.append(again)
    evolve(cluster.state, again)
    cluster.submit(spec(1000), "j")
    assert cluster.settle() == []
    assert cluster.stage("j") == "completed"


def test_a_rejected_placement_does_not_win_each_cycle() -> None:
    """Its back-off lets another have the room, and the node that refused it comes last for it."""
    cluster = elastic()
    cluster.node("n1", 1000)
    cluster.submit(spec(1000), "refused")
    cluster.submit(spec(1000), "next")
    cluster.settle()
    assert cluster.stage("refused") == "placed"
    cluster.reject("refused")
    assert [cluster.stage(job) for job in ("refused", "next")] == ["pending", "placed"]
    cluster.node("n2", 4000)
    cluster.advance(1)
    assert nodes_of(cluster, "refused") == ["n2"]


def test_an_inadmissible_job_at_the_head_blocks_nobody_and_is_refused() -> None:
    cluster = elastic()
    cluster.node("n1", 2000, gpus=2)
    cluster.submit(spec(5000, priority=9), "giant")
    cluster.submit(spec(100, gpus=1, priority=9, gpu_models=("unheard-of",)), "other-gpu")
    cluster.submit(spec(1500, gang=3, priority=9, communication="intensive"), "wide")
    cluster.submit(spec(1000, priority=1), "small")
    decided = cluster.settle()
    assert kinds(decided) == ["JobPlaced"]
    assert cluster.stage("small") == "placed"
    decided = cluster.advance(60)
    rejected = {event.job: event.reasons[0].numbers for event in of(decided, e.JobRejected)}
    assert set(rejected) == {"giant", "other-gpu", "wide"}
    assert (rejected["wide"]["members_needed"], rejected["wide"]["members_most"]) == (3, 1)


def test_a_job_that_waited_before_there_were_nodes_is_not_refused_when_the_first_of_them_joins() -> None:
    cluster = elastic()
    cluster.submit(spec(1000, gpus=8, gang=3), "gang")
    cluster.submit(spec(1000, gpus=8, gang=4), "larger")
    cluster.settle()
    cluster.advance(3600)
    for number in range(3):
        cluster.node(f"n{number}", 2000, gpus=8)
        cluster.settle()
        cluster.advance(30)
    assert cluster.stage("gang") == "placed", "the others were on their way"
    assert not of(cluster.advance(29), e.JobRejected)
    (rejected,) = of(cluster.advance(1), e.JobRejected)
    (why,) = rejected.reasons
    assert (rejected.job, why.detail) == ("larger", "all nodes together are too small for the gang")
    assert (why.numbers["members_needed"], why.numbers["members_most"]) == (4, 3)
    cluster.submit(spec(1000, gpus=9), "wide")
    (rejected,) = of(cluster.settle(), e.JobRejected)
    assert rejected.reasons[0].detail == "no node has the GPUs that a member needs"


def test_a_victim_that_still_terminates_is_not_counted_twice() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    cluster.node("n2", 2000)
    for name in ("a", "b"):
        run(cluster, name, spec(2000, priority=1))
    cluster.submit(spec(2000, priority=5), "p1")
    cluster.settle()
    assert [cluster.stage(name) for name in ("a", "b")].count("preempting") == 1
    cluster.advance(1)
    cluster.submit(spec(2000, priority=5), "p2")
    cluster.settle()
    assert [cluster.stage(name) for name in ("a", "b")] == ["preempting", "preempting"], "each for one of them"
    cluster.submit(spec(2000, priority=5), "p3")
    assert asked_to_leave(cluster.settle()) == {}
    for name in ("a", "b"):
        leave(cluster, name)
    assert [cluster.stage(name) for name in ("p1", "p2", "p3")] == ["placed", "placed", "pending"]


def test_quota_comes_back_after_any_resize() -> None:
    """What a member was lent and gave back is neither lost nor held for its tenant when it has ended."""
    cluster = elastic()
    cluster.node("n1", 4000)
    run(cluster, "owner", phased(spec(), default=(2000, 2000), idle=(100, 100)))
    run(cluster, "borrower", phased(spec(), default=(500, 4000)))
    for phase in ("idle", "default") * 3:
        cluster.phase("owner", phase)
        cluster.advance(2)
        assert millis(cluster, "owner") + millis(cluster, "borrower") == 4000
    assert millis(cluster, "owner") == 2000
    for job in ("owner", "borrower"):
        cluster.exit(job, "completed")
    index = looked_up(cluster)
    assert index.shares["t"].used == NONE
    assert index.table.free[:3, 0].tolist() == [4000, 16384, 0]
    run(cluster, "whole", spec(4000))


def _challenged_after(seconds: int) -> tuple[Cluster, dict[str, str]]:
    cluster = elastic()
    cluster.node("n1", 2000)
    run(cluster, "low", spec(2000, priority=1, expected_seconds=1000))
    cluster.advance(seconds)
    cluster.submit(spec(2000, priority=9), "high")
    return cluster, asked_to_leave(cluster.settle())


@pytest.mark.parametrize(("seconds", "leaves"), [(790, True), (810, False), (1250, False), (1251, True)])
def test_close_to_its_end_a_job_is_left_alone_unless_it_overran_its_estimate(seconds: int, leaves: bool) -> None:
    cluster, asked = _challenged_after(seconds)
    assert asked == ({"low": "high"} if leaves else {})
    assert cluster.waiting["high"].code == "Reserved"


def test_what_ran_before_counts_for_protection_and_under_estimating_gains_nothing() -> None:
    cluster, asked = _challenged_after(700)
    assert asked == {"low": "high"}
    leave(cluster, "low")
    complete(cluster, "high")
    cluster.start("low")
    cluster.advance(110)
    cluster.submit(spec(2000, priority=9), "again")
    assert asked_to_leave(cluster.settle()) == {}, "700 and 110 of 1000"
    assert asked_to_leave(cluster.advance(440)) == {}
    assert asked_to_leave(cluster.advance(1)) == {"low": "again"}, "1251 of 1000"


def test_borrowed_quota_is_reclaimed_gracefully_in_the_middle_of_a_phase() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    cluster.ask(e.QueueChanged, tenant="lender", guaranteed=Resources(2000))
    job = phased(spec(tenant="borrower", grace=45), default=(2000, 2000), learning=(1000, 2000))
    for name in ("b1", "b2"):
        run(cluster, name, job)
    cluster.phase("b2", "learning")
    cluster.advance(7)
    cluster.submit(spec(2000, tenant="lender"), "owner")
    (asked,) = of(cluster.settle(), e.PreemptRequested)
    assert (asked.job in ("b1", "b2"), asked.for_job) == (True, "owner")
    assert asked.reasons[0].code == "QuotaReclaimed"
    assert (asked.grace_seconds, asked.deadline_ns) == (45, cluster.now + 45 * 1_000_000_000)
    victim = asked.job
    assert cluster.stage("owner") == "pending", "it is not killed for it"
    saved = cluster.save(victim, 70)
    decided = leave(cluster, victim)
    assert kinds(decided)[:2] == ["JobSuspended", "JobPlaced"]
    complete(cluster, "owner")
    assert cluster.job(victim).resumed_from.id == saved  # type: ignore[union-attr]


def test_a_node_that_comes_back_with_jobs_still_running_gives_no_room_twice() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    run(cluster, "j", spec(2000))
    cluster.node("n2", 2000)
    cluster.silence("n1")
    cluster.settle()
    cluster.advance(31)
    cluster.advance(1)
    assert nodes_of(cluster, "j") == ["n2"]
    cluster.node("n1", 2000, incarnation=2, held=[e.HeldSandbox(job="j", attempt=1, rank=0)])
    cluster.submit(spec(1000), "other")
    cluster.settle()
    assert cluster.stage("other") == "pending", "the old sandbox still runs there"
    gone = e.SandboxExited(
        id="gone", at_ns=cluster.now, tenant="t", job="j", attempt=1, rank=0, node="n1", outcome="stopped"
    )
    cluster.append("node", "n1", gone)
    cluster.settle()
    assert (nodes_of(cluster, "other"), nodes_of(cluster, "j")) == (["n1"], ["n2"])
