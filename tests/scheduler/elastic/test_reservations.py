"""Room that is kept: backfill never delays it, it is given up when it cannot be used, and evictions are bounded."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import HOUR, all_events, asked_to_leave, complete, elastic, leave, nodes_of, of, run
from tests.support.cluster import SECOND, Cluster, spec


def blocked_gang() -> Cluster:
    """A gang of both nodes waits for the job on one of them, which ends in 1000 seconds at the latest."""
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 2000)
    run(cluster, "runs", spec(2000, time_limit_seconds=1000))
    cluster.submit(spec(2000, gang=2), "gang")
    cluster.settle()
    return cluster


def test_a_reservation_names_the_time_at_which_its_room_is_free() -> None:
    cluster = blocked_gang()
    (kept,) = of(all_events(cluster), e.RoomReserved)
    assert (kept.job, sorted(kept.nodes)) == ("gang", ["n1", "n2"])
    assert kept.start_by_ns == cluster.now + 1000 * SECOND
    assert cluster.job("gang").reserved_start_ns == kept.start_by_ns


@pytest.mark.parametrize(
    ("more", "stage"),
    [
        ({}, "pending"),
        ({"time_limit_seconds": 2000}, "pending"),
        ({"time_limit_seconds": 690}, "pending"),  # it may take its time to start, and the grace to stop it
        ({"time_limit_seconds": 689}, "placed"),
        ({"expected_seconds": 10}, "pending"),  # an estimate is no limit
    ],
)
def test_only_what_certainly_ends_before_uses_room_that_is_kept(more: dict[str, Any], stage: str) -> None:
    cluster = blocked_gang()
    cluster.submit(spec(500, **more), "small")
    cluster.settle()
    assert cluster.stage("small") == stage


def test_a_start_that_nobody_knew_is_told_once_it_is_known_and_again_where_it_is_not() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 2000)
    run(cluster, "runs", spec(2000))
    started = cluster.now
    cluster.submit(spec(2000, gang=2), "gang")
    cluster.settle()
    assert sorted(cluster.job("gang").reserved_nodes) == ["n1", "n2"]
    assert cluster.job("gang").reserved_start_ns == 0
    cluster.ask(e.JobLimitChanged, "runs", time_limit_seconds=500)
    cluster.settle()
    assert cluster.job("gang").reserved_start_ns == started + 500 * SECOND
    cluster.ask(e.JobLimitChanged, "runs", time_limit_seconds=None)
    cluster.settle()
    assert cluster.job("gang").reserved_start_ns == 0
    told = of(all_events(cluster), e.RoomReserved)
    assert [kept.start_by_ns for kept in told] == [0, started + 500 * SECOND, 0]


def test_backfill_does_not_delay_the_gang() -> None:
    cluster = blocked_gang()
    due = cluster.job("gang").reserved_start_ns
    for number in range(10):
        cluster.submit(spec(1000, time_limit_seconds=400), f"small{number}")
    cluster.settle()
    while cluster.stage("gang") == "pending":
        assert cluster.now <= due + 20 * SECOND, "those who run end at their limit, within their grace"
        for job in list(cluster.state.jobs.values()):
            if job.stage == "placed":
                cluster.start(job.id)
            elif job.stage == "stopping":
                cluster.exit(job.id, "stopped")
        assert cluster.wake_at is not None or cluster.stage("gang") != "pending"
        if cluster.stage("gang") == "pending":
            cluster.now = max(cluster.now, cluster.wake_at or 0)
            cluster.settle()
    done = [job for job, end in cluster.state.finished.items() if job.startswith("small")]
    assert len(done) >= 2, "the idle node was of use meanwhile"


def test_the_gang_starts_at_once_when_its_room_is_free_earlier() -> None:
    cluster = blocked_gang()
    complete(cluster, "runs")
    assert cluster.stage("gang") == "placed"


def test_a_reservation_moves_when_its_node_is_lost_and_comes_to_nothing_where_nobody_can_hold_it() -> None:
    cluster = blocked_gang()
    cluster.silence("n2")
    cluster.settle()
    assert cluster.job("gang").reserved_nodes == ()
    assert cluster.waiting["gang"].code == "NoNode"
    cluster.node("n3", 2000)
    cluster.settle()
    assert sorted(cluster.job("gang").reserved_nodes) == ["n1", "n3"]


def test_so_many_reservations_and_no_more() -> None:
    cluster = elastic(Parameters(reservations_max=2))
    for number in range(4):
        cluster.node(f"n{number}", 2000)
        run(cluster, f"runs{number}", spec(2000))
    for number in range(4):
        cluster.submit(spec(1500 + number), f"waits{number}")
    cluster.settle()
    kept = [job for job in cluster.state.jobs.values() if job.reserved_nodes]
    assert [job.id for job in kept] == ["waits0", "waits1"]


def test_a_preemptor_that_is_cancelled_leaves_the_freed_room_to_the_next() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    run(cluster, "low", spec(2000, priority=1))
    cluster.submit(spec(2000, priority=5), "high")
    cluster.settle()
    cluster.submit(spec(2000, priority=3), "middle")
    cluster.settle()
    cluster.cancel("high")
    cluster.settle()
    leave(cluster, "low")
    assert (cluster.stage("high"), cluster.stage("middle")) == ("cancelled", "placed")


def test_a_gang_waits_for_all_its_victims_and_has_its_room_whole() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 2000)
        run(cluster, f"low-{node}", spec(2000, priority=1))
    cluster.submit(spec(2000, gang=2, priority=5), "gang")
    assert asked_to_leave(cluster.settle()) == {"low-n1": "gang", "low-n2": "gang"}
    leave(cluster, "low-n1")
    cluster.submit(spec(100, priority=5), "thief")
    cluster.settle()
    assert [cluster.stage(job) for job in ("gang", "thief", "low-n1")] == ["pending", "pending", "suspended"]
    leave(cluster, "low-n2")
    assert cluster.stage("gang") == "placed"


# ---- who leaves, and how often ----


def test_the_one_with_least_to_lose_leaves() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    for name in ("saved", "unsaved"):
        run(cluster, name, spec(2000, priority=1))
    cluster.advance(1000)
    cluster.save("saved", 10)
    cluster.submit(spec(2000, priority=5), "high")
    assert asked_to_leave(cluster.settle()) == {"saved": "high"}


def test_what_a_restart_costs_counts() -> None:
    cluster = elastic()
    cluster.node("n1", 4000)
    for name, seconds in (("dear", 5000), ("cheap", 0)):
        job = spec(2000, priority=1)
        preemption = type(job.preemption)(grace_seconds=10, restart_seconds=seconds)
        fields = {field: getattr(job, field) for field in job.__struct_fields__}
        run(cluster, name, type(job)(**(fields | {"preemption": preemption})))
        cluster.advance(100)
    cluster.submit(spec(2000, priority=5), "high")
    assert asked_to_leave(cluster.settle()) == {"cheap": "high"}


def test_who_left_before_is_dearer_each_time() -> None:
    cluster = elastic(Parameters(preemption_cooldown_seconds=0))
    cluster.node("n1", 4000)
    for name in ("a", "b"):
        run(cluster, name, spec(2000, priority=1))
    left = []
    for number in range(4):
        cluster.submit(spec(2000, priority=5), f"high{number}")
        (victim,) = asked_to_leave(cluster.settle())
        left.append(victim)
        leave(cluster, victim)
        complete(cluster, f"high{number}")
        cluster.start(victim)
    assert sorted(left) == ["a", "a", "b", "b"], "they take turns"


def test_a_job_is_pushed_out_so_often_and_no_more() -> None:
    cluster = elastic(Parameters(preemptions_max=2, preemption_cooldown_seconds=0))
    cluster.node("n1", 2000)
    run(cluster, "low", spec(2000, priority=1))
    for number in range(2):
        cluster.submit(spec(2000, priority=5), f"high{number}")
        assert asked_to_leave(cluster.settle()) == {"low": f"high{number}"}
        leave(cluster, "low")
        complete(cluster, f"high{number}")
        cluster.start("low")
    cluster.submit(spec(2000, priority=9), "last")
    assert asked_to_leave(cluster.settle()) == {}
    assert asked_to_leave(cluster.advance(10 * HOUR)) == {}
    complete(cluster, "low")
    assert cluster.stage("last") == "placed"


def test_a_job_that_just_resumed_is_left_alone_for_a_while_and_then_asked_without_anything_else_happening() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    run(cluster, "low", spec(2000, priority=1))
    cluster.submit(spec(2000, priority=5), "high")
    cluster.settle()
    leave(cluster, "low")
    complete(cluster, "high")
    cluster.start("low")
    cluster.submit(spec(2000, priority=5), "again")
    assert asked_to_leave(cluster.settle()) == {}
    assert cluster.wake_at == cluster.now + 60 * SECOND
    assert asked_to_leave(cluster.advance(60)) == {"low": "again"}


def test_a_job_that_overran_loses_its_protection_without_anything_else_happening() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    run(cluster, "low", spec(2000, priority=1, expected_seconds=1000))
    cluster.advance(900)
    cluster.submit(spec(2000, priority=5), "high")
    assert asked_to_leave(cluster.settle()) == {}
    assert cluster.wake_at is not None
    assert cluster.wake_at == cluster.now + 350 * SECOND + 1
    cluster.now = cluster.wake_at
    assert asked_to_leave(cluster.settle()) == {"low": "high"}


def test_an_aged_one_that_may_push_out_nobody_does_not_keep_a_higher_one_of_its_shape_from_it() -> None:
    cluster = elastic(Parameters(reservations_max=0))
    cluster.node("n1", 2000)
    run(cluster, "runs", spec(2000, priority=1))
    cluster.submit(spec(2000, priority=1), "aged")
    cluster.settle()
    cluster.advance(3 * HOUR)
    cluster.submit(spec(2000, priority=2), "higher")
    assert asked_to_leave(cluster.settle()) == {"runs": "higher"}


def test_one_without_a_limit_does_not_keep_another_of_its_shape_from_backfill() -> None:
    cluster = blocked_gang()
    cluster.submit(spec(500), "endless")
    cluster.submit(spec(500, time_limit_seconds=100), "short")
    cluster.settle()
    assert [cluster.stage(job) for job in ("endless", "short")] == ["pending", "placed"]


def test_a_guaranteed_tenant_of_lower_priority_reclaims_what_a_higher_one_of_the_same_shape_cannot() -> None:
    cluster = elastic()
    cluster.node("n1", 2000)
    cluster.ask(e.QueueChanged, tenant="owner", guaranteed=Resources(2000))
    run(cluster, "borrower", spec(2000, priority=5, tenant="a"))
    cluster.submit(spec(2000, priority=5, tenant="b"), "cannot")
    cluster.submit(spec(2000, priority=1, tenant="owner"), "can")
    assert asked_to_leave(cluster.settle()) == {"borrower": "can"}
    leave(cluster, "borrower")
    assert nodes_of(cluster, "can") == ["n1"]


def test_whoever_ages_beyond_others_has_its_room_when_that_is_due_and_not_when_something_happens() -> None:
    cluster = elastic(Parameters(ageing_seconds=300, reservations_max=1))
    cluster.node("n1", 1000)
    run(cluster, "runs", spec(1000, priority=1))
    cluster.submit(spec(1000, priority=0), "old")
    began = cluster.now
    cluster.advance(250)
    cluster.submit(spec(1000, priority=1), "new")
    cluster.settle()
    assert cluster.job("new").reserved_nodes == ("n1",)
    assert cluster.wake_at == began + 300 * SECOND
    assert decide(cluster.state, cluster.wake_at - 1).events == ()
    cluster.advance(50)
    assert (cluster.job("old").reserved_nodes, cluster.job("new").reserved_nodes) == (("n1",), ())


def test_several_that_share_a_device_are_in_the_way_of_one_only() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 4000, gpus=2)
    for number in range(4):
        run(cluster, f"part{number}", spec(100, gpu_millis=250, time_limit_seconds=100))
    shared = cluster.members("part0")[0].node
    run(cluster, "whole", spec(100, gpus=2, time_limit_seconds=1000))
    assert nodes_of(cluster, "whole") != [shared]
    cluster.submit(spec(100, gpus=2, gang=2), "gang")
    cluster.settle()
    assert sorted(cluster.job("gang").reserved_nodes) == ["n1", "n2"], "one has two devices, whoever leaves it"
    assert cluster.job("gang").reserved_start_ns == cluster.now + 1000 * SECOND


@pytest.mark.parametrize("limit", [None, 5000])
def test_room_that_is_kept_for_a_lower_job_keeps_nobody_from_pushing_out_who_holds_it(limit: int | None) -> None:
    """Were what is kept counted as gone, whoever waits at the end of the queue would protect all who run."""
    cluster = elastic()
    cluster.node("n1", 4000)
    run(cluster, "runs", spec(4000, time_limit_seconds=limit))
    cluster.submit(spec(4000), "waits")
    cluster.settle()
    assert cluster.job("waits").reserved_nodes == ("n1",)
    cluster.submit(spec(4000, priority=1), "urgent")
    assert asked_to_leave(cluster.settle()) == {"runs": "urgent"}
    leave(cluster, "runs")
    assert cluster.stage("urgent") == "placed"


def test_room_that_is_left_for_a_lower_job_is_for_who_is_above_it_and_nobody_more_leaves() -> None:
    cluster = elastic()
    for node in ("n1", "n2"):
        cluster.node(node, 4000)
        run(cluster, f"on-{node}", spec(4000))
    cluster.submit(spec(4000, priority=1), "middle")
    (left,) = asked_to_leave(cluster.settle())
    room = cluster.job("middle").reserved_nodes
    cluster.submit(spec(4000, priority=2), "urgent")
    asked = asked_to_leave(cluster.settle())
    assert cluster.job("urgent").reserved_nodes == room, "it is left already"
    assert set(asked.values()) == {"middle"}, "which has the other one's room instead"
    leave(cluster, left)
    assert cluster.stage("urgent") == "placed"


def test_who_has_aged_to_the_class_of_another_keeps_its_room() -> None:
    cluster = elastic(Parameters(ageing_seconds=HOUR))
    cluster.node("n1", 4000)
    run(cluster, "runs", spec(4000))
    cluster.submit(spec(4000), "waits")
    cluster.advance(HOUR + HOUR // 60)
    cluster.submit(spec(4000, priority=1), "urgent")
    assert asked_to_leave(cluster.settle()) == {}
    assert cluster.job("waits").reserved_nodes == ("n1",)


def test_what_is_left_in_the_very_pass_is_seen_by_who_is_asked_later() -> None:
    """Somebody leaves a little room already; for the first that is asked another one leaves, more than it needs."""
    cluster = elastic(Parameters(reservations_max=0))
    cluster.node("n1", 4000)
    cluster.node("n2", 500)
    run(cluster, "large", spec(4000))
    run(cluster, "little", spec(500))
    cluster.ask(e.SuspendRequested, "little")
    cluster.settle()
    cluster.submit(spec(2000, priority=5), "first")
    cluster.submit(spec(1500), "second")
    decided = decide(cluster.state, cluster.now).events
    assert asked_to_leave(list(decided)) == {"large": "first"}
    assert {event.job: event.nodes for event in of(list(decided), e.RoomReserved)} == {
        "first": ("n1",),
        "second": ("n1",),
    }
