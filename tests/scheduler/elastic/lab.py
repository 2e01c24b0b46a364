"""What scenarios of policy 2 share: short words for what users, nodes and operators do, and for what was decided."""

from __future__ import annotations

import cProfile
import pstats
from typing import TypeVar

from tidegate_events import events as e
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange
from tidegate_scheduler.decide import decide
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.pipeline import index_of
from tidegate_scheduler.policy.parameters import Parameters

from tests.support.cluster import SECOND, Cluster

HOUR = 3600
_Kind = TypeVar("_Kind", bound=e.Event)


def elastic(parameters: Parameters | None = None) -> Cluster:
    """Return a cluster that policy 2 schedules."""
    return Cluster(parameters, policy=2)


def kinds(events: list[e.AnyEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def of(events: list[e.AnyEvent], kind: type[_Kind]) -> list[_Kind]:
    return [event for event in events if isinstance(event, kind)]


def asked_to_leave(events: list[e.AnyEvent]) -> dict[str, str]:
    """Return who was asked to leave, and for whom."""
    return {event.job: event.for_job for event in of(events, e.PreemptRequested)}


def run(cluster: Cluster, name: str, job: JobSpec) -> str:
    """Submit a job that must be placed at once, and let it start."""
    cluster.submit(job, name)
    cluster.settle()
    cluster.start(name)
    assert cluster.stage(name) == "running", cluster.waiting.get(name)
    return name


def nodes_of(cluster: Cluster, job: str) -> list[str]:
    return [member.node for member in cluster.members(job)]


def leave(cluster: Cluster, job: str) -> list[e.AnyEvent]:
    """The job saves and leaves, as it was asked to."""
    assert cluster.stage(job) == "preempting"
    return cluster.exit(job, "suspended", acknowledged=True)


def complete(cluster: Cluster, job: str) -> list[e.AnyEvent]:
    cluster.start(job)
    return cluster.exit(job, "completed")


def all_events(cluster: Cluster) -> list[e.AnyEvent]:
    return [event for recorded in cluster.frames for event in recorded.frame.events]


def phased(job: JobSpec, **ranges: tuple[int, int]) -> JobSpec:
    """Return the job with other needs: CPU from and to, by phase."""
    resources = {
        phase: ResourceRange(minimum=Resources(least, 64), maximum=Resources(most, 64))
        for phase, (least, most) in ranges.items()
    }
    component = Component(name="main", command=("true",), resources=resources)
    fields = {name: getattr(job, name) for name in job.__struct_fields__}
    return JobSpec(**(fields | {"components": (component,)}))


def millis(cluster: Cluster, job: str) -> int:
    """Return the CPU that the job's first member has."""
    return sum(quota.cpu_millis for quota in cluster.members(job)[0].quotas)


def looked_up(cluster: Cluster) -> Index:
    """Return the index of the cluster's state, brought up to date."""
    index = index_of(cluster.state)
    index.refresh(cluster.state.header.now_ns)
    return index


def calls(cluster: Cluster, passes: int) -> int:
    """Return the calls of Python that so many passes make, a second apart: no neighbour disturbs their number."""
    profile = cProfile.Profile()
    for _ in range(passes):
        cluster.now += SECOND
        profile.enable()
        result = decide(cluster.state, cluster.now)
        profile.disable()
        if result.events:
            cluster.append("scheduler", cluster.leader, *result.events)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
