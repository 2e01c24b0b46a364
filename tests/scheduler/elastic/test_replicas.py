"""The number of simulators follows the room that nobody else has, and gives it back before anybody has to leave."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler import snapshot
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.elastic.replicas import additional_mib
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.state import LEAVING_STAGES, State

from tests.support.cluster import SECOND, Cluster, spec

CPU, MEMORY = 4000, 4000
LEARNER = Component(
    name="learner", kind="learner", command=("l",), resources={"default": ResourceRange(minimum=Resources(1000, 500))}
)


def sampler(replicas: int = 2, most: int | None = 6, *, cpu_most: int = 300, memory: int = 400, **more: Any) -> JobSpec:
    """A learner of one CPU, and simulators of 0.3 CPUs, which need but 0.1 while it learns."""
    simulators = Component(
        name="simulator",
        kind="simulator",
        command=("s",),
        replicas=replicas,
        replicas_max=most,
        resources={
            "default": ResourceRange(minimum=Resources(300, memory), maximum=Resources(cpu_most, memory)),
            "learning": ResourceRange(minimum=Resources(100, memory), maximum=Resources(cpu_most, memory)),
        },
    )
    return JobSpec(name="j", tenant="t", submitter="u", components=(simulators, LEARNER), **more)


def running(job: JobSpec | None = None, *, cpu: int = CPU, memory: int = MEMORY) -> Cluster:
    cluster = Cluster()
    cluster.node("n1", cpu, memory=memory)
    cluster.submit(job or sampler(), "sampler")
    cluster.settle()
    cluster.start("sampler")
    return cluster


def count(cluster: Cluster, job: str = "sampler") -> int | None:
    """Return how many simulators the job has, None where that is what it says."""
    return cluster.members(job)[0].quotas[0].replicas


def test_simulators_are_added_in_what_is_free_of_cpu_and_memory() -> None:
    assert count(running()) == 6, "all that it may have"
    assert count(running(cpu=2500)) == 5, "1000 + 5 * 300 of 2500"
    assert count(running(memory=2200)) == 4, "500 + 4 * 400 of 2200"
    assert count(running(cpu=1600)) is None, "no more than it is guaranteed"


def test_what_is_decided_says_why() -> None:
    cluster = running(cpu=2500)
    (changed,) = [
        event for frame in cluster.frames for event in frame.frame.events if isinstance(event, e.QuotaChanged)
    ]
    (why,) = changed.reasons
    assert (why.code, why.detail) == ("SimulatorsAdded", "simulator")
    assert why.numbers == {"replicas": 5, "before": 2, "replicas_max": 6}


@pytest.mark.parametrize("job", [sampler(determinism="strict"), sampler(most=None)])
def test_the_number_of_a_strict_job_and_of_one_that_names_no_other_stays(job: JobSpec) -> None:
    assert count(running(job)) is None


def test_none_is_added_before_all_have_started() -> None:
    cluster = Cluster()
    cluster.node("n1", CPU, memory=MEMORY)
    cluster.submit(sampler(), "sampler")
    cluster.settle()
    assert count(cluster) is None


def test_first_every_phase_has_its_maximum() -> None:
    cluster = running(sampler(cpu_most=1000))
    assert count(cluster) == 3, "1000 + 3 * 1000 of 4000"
    assert cluster.members("sampler")[0].quotas[0].cpu_millis == 1000


def test_none_is_added_while_they_need_less_and_those_that_are_there_stay() -> None:
    cluster = running(cpu=2500)
    cluster.phase("sampler", "learning")
    cluster.advance(5)
    assert count(cluster) == 5
    cluster.phase("sampler", "default")
    small = running(cpu=1600)
    small.phase("sampler", "learning")
    small.node("n1", CPU, memory=MEMORY, incarnation=2, held=[e.HeldSandbox(job="sampler", attempt=1, rank=0)])
    small.advance(5)
    assert count(small) is None
    small.phase("sampler", "default")
    small.advance(5)
    assert count(small) == 6


def test_a_job_that_comes_has_its_cpu_at_once() -> None:
    cluster = running()
    cluster.submit(spec(2000, memory=100), "other")
    decided = cluster.settle()
    kinds = [type(event) for event in decided]
    assert kinds.index(e.QuotaChanged) < kinds.index(e.JobPlaced)
    assert count(cluster) == 3, "1000 + 3 * 300 beside 2000 of 4000"
    assert e.PreemptRequested not in kinds
    (removed,) = [event.reasons[0] for event in decided if isinstance(event, e.QuotaChanged)]
    assert (removed.code, removed.numbers["replicas"]) == ("SimulatorsRemoved", 3)


def test_a_job_that_needs_their_memory_waits_until_they_have_left_and_nobody_is_suspended() -> None:
    cluster = running()
    cluster.submit(spec(100, memory=2000, priority=5), "other")
    decided = cluster.settle()
    assert not [event for event in decided if isinstance(event, e.PreemptRequested | e.JobPlaced)]
    assert count(cluster) == 3, "500 + 3 * 400 beside 2000 of 4000"
    assert cluster.job("other").reserved_nodes == ("n1",)
    assert cluster.job("other").reserved_start_ns == cluster.now + 15 * SECOND
    assert cluster.wake_at is not None
    assert cluster.wake_at <= cluster.now + 15 * SECOND
    assert not cluster.advance(14)
    cluster.advance(1)
    assert cluster.stage("other") == "placed"
    cluster.start("other")
    cluster.exit("other", "completed")
    cluster.advance(5)
    assert count(cluster) == 6, "and then they come back"


def test_it_goes_where_memory_is_free_at_once() -> None:
    cluster = running()
    cluster.node("n2", 8000, memory=MEMORY)
    cluster.submit(spec(100, memory=2000), "other")
    cluster.settle()
    assert cluster.members("other")[0].node == "n2"
    assert count(cluster) == 6


def test_what_simulators_of_a_leaving_job_hold_is_back_when_it_has_left() -> None:
    cluster = running()
    cluster.submit(spec(100, memory=3500, priority=5, grace=100), "urgent")
    cluster.settle()
    assert cluster.stage("sampler") == "preempting"
    cluster.submit(spec(100, memory=1600, priority=9), "other")
    cluster.advance(60)
    assert cluster.stage("other") == "pending", "told to leave or not, its node ends them with the job"
    cluster.exit("sampler", "suspended")
    assert cluster.stage("other") == "placed"


def test_memory_is_asked_back_though_somebody_else_leaves_too() -> None:
    cluster = running(cpu=8000, memory=6000)
    cluster.submit(spec(100, memory=2000, grace=100), "old")
    cluster.settle()
    cluster.advance(15)
    cluster.start("old")
    assert count(cluster) == 6
    asked = e.SuspendRequested(id="s", at_ns=cluster.now, tenant="t", job="old", actor="ada")
    cluster.append("gateway", "g1", asked)
    cluster.settle()
    cluster.submit(spec(100, memory=2000), "other")
    cluster.settle()
    assert cluster.stage("other") == "pending"
    assert count(cluster) == 3, "700 MiB are left for one, beside the two that are guaranteed"
    cluster.advance(15)
    assert (cluster.stage("other"), cluster.stage("old")) == ("placed", "preempting")


def test_they_do_not_flap() -> None:
    cluster = Cluster(Parameters(lend_interval_seconds=30))
    cluster.node("n1", CPU, memory=MEMORY)
    cluster.submit(sampler(), "sampler")
    cluster.settle()
    cluster.start("sampler")
    cluster.submit(spec(2000, memory=10), "other")
    cluster.settle()
    cluster.start("other")
    cluster.exit("other", "completed")
    assert count(cluster) == 3
    assert not cluster.advance(29)
    cluster.advance(1)
    assert count(cluster) == 6


def _physical_mib(state: State, now_ns: int) -> int:
    total = 0
    for job in state.jobs.values():
        for member in job.members:
            if member.active:
                total += state.floors[job.id].memory_mib + additional_mib(state.specs[job.id], member.quotas)
                if member.returns_ns > now_ns or job.stage in LEAVING_STAGES:
                    total += member.returns_mib
    return total


STEPS = st.tuples(st.integers(0, 5), st.integers(1, 20), st.integers(1, 40), st.integers(0, 3))


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEPS, min_size=5, max_size=30))
def test_memory_is_never_given_twice_and_a_new_index_decides_the_same(steps: list[tuple[int, int, int, int]]) -> None:
    cluster = Cluster()
    cluster.node("n1", CPU, memory=MEMORY)
    for kind, one, other, priority in steps:
        live = sorted(cluster.state.jobs)
        job = live[one % len(live)] if live else ""
        if kind == 0 or not live:
            cluster.submit(sampler(1 + one % 3, 4 + other % 4, memory=other * 10, priority=priority))
        elif kind == 1:
            cluster.submit(spec(one * 100, memory=other * 100, priority=priority))
        elif kind == 2 and not cluster.job(job).waiting:
            cluster.phase(job, ["default", "learning"][other % 2])
        elif kind == 3 and not cluster.job(job).waiting:
            cluster.exit(job, "suspended" if cluster.stage(job) == "preempting" else "completed")
        elif kind == 4:
            cluster.start(job)
        cluster.now += one * SECOND
        fresh = snapshot.decode_snapshot(snapshot.encode_snapshot(cluster.state))
        assert decide(cluster.state, cluster.now).events == decide(fresh, cluster.now).events
        cluster.settle()
        assert _physical_mib(cluster.state, cluster.now) <= MEMORY
    for _ in range(200):
        live = sorted(cluster.state.jobs)
        if not live:
            break
        for job in live:
            if job in cluster.state.jobs:
                cluster.start(job)
                cluster.exit(job, "completed")
        cluster.advance(20)
    assert not cluster.state.jobs, "whoever waits for memory gets it"


def test_a_quota_without_a_number_is_written_as_it_was() -> None:
    quota = e.Quota(component="c", cpu_millis=1, memory_mib=2)
    assert msgspec.json.encode(quota) == b'{"component":"c","cpu_millis":1,"memory_mib":2}'
