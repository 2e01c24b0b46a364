"""The number of simulators follows the room that nobody else has, and gives it back before anybody has to leave."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import event as note
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler import snapshot
from tidegate_scheduler.decide import decide
from tidegate_scheduler.leasing import limits_mib
from tidegate_scheduler.policy.elastic.replicas import additional_mib
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.policy.sharing import quota_millis
from tidegate_scheduler.state import LEAVING_STAGES, State

from tests.scheduler.elastic.lent import borrower, lending, owner
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


# ---- beside what is lent ----


def _has(cluster: Cluster) -> tuple[int, int]:
    """Return the CPU of all quotas, added simulators and all, and the memory that is lent, granted or still held."""
    state, millis, mib = cluster.state, 0, 0
    for job in state.jobs.values():
        spec, floor = state.specs[job.id], state.floors[job.id]
        for member in job.members:
            if member.active:
                millis += quota_millis(spec, member.quotas)
                lends = spec.phase_entry == "asked"
                mib += max(limits_mib(spec, member.quotas), member.held_mib) if lends else floor.memory_mib
                mib += additional_mib(spec, member.quotas)
                if member.returns_ns > cluster.now or job.stage in LEAVING_STAGES:
                    mib += member.returns_mib
    return millis, mib


OF_SIMULATORS = st.integers(1, 12)
MANY = st.tuples(
    st.sampled_from(["ask", "ask", "enter", "enter", "phase", "low", "recovered", "refuse", "submit", "leave", "pass"]),
    st.integers(0, 5),
    st.integers(1, 40),
)


@settings(max_examples=60, deadline=None)
@given(
    cpu=st.integers(20, 90),
    memory=st.integers(40, 120),
    acts=st.lists(MANY, min_size=10, max_size=40),
    most=OF_SIMULATORS,
)
def test_what_is_lent_is_not_both_for_simulators_and_for_quotas(
    cpu: int, memory: int, acts: list[tuple[str, int, int]], most: int
) -> None:
    """Owners lend, borrowers and slow jobs have it, simulators are added in it: together never more than there is."""
    cluster = lending(cpu=cpu * 100, memory=memory * 100, gpus=1)
    low, high = Resources(300, 500), Resources(1200, 2500, 1)
    for made in (owner(low, high), borrower(low, high), borrower(low, Resources(900, 900)), sampler(1, most)):
        cluster.submit(made)
        cluster.settle()
    added = 0
    for what, which, number in acts:
        names = [name for name, job in sorted(cluster.state.jobs.items()) if not job.waiting]
        if not names or what == "submit":
            cluster.submit(spec(number * 50, memory=number * 40, priority=which % 2))
        elif what == "pass":
            cluster.now += number * SECOND
        else:
            _does(cluster, names[which % len(names)], (what, which, number))
        cluster.settle()
        millis, mib = _has(cluster)
        assert millis <= cpu * 100, f"quotas of {millis} of {cpu * 100}"
        assert mib <= memory * 100, f"{mib} of {memory * 100} MiB"
        for job in cluster.state.jobs.values():
            added += sum(additional_mib(cluster.state.specs[job.id], each.quotas) for each in job.members)
    note(f"simulators added: {bool(added)}")


def _does(cluster: Cluster, name: str, act: tuple[str, int, int]) -> None:
    """A job starts, if it has not; else its member does something."""
    (what, which, number), job, member = act, cluster.job(name), cluster.members(name)[0]
    asks = cluster.state.specs[name].phase_entry == "asked"
    if member.status == "ordered" and what != "leave":
        cluster.start(name)
        cluster.node_fact(name, member, e.QuotaApplied, quotas=member.quotas)
    elif what == "ask" and asks:
        phase = ["learning", "learning", "sampling", ""][which % 4]
        cluster.node_fact(name, member, e.PhaseRequested, phase=phase, _node=False)
    elif what == "enter" and asks:
        cluster.node_fact(name, member, e.QuotaApplied, quotas=member.quotas)
        if member.granted:
            cluster.node_fact(name, member, e.PhaseChanged, phase=member.granted, _node=False)
    elif what == "phase" and not asks:
        cluster.node_fact(name, member, e.PhaseChanged, phase=["default", "learning"][number % 2], _node=False)
    elif what in ("low", "recovered"):
        kind = e.StepRateLow if what == "low" else e.StepRateRecovered
        about: dict[str, Any] = {"tenant": "t", "job": name, "attempt": job.attempt, "window_seconds": 10}
        about |= {"id": f"rate-{len(cluster.frames)}", "at_ns": cluster.now, "rate_millis": 1, "target_millis": 2}
        cluster.append("metrics", "m1", kind(**about))
    elif what == "refuse" and member.held_mib:
        kept = e.Quota(component="main", cpu_millis=1, memory_mib=member.held_mib)
        cluster.node_fact(name, member, e.ShrinkRefused, quotas=(kept,))
    elif what == "leave" and job.stage == "preempting":
        cluster.exit(name, "suspended", acknowledged=True)


def test_a_quota_without_a_number_is_written_as_it_was() -> None:
    quota = e.Quota(component="c", cpu_millis=1, memory_mib=2)
    assert msgspec.json.encode(quota) == b'{"component":"c","cpu_millis":1,"memory_mib":2}'
