"""Owners that learn with two GPUs and sample without, borrowers that would like to, and what their nodes say."""

from __future__ import annotations

from typing import Any

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, PreemptionRule, ResourceRange
from tidegate_scheduler.policy.parameters import Parameters

from tests.scheduler.elastic.lab import of
from tests.support.cluster import SECOND, Cluster

HAND_BACK, GRACE = 20, 10
LOW, HIGH = Resources(500, 500), Resources(1000, 4000, 2)


def owner(low: Resources = LOW, high: Resources = HIGH, **more: Any) -> JobSpec:
    """A job that is guaranteed what it needs when it learns, and asks for its phases."""
    resources = {
        "default": ResourceRange(minimum=low),
        "sampling": ResourceRange(minimum=low),
        "learning": ResourceRange(minimum=high),
    }
    fields: dict[str, Any] = {"name": "j", "tenant": "t", "submitter": "u", "phase_entry": "asked"}
    component = Component(name="main", command=("true",), resources=resources)
    leaves = PreemptionRule(grace_seconds=GRACE, hand_back_seconds=HAND_BACK)
    return JobSpec(components=(component,), preemption=leaves, **(fields | more))


def borrower(low: Resources = LOW, high: Resources = HIGH, **more: Any) -> JobSpec:
    """A job that is guaranteed what it needs when it does not learn."""
    return owner(low, high, borrows=True, **more)


def node(cluster: Cluster, name: str = "n1", *, cpu: int = 4000, memory: int = 5000, gpus: int = 2) -> None:
    cluster.node(name, cpu, memory=memory, gpus=gpus)


def lending(parameters: Parameters | None = None, **capacity: int) -> Cluster:
    cluster = Cluster(parameters, policy=2)
    node(cluster, **capacity)
    return cluster


def run(cluster: Cluster, name: str, job: JobSpec) -> str:
    """The job starts, and its nodes say which limits its members began with."""
    cluster.submit(job, name)
    cluster.settle()
    cluster.start(name)
    assert cluster.stage(name) == "running", cluster.waiting.get(name)
    for member in cluster.members(name):
        cluster.node_fact(name, member, e.QuotaApplied, quotas=member.quotas)
    cluster.settle()
    return name


def ask(cluster: Cluster, job: str, phase: str, *, ranks: tuple[int, ...] = (0,)) -> list[e.AnyEvent]:
    """Members ask for a phase."""
    for rank in ranks:
        cluster.node_fact(job, cluster.members(job)[rank], e.PhaseRequested, phase=phase, _node=False)
    return cluster.settle()


def enter(cluster: Cluster, job: str, *, rank: int = 0) -> list[e.AnyEvent]:
    """The member enters the phase that it was granted."""
    member = cluster.members(job)[rank]
    assert member.granted, f"{job} was granted nothing"
    cluster.node_fact(job, member, e.QuotaApplied, quotas=member.quotas)
    cluster.node_fact(job, member, e.PhaseChanged, phase=member.granted, _node=False)
    return cluster.settle()


def applied(cluster: Cluster, job: str, *, rank: int = 0) -> list[e.AnyEvent]:
    """The kernel holds what was decided."""
    member = cluster.members(job)[rank]
    cluster.node_fact(job, member, e.QuotaApplied, quotas=member.quotas)
    return cluster.settle()


def refused(cluster: Cluster, job: str, memory_mib: int, *, rank: int = 0) -> list[e.AnyEvent]:
    """The kernel could not take the limit below this."""
    quota = e.Quota(component="main", cpu_millis=1, memory_mib=memory_mib)
    cluster.node_fact(job, cluster.members(job)[rank], e.ShrinkRefused, quotas=(quota,))
    return cluster.settle()


def go(cluster: Cluster, job: str, phase: str) -> list[e.AnyEvent]:
    """The member asks, is granted the phase at once, enters it, and the kernel follows."""
    asked = ask(cluster, job, phase)
    entered = enter(cluster, job)
    return asked + entered + applied(cluster, job)


def granted(events: list[e.AnyEvent]) -> dict[str, str]:
    """Return who was granted which phase."""
    return {event.job: event.phase for event in of(events, e.QuotaChanged) if event.phase}


def recalled(events: list[e.AnyEvent]) -> dict[str, str]:
    """Return who was told to hand back what is leased, and for whom."""
    return {event.job: event.for_job for event in of(events, e.HandBackRequested)}


def mib(cluster: Cluster, job: str) -> int:
    return sum(quota.memory_mib for quota in cluster.members(job)[0].quotas)


def at(cluster: Cluster, seconds: int) -> int:
    return cluster.now + seconds * SECOND


def lent_out(**capacity: int) -> Cluster:
    """A node on which the owner samples, and the borrower learns with what is the owner's."""
    cluster = lending(**capacity)
    run(cluster, "owner", owner())
    run(cluster, "borrower", borrower())
    go(cluster, "borrower", "learning")
    return cluster


def hand_back(cluster: Cluster, job: str = "borrower") -> list[e.AnyEvent]:
    return go(cluster, job, "sampling")
