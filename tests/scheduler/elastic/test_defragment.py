"""Jobs move for a gang that only fragmentation keeps out: when that is worth it, who does not, and how many may."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tidegate_events import events as e
from tidegate_events.spec import JobSpec, PreemptionRule
from tidegate_scheduler import snapshot
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.world import CheckedCluster
from tests.support.cluster import Cluster, spec

HOUR = 3600


def run(cluster: Cluster, name: str, job: JobSpec, *, save: bool = True) -> None:
    cluster.submit(job, name)
    cluster.settle()
    cluster.start(name)
    assert cluster.stage(name) == "running"
    if save:
        cluster.save(name, 1)


def fragmented(pairs: int = 1, parameters: Parameters | None = None, **small: Any) -> Cluster:
    """Pairs of nodes of four GPUs, on each of which one job with one GPU runs: three are free on each."""
    cluster = CheckedCluster(parameters)
    for number in range(2 * pairs):
        cluster.node(f"n{number}", 8000, gpus=4)
        run(cluster, f"small{number}", spec(100, **{"gpus": 1, **small}))
        run(cluster, f"filler{number}", spec(100, gpus=3))
    for number in range(2 * pairs):
        cluster.exit(f"filler{number}", "completed")
    cluster.advance(100)
    return cluster


def big(*, gpus: int = 4, hours: int = 10, **more: Any) -> JobSpec:
    return spec(100, gpus=gpus, expected_seconds=hours * HOUR, **more)


def moves(decided: list[e.AnyEvent]) -> list[e.PreemptRequested]:
    return [event for event in decided if isinstance(event, e.PreemptRequested)]


def test_a_job_moves_and_the_big_one_gets_its_node() -> None:
    cluster = fragmented()
    cluster.submit(big(), "big")
    decided = cluster.settle()
    (moved,) = moves(decided)
    assert (moved.for_job, moved.reasons[0].code, moved.hold) == ("big", "Defragmentation", False)
    assert moved.reasons[0].numbers == {
        "gained_gpu_seconds": 4 * 10 * HOUR,
        "lost_gpu_seconds": 100,
        "moves": 1,
    }
    left = cluster.members(moved.job)[0].node
    assert cluster.job("big").reserved_nodes == (left,), "the room is kept for it before anybody has left"
    cluster.exit(moved.job, "suspended", acknowledged=True)
    assert cluster.members("big")[0].node == left
    assert cluster.members(moved.job)[0].node != left
    assert cluster.job(moved.job).resumed_from is not None
    assert cluster.state.header.moved_ns == [moved.at_ns]


@pytest.mark.parametrize(("hours", "worth"), [(1, False), (2, True)])
def test_what_is_gained_must_be_more_than_what_is_lost(hours: int, worth: bool) -> None:
    restart = PreemptionRule(grace_seconds=10, restart_seconds=4 * HOUR)
    cluster = fragmented()
    for job in ("small0", "small1"):
        cluster.state.specs[job] = msgspec.structs.replace(cluster.state.specs[job], preemption=restart)
    cluster.submit(big(hours=hours), "big")
    assert bool(moves(cluster.settle())) == worth, "lost are four GPU-hours and 100 s"


def test_the_room_that_is_lost_in_waiting_is_all_that_is_gained() -> None:
    cluster = fragmented(time_limit_seconds=3 * HOUR)
    for job in ("small0", "small1"):
        restart = PreemptionRule(grace_seconds=10, restart_seconds=12 * HOUR)
        cluster.state.specs[job] = msgspec.structs.replace(cluster.state.specs[job], preemption=restart)
    cluster.submit(big(hours=10), "big")
    assert not moves(cluster.settle()), "it will have the room in less than three hours anyway"
    assert cluster.job("big").reserved_start_ns


@pytest.mark.parametrize("expected", [True, False])
def test_a_job_that_says_nothing_of_its_time_moves_nobody(expected: bool) -> None:
    cluster = fragmented()
    cluster.submit(big() if expected else spec(100, gpus=4), "big")
    assert bool(moves(cluster.settle())) == expected


def test_nobody_moves_who_would_find_no_room_elsewhere() -> None:
    cluster = fragmented()
    run(cluster, "other", spec(100, gpus=3))
    run(cluster, "last", spec(100, gpus=1))
    cluster.submit(big(gpus=2), "big")
    cluster.settle()
    assert cluster.stage("big") in ("pending", "placed")
    cluster.submit(big(), "huge")
    assert not moves(cluster.settle())


def test_devices_that_are_not_there_in_all_are_no_fragmentation() -> None:
    cluster = fragmented()
    cluster.submit(big(gang=2), "big")
    assert not moves(cluster.settle()), "eight of the six that are free"


@pytest.mark.parametrize(
    "kept", ["higher priority", "no checkpoint", "protected", "past its budget", "in its cool-down", "queue stopped"]
)
def test_who_does_not_move(kept: str) -> None:
    parameters = Parameters(preemptions_max=3, preemption_cooldown_seconds=HOUR)
    cluster = fragmented(parameters=parameters)
    for name in ("small0", "small1"):
        job = cluster.job(name)
        if kept == "higher priority":
            job.priority = 1
        elif kept == "no checkpoint":
            job.checkpoints = []
        elif kept == "protected":
            cluster.state.specs[name] = msgspec.structs.replace(cluster.state.specs[name], expected_seconds=110)
        elif kept == "past its budget":
            job.preemptions = 3
        elif kept == "in its cool-down":
            job.preemptions = 1
        cluster.state.touch(f"job/{name}")
    if kept == "queue stopped":
        stopped = e.QueueChanged(id="stop", at_ns=cluster.now, actor="ada", tenant="t", stopped=True)
        cluster.append("gateway", "g1", stopped)
        owned = big()
        cluster.submit(msgspec.structs.replace(owned, tenant="u"), "big")
    else:
        cluster.submit(big(), "big")
    assert not moves(cluster.settle())


def test_no_more_than_so_many_an_hour_and_then_again() -> None:
    parameters = Parameters(defragmentations_per_hour=2, reservations_max=8)
    cluster = fragmented(4, parameters=parameters)
    for number in range(3):
        cluster.submit(big(), f"big{number}")
    first = moves(cluster.settle())
    assert len(first) == 2
    for moved in first:
        cluster.exit(moved.job, "suspended", acknowledged=True)
    for job in list(cluster.state.jobs):
        cluster.start(job)
    assert not moves(cluster.advance(HOUR - 10))
    assert cluster.wake_at is not None
    assert cluster.wake_at <= cluster.now + 10 * 1_000_000_000
    (third,) = moves(cluster.advance(11))
    assert third.for_job == "big2"
    assert cluster.state.header.moved_ns == [third.at_ns], "those of the hour before are forgotten"


def test_it_is_off_where_none_may_move() -> None:
    cluster = fragmented(parameters=Parameters(defragmentations_per_hour=0))
    cluster.submit(big(), "big")
    assert not moves(cluster.settle())


def test_a_gang_over_several_nodes_has_one_move_for_each_node_that_it_lacks() -> None:
    cluster = fragmented(2)
    cluster.submit(big(gang=2), "gang")
    decided = moves(cluster.settle())
    assert len(decided) == 2
    for moved in decided:
        cluster.exit(moved.job, "suspended", acknowledged=True)
    assert len({member.node for member in cluster.members("gang")}) == 2
    assert {cluster.stage(moved.job) for moved in decided} == {"placed"}


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_moves_that_no_pass_could_hold_are_not_asked_for_again_and_again(most: int) -> None:
    cluster = fragmented(2, parameters=Parameters(decisions_per_pass_max=most))
    cluster.submit(big(gang=2), "gang")
    decided = cluster.settle()
    assert len(moves(decided)) == (2 if most >= 3 else 0), "two who move, and whom the room is kept for"
    assert cluster.wake_at is None or cluster.wake_at > cluster.now, "it would look again at once"


def test_a_new_index_decides_the_same() -> None:
    cluster = fragmented(2)
    cluster.submit(big(gang=2), "gang")
    for _ in range(3):
        fresh = snapshot.decode_snapshot(snapshot.encode_snapshot(cluster.state))
        kept = decide(cluster.state, cluster.now).events
        assert kept == decide(fresh, cluster.now).events
        assert kept == decide(cluster.state, cluster.now).events, "what was tried is taken back"
        if not kept:
            break
        cluster.append("scheduler", cluster.leader, *kept)
    assert cluster.state.header.moved_ns
