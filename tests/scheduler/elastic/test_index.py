"""The tables that are kept up with the state are those that are made anew from it, and asking changes neither."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidegate_events import events as e
from tidegate_events.resources import GpuDevice, Resources
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import elastic, looked_up, run
from tests.scheduler.elastic.lent import applied, ask, borrower, owner
from tests.scheduler.elastic.world import answers, tables, told_anew
from tests.support.cluster import SECOND, Cluster, spec


def busy() -> Cluster:
    """Return a cluster in which every table of the index holds something."""
    cluster = elastic()
    cluster.node("n4", 2000, memory=5000, gpus=2)
    for name, job in (("owner", owner(priority=9)), ("borrower", borrower(priority=9))):
        run(cluster, name, job)
        applied(cluster, name)
    ask(cluster, "borrower", "learning")
    ask(cluster, "owner", "learning")
    devices = (GpuDevice(0, "a", "A", 24_000), GpuDevice(1, "b", "B", 80_000))
    cluster.node("n2", 4000, devices=devices)
    cluster.node("n1", 4000, gpus=2)
    cluster.node("n3", 2000)
    looked_up(cluster)
    cluster.ask(e.QueueChanged, tenant="a", weight=2, guaranteed=Resources(1000))
    run(cluster, "whole", spec(500, gpus=1, priority=1, gpu_models=("B",)))
    run(cluster, "part", spec(500, gpu_millis=300, tenant="a"))
    run(cluster, "gang", spec(1500, gang=3, priority=1))
    cluster.node("n5", 100, rack="r1", switch="s1")
    cluster.submit(spec(2500, gang=2, priority=5), "high")
    cluster.submit(spec(4000, time_limit_seconds=500), "big")
    cluster.submit(spec(4000), "held")
    cluster.ask(e.HoldRequested, "held")
    cluster.settle()
    return cluster


CHANGES: dict[str, Callable[[Cluster], object]] = {
    "nothing": lambda cluster: None,
    "a victim leaves": lambda cluster: cluster.exit("gang", "suspended", acknowledged=True),
    "a member is gone": lambda cluster: cluster.exit("gang", "lost", ranks=[1]),
    "a node is silent": lambda cluster: cluster.silence("n1"),
    "a node joins anew": lambda cluster: cluster.node("n1", 3000, gpus=1, incarnation=2),
    "a node joins first by name": lambda cluster: cluster.node("n0", 1000),
    "a node stands elsewhere": lambda cluster: cluster.node("n5", 100, rack="r2", switch="s1", incarnation=2),
    "a node is drained": lambda cluster: cluster.ask(e.NodeDrainRequested, node="n3", deadline_ns=cluster.now),
    "a queue is set": lambda cluster: cluster.ask(e.QueueChanged, tenant="t", weight=3, stopped=True),
    "a priority changes": lambda cluster: cluster.ask(e.JobPriorityChanged, "whole", priority=9),
    "a waiting one's priority changes": lambda cluster: cluster.ask(e.JobPriorityChanged, "big", priority=9),
    "a limit changes": lambda cluster: cluster.ask(e.JobLimitChanged, "big", time_limit_seconds=7),
    "a preemptor is cancelled": lambda cluster: cluster.cancel("high"),
    "a job is let go": lambda cluster: cluster.ask(e.ReleaseRequested, "held"),
    "a part is left": lambda cluster: cluster.exit("part", "completed"),
    "a lease is handed back": lambda cluster: ask(cluster, "borrower", ""),
    "an owner leaves": lambda cluster: cluster.exit("owner", "completed"),
    "time passes": lambda cluster: cluster.advance(10_000),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tables_that_are_kept_up_are_those_made_anew(change: str) -> None:
    cluster = busy()
    for step in (CHANGES[change], lambda cluster: cluster.settle()):
        step(cluster)
        known = tables(looked_up(cluster))
        for turned in (False, True):
            other = elastic()
            other.state = told_anew(cluster.frames, turned=turned)
            assert tables(looked_up(other)) == known
            assert answers(other.state, cluster.now) == answers(cluster.state, cluster.now)


def test_every_table_held_something() -> None:
    """Or the comparison above would say little."""
    empty = {what for what, held in tables(looked_up(busy())).items() if not held}
    assert empty <= {"overfull", "unreachable", "clearing", "cordoned", "backfilling"}


def test_a_pass_takes_back_what_it_tried() -> None:
    cluster = busy()
    cluster.exit("gang", "completed")
    cluster.submit(spec(100, gpu_millis=200), "new")
    before = tables(looked_up(cluster))
    decided = decide(cluster.state, cluster.now).events
    assert decided
    assert tables(looked_up(cluster)) == before


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_decided_and_not_folded_leaves_nothing_whatever_happens_then(change: str) -> None:
    cluster = busy()
    cluster.exit("gang", "completed")
    cluster.submit(spec(100, gpu_millis=200, gang=2), "new")
    decided = decide(cluster.state, cluster.now).events
    assert {"new"} == {event.job for event in decided if isinstance(event, e.JobPlaced)}
    before = len(cluster.frames)
    if change not in {"a member is gone", "a victim leaves"}:  # it has left
        CHANGES[change](cluster)
    else:
        cluster.cancel("new")
    assert len(cluster.frames) > before or change in {"nothing", "time passes"}
    other = elastic()
    other.state = told_anew(cluster.frames)
    assert tables(looked_up(cluster)) == tables(looked_up(other))


def test_where_what_was_decided_is_folded_the_room_was_never_given_back() -> None:
    cluster = busy()
    cluster.exit("gang", "completed")
    cluster.submit(spec(100, gpu_millis=200), "new")
    index = looked_up(cluster)
    decided = decide(cluster.state, cluster.now).events
    placed = [event for event in decided if isinstance(event, e.JobPlaced)]
    assert placed
    row = index.table.rows[placed[0].members[0].node]
    free = index.table.free_on(row).copy()
    cluster.append("scheduler", cluster.leader, *decided)
    assert looked_up(cluster).table.free_on(row) == free


@pytest.mark.parametrize("seconds", [-10_000, -1, 1, 60, 3600, 10_000_000])
def test_asking_about_another_time_changes_nothing(seconds: int) -> None:
    cluster = busy()
    cluster.exit("part", "failed", exit_code=1)
    before = answers(cluster.state, cluster.now)
    decide(cluster.state, cluster.now + seconds * SECOND)
    assert answers(cluster.state, cluster.now) == before


def test_a_pass_that_is_exactly_full_asks_for_the_next_one_whoever_is_left_to_look_at() -> None:
    """Made anew, an index has to look at all jobs, one that was kept up at those that changed."""
    cluster = elastic(Parameters(decisions_per_pass_max=2))
    for job in ("a", "b", "c"):
        cluster.submit(spec(100), job)
    cluster.ask(e.QueueChanged, tenant="t", stopped=True)
    cluster.settle()
    for job in ("a", "b"):
        cluster.cancel(job)
    kept, anew = answers(cluster.state, cluster.now), answers(told_anew(cluster.frames), cluster.now)
    assert kept == anew
    assert kept[1] == cluster.now


@pytest.mark.parametrize("high", [Resources(500, 500, 1), Resources(500, 500, gpu_millis=700)])
def test_what_was_just_placed_is_looked_at_again_if_it_lends_devices(high: Resources) -> None:
    cluster = elastic()
    cluster.node("n1", 4000, gpus=1)
    cluster.settle()
    cluster.submit(owner(Resources(500, 500), high), "owner")
    decided = decide(cluster.state, cluster.now).events
    assert [event.members[0].gpu_indices for event in decided if isinstance(event, e.JobPlaced)] == [(0,)]
    cluster.append("scheduler", cluster.leader, *decided)
    assert answers(cluster.state, cluster.now) == answers(told_anew(cluster.frames), cluster.now)
    cluster.settle()
    assert cluster.members("owner")[0].lent_gpus == (0,)


def test_a_node_that_came_back_without_what_was_leased_is_too_small_until_its_members_are_gone() -> None:
    """What it lacks is looked at once all is taken in: in the middle, what was leased still counts on devices gone."""
    cluster = busy()
    held = [
        e.HeldSandbox(job=job.id, attempt=job.attempt, rank=member.rank)
        for job in cluster.state.jobs.values()
        for member in job.members
        if member.node == "n4"
    ]
    assert any(member.leased for job in cluster.state.jobs.values() for member in job.members if member.node == "n4")
    cluster.node("n4", 2000, memory=5000, gpus=0, incarnation=2, held=held)
    assert tables(looked_up(cluster))["overfull"] == ["n4"]
    cluster.settle()
    cluster.silence("n4")
    cluster.advance(3600)
    assert {job.id for job in cluster.state.jobs.values() for member in job.members if member.node == "n4"} == set()
    for turned in (False, True):
        other = elastic()
        other.state = told_anew(cluster.frames, turned=turned)
        assert tables(looked_up(other)) == tables(looked_up(cluster))
    assert tables(looked_up(cluster))["overfull"] == []
