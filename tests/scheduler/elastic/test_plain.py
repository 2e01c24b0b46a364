"""What is worked out once of members, rows and nodes gives what working it out anew does."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy import sharing
from tidegate_scheduler.policy.elastic import plain
from tidegate_scheduler.policy.elastic.emptiest import emptiest
from tidegate_scheduler.policy.elastic.table import CPU, GPUS
from tidegate_scheduler.state import State

from tests.scheduler.elastic.lab import all_events, complete, elastic, looked_up, phased
from tests.scheduler.elastic.lent import borrower, owner
from tests.scheduler.elastic.test_lending import rate
from tests.support.cluster import Cluster, spec

PHASES = ("default", "sampling", "learning")
millis = st.integers(10, 3000)
ranges = st.tuples(millis, millis).map(
    lambda both: ResourceRange(minimum=Resources(min(both), 64), maximum=Resources(max(both), 64))
)
components = st.tuples(st.integers(1, 3), st.fixed_dictionaries({"default": ranges}, optional={"sampling": ranges}))


def several(parts: list[tuple[int, dict[str, ResourceRange]]]) -> JobSpec:
    """Return a job of such components."""
    made = tuple(
        Component(name=f"c{number}", command=("true",), resources=phases, replicas=replicas)
        for number, (replicas, phases) in enumerate(parts)
    )
    return JobSpec(name="job", tenant="t", submitter="u", components=made)


@given(st.lists(st.tuples(st.lists(components, min_size=1, max_size=3), st.sampled_from(PHASES)), max_size=5), millis)
def test_members_get_plainly_what_they_are_given_at_length(
    jobs: list[tuple[list[tuple[int, dict[str, ResourceRange]]], str]], more: int
) -> None:
    state, members = State(), list[sharing.Seated]()
    for number, (parts, phase) in enumerate(jobs):
        state.specs[f"j{number}"] = several(parts)
        members.append(sharing.Seated(f"j{number}", 0, phase, (0, number, f"j{number}")))
    held = [sharing.part_of(state.specs[each.job], each.phase) for each in members]
    capacity_millis = sum(part.least_millis for part in held) + more
    granted = sharing.lend(capacity_millis, held)
    quotas = [sharing.part_quotas(part, millis) for part, millis in zip(held, granted, strict=True)]
    at_length = sharing.share(state, capacity_millis, members)
    assert at_length == {(each.job, 0): plainly for each, plainly in zip(members, quotas, strict=True)}
    assert [sharing.part_millis(part, each) for part, each in zip(held, quotas, strict=True)] == granted


@pytest.mark.parametrize("other", [{"memory_mib": 65}, {"component": "other"}, {"replicas": 2}])
def test_quotas_that_lending_does_not_make_are_known_as_such(other: dict[str, Any]) -> None:
    part = sharing.part_of(several([(1, {"default": ResourceRange(minimum=Resources(100, 64))})]), "default")
    (quota,) = sharing.part_quotas(part, (100,))
    assert sharing.part_millis(part, (quota,)) == (100,)
    assert sharing.part_millis(part, (msgspec.structs.replace(quota, **other),)) == ()
    assert sharing.part_millis(part, (quota, quota)) == ()


@pytest.mark.parametrize("seed", range(20))
def test_the_emptiest_are_the_first_of_all_in_order(seed: int) -> None:
    draw, cluster = random.Random(seed), elastic()
    for number in range(draw.choice([1, 7, 40])):
        cluster.node(f"n{number * 7 % 41:02d}", 1000)
    table = looked_up(cluster).table
    rows = np.arange(len(table))
    table.later[GPUS, rows] = [draw.randint(-1, 2) for _ in rows]
    table.later[CPU, rows] = [draw.randint(-1, 3) for _ in rows]
    order = sorted(rows.tolist(), key=lambda row: (-table.later[GPUS, row], -table.later[CPU, row], table.place[row]))
    for most in (1, 2, 5, 39, 100):
        assert emptiest(table, rows, most).tolist() == order[:most]


def crowded(seed: int) -> Cluster:
    """Return a cluster on which elastic jobs came, went, changed their phases and were slow for a while."""
    draw, cluster = random.Random(seed), elastic()
    for number in range(3):
        cluster.node(f"n{number}", 6000)
    for number in range(30):
        job = spec(500, priority=draw.randint(0, 2), gang=draw.choice([1, 1, 2]))
        least = draw.choice([100, 500])
        if draw.random() < 0.8:
            job = phased(job, default=(500, 900), sampling=(500, draw.choice([900, 3000])), learning=(least, least))
        cluster.submit(job, f"j{number:02d}")
        cluster.settle()
        for name in in_stage(cluster, "placed")[:2]:
            cluster.start(name)
        running = in_stage(cluster, "running")
        cluster.phase(draw.choice(running), draw.choice(PHASES))
        if number % 3 == 0:
            rate(cluster, draw.choice(running), draw.choice([e.StepRateLow, e.StepRateRecovered]))
        if number % 4 == 3:
            complete(cluster, draw.choice(running))
        cluster.advance(draw.choice([1, 7, 30]))
    return cluster


def in_stage(cluster: Cluster, stage: str) -> list[str]:
    return sorted(job.id for job in cluster.state.jobs.values() if job.stage == stage)


@pytest.mark.parametrize("seed", range(4))
def test_decisions_are_those_of_looking_at_each_row_at_length(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plainly = crowded(seed)
    assert any(looked_up(plainly).sharers.values()), "there was nobody whom it knew"
    with monkeypatch.context() as patched:
        patched.setattr(plain, "shared", lambda *_: None)
        at_length = crowded(seed)
    assert all_events(plainly) == all_events(at_length)
    assert any(isinstance(each, e.QuotaChanged) for each in all_events(plainly))


def placed_in_one_pass(*, folded: bool) -> Cluster:
    """Return a cluster with jobs on a row that a pass has placed there, and has shared it with."""
    cluster = elastic()
    cluster.node("n1", 2000)
    cluster.settle()
    assert not looked_up(cluster).unshared
    for job in ("one", "two"):
        cluster.submit(phased(spec(500), default=(500, 900), sampling=(500, 3000)), job)
    decided = decide(cluster.state, cluster.now).events
    assert sum(isinstance(each, e.JobPlaced) for each in decided) == 2
    if folded:
        cluster.append("scheduler", cluster.leader, *decided)
    return cluster


def test_a_row_that_was_shared_with_who_came_is_not_shared_anew() -> None:
    cluster = placed_in_one_pass(folded=True)
    assert not looked_up(cluster).unshared
    assert not any(isinstance(each, e.QuotaChanged) for each in cluster.settle())


@pytest.mark.parametrize("job", [owner(), borrower()], ids=["owner", "borrower"])
def test_a_row_on_which_somebody_comes_whom_more_decides_about_is_looked_at_again(job: JobSpec) -> None:
    cluster = elastic()
    cluster.node("n1", 4000, memory=4000, gpus=2)
    cluster.settle()
    cluster.submit(job, "one")
    assert not looked_up(cluster).unshared
    decided = decide(cluster.state, cluster.now).events
    assert any(isinstance(each, e.JobPlaced) for each in decided)
    cluster.append("scheduler", cluster.leader, *decided)
    index = looked_up(cluster)
    assert index.unshared == {index.table.rows["n1"]: None}


@pytest.mark.parametrize("change", ["nothing", "phase", "rate", "exit", "priority"])
def test_a_row_is_shared_anew_where_what_is_known_of_it_is_not_what_was_decided(change: str) -> None:
    cluster = placed_in_one_pass(folded=change != "nothing")
    about: dict[str, Any] = {"id": change, "at_ns": cluster.now, "tenant": "t", "job": "two", "attempt": 1}
    if change == "phase":
        cluster.append("node", "n1", e.PhaseChanged(**about, rank=0, phase="sampling"))
    elif change == "rate":
        numbers = {"rate_millis": 1, "target_millis": 2, "window_seconds": 60}
        cluster.append("metrics", "m1", e.StepRateLow(**about, **numbers))
    elif change == "exit":
        cluster.append("node", "n1", e.SandboxExited(**about, rank=0, node="n1", outcome="completed"))
    elif change == "priority":
        cluster.ask(e.JobPriorityChanged, "two", priority=3)
    index = looked_up(cluster)
    assert index.unshared == {index.table.rows["n1"]: None}
