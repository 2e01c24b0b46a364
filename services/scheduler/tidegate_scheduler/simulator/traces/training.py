"""What traces of training jobs have in common: jobs that want so many GPUs for so long, and nothing else that is known.

Their CPU and memory are not recorded: each GPU comes with one CPU and one GiB, so that only GPUs are scarce.
"""

from __future__ import annotations

import msgspec
from tidegate_events.events import NodeJoined
from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE, Component, JobSpec, ResourceRange

from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.work import MILLI_NS
from tidegate_scheduler.simulator.workload import Arrival, Span, Truth, Workload

CPU_MILLIS = 1000
MEMORY_MIB = 1024


class TrainingJob(msgspec.Struct, frozen=True):
    """One job of a trace. A job without GPUs takes a CPU."""

    name: str
    tenant: str
    gpus: int
    submitted_ms: int
    work_ms: int


def workload(name: str, nodes: tuple[NodeJoined, ...], jobs: list[TrainingJob]) -> Workload:
    """Return the jobs as they arrive; times count from the first of them. Raises InputError for nodes without GPUs."""
    per_node = max((len(node.gpus) for node in nodes), default=0)
    if not per_node and any(job.gpus for job in jobs):
        raise InputError(f"the jobs of {name} want GPUs, and no node has any: give nodes as in 8x8")
    first_ms = min((job.submitted_ms for job in jobs), default=0)
    arrivals = [_arrival(job, first_ms, per_node) for job in jobs]
    return Workload(name, nodes, tuple(sorted(arrivals, key=lambda each: (each.at_ns, each.job))))


def members_of(gpus: int, per_node: int) -> tuple[int, int]:
    """Return how many members a job has, and the GPUs of each: one if a node can hold it, else as few as are equal."""
    if gpus <= per_node:
        return 1, gpus
    each = max(size for size in range(1, per_node + 1) if gpus % size == 0)
    return gpus // each, each


def _arrival(job: TrainingJob, first_ms: int, per_node: int) -> Arrival:
    gang_size, gpus = members_of(job.gpus, per_node)
    share = max(1, gpus)
    need = Resources(CPU_MILLIS * share, MEMORY_MIB * share, gpus)
    component = Component(name="main", command=("train",), resources={DEFAULT_PHASE: ResourceRange(minimum=need)})
    spec = JobSpec(
        name=job.name,
        tenant=job.tenant,
        submitter=job.tenant,
        components=(component,),
        gang_size=gang_size,
        expected_seconds=max(1, -(-job.work_ms // 1000)),
    )
    truth = Truth((Span(DEFAULT_PHASE, job.work_ms // 1000, more_ms=job.work_ms % 1000),))
    return Arrival((job.submitted_ms - first_ms) * MILLI_NS, job.name, spec, truth)
