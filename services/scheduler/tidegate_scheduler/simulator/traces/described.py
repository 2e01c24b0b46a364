"""Jobs described in JSON, as a workload: specifications as they are submitted, and what each job really does.

`{"jobs": [{"at_seconds": 0, "spec": {...}, "spans": [{"phase": "sampling", "seconds": 60}]}]}`
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from tidegate_events.events import NodeJoined
from tidegate_events.spec import DEFAULT_PHASE, JobSpec

from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.choice import read_json
from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.traces import table
from tidegate_scheduler.simulator.workload import Arrival, Span, Truth, Workload

GANG_MAX = 100_000
SPANS_MAX = 100_000
Time = Annotated[int, msgspec.Meta(ge=0, le=table.YEARS_10_SECONDS)]


class SpanDescribed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A phase that a job goes through, for so long when it has what it needs."""

    seconds: Time
    phase: str = DEFAULT_PHASE
    cpu_bound: bool = False


class JobDescribed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job: when it comes, what it is submitted with, and what it does, of which no policy knows."""

    spec: JobSpec
    spans: Annotated[tuple[SpanDescribed, ...], msgspec.Meta(min_length=1, max_length=SPANS_MAX)]
    at_seconds: Time = 0
    saves_every_seconds: Time = 0
    fails_after_seconds: Time | None = None


class Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    jobs: Annotated[tuple[JobDescribed, ...], msgspec.Meta(min_length=1, max_length=table.ROWS_MAX)]


def read(path: Path, nodes: tuple[NodeJoined, ...]) -> Workload:
    """Return the jobs as a workload for these nodes, which fetch the images that jobs want. Raises InputError."""
    found = read_json(path, Described)
    for number, job in enumerate(found.jobs):
        if why := _unusable(job):
            raise InputError(f"{path}, job {number} ({job.spec.name}): {why}")
    fetching = tuple(msgspec.structs.replace(node, fetches_images=True) for node in nodes)
    arrivals = [_arrival(job) for job in found.jobs]
    return Workload(path.stem, fetching, tuple(sorted(arrivals, key=lambda each: (each.at_ns, each.job))))


def _unusable(job: JobDescribed) -> str:
    """Return why the job cannot be simulated, in words; empty where it can."""
    spec = job.spec
    if not spec.components or any(component.replicas < 1 for component in spec.components):
        return "it has no component, or one with no replica; accepted is at least one of each"
    if not 1 <= spec.gang_size <= GANG_MAX:
        return f"gang_size is {spec.gang_size}; accepted is 1 to {GANG_MAX}"
    if any(DEFAULT_PHASE not in component.resources for component in spec.components):
        return f"a component says nothing of the phase {DEFAULT_PHASE!r}; accepted is what it needs in it"
    needs = [need for component in spec.components for found in component.resources.values()
             for need in (found.minimum, found.ceiling)]  # fmt: skip
    if any(amount < 0 for need in needs for amount in msgspec.structs.astuple(need)):
        return "a component needs less than nothing; 0 is the least"
    unknown = sorted({span.phase for span in job.spans} - set(spec.phases))
    if unknown:
        return (
            f"it goes through {', '.join(unknown)}, which no component declares; declared are {', '.join(spec.phases)}"
        )
    return ""


def _arrival(job: JobDescribed) -> Arrival:
    spans = tuple(Span(span.phase, span.seconds, span.cpu_bound) for span in job.spans)
    truth = Truth(spans, job.saves_every_seconds, fails_after_seconds=job.fails_after_seconds)
    return Arrival(job.at_seconds * SECOND_NS, job.spec.name, job.spec, truth)
