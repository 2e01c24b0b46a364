"""The openb traces (Alibaba, GPU sharing): pods with CPU, memory, GPUs or a share of one, and models that will do."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tidegate_events.events import NodeJoined
from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE, Component, JobSpec, ResourceRange

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.errors import InputError
from tidegate_scheduler.simulator.traces import table
from tidegate_scheduler.simulator.traces.nodespec import GPUS_MAX
from tidegate_scheduler.simulator.workload import Arrival, Workload, whole

COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
TIMES = ("creation_time", "deletion_time")
TENANT = "openb"


class Pod(msgspec.Struct, frozen=True):
    """One pod: `gpus` whole devices, or else `gpu_millis` of one; `models`: only these will do (none: any)."""

    name: str
    cpu_millis: int
    memory_mib: int
    gpus: int
    gpu_millis: int
    models: tuple[str, ...] = ()


def pods(path: Path) -> tuple[Pod, ...]:
    """Return the pods of a list, in its order. Raises InputError."""
    return tuple(_pod(row) for row in table.rows(path, COLUMNS))


def read(path: Path, nodes: tuple[NodeJoined, ...]) -> Workload:
    """Return a list of pods that has times as a workload: each works from its creation for as long as it was there.

    Raises InputError.
    """
    if missing := [name for name in TIMES if name not in table.columns(path)]:
        raise InputError(f"{path} has no column {', '.join(missing)}: without times there is nothing to simulate")
    arrivals = []
    for row in table.rows(path, (*COLUMNS, *TIMES)):
        pod, created = _pod(row), row.whole("creation_time")
        seconds = row.whole("deletion_time", least=created, most=created + table.YEARS_10_SECONDS) - created
        arrivals.append(Arrival(created * SECOND_NS, pod.name, spec_of(pod, max(1, seconds)), whole(max(1, seconds))))
    first_ns = min(arrival.at_ns for arrival in arrivals)
    arrivals = [msgspec.structs.replace(arrival, at_ns=arrival.at_ns - first_ns) for arrival in arrivals]
    return Workload(path.stem, nodes, tuple(sorted(arrivals, key=lambda each: (each.at_ns, each.job))))


def spec_of(pod: Pod, expected_seconds: int | None = None) -> JobSpec:
    """Return the pod as a job of one member."""
    need = Resources(pod.cpu_millis, pod.memory_mib, pod.gpus, gpu_millis=pod.gpu_millis)
    component = Component(name="main", command=("pod",), resources={DEFAULT_PHASE: ResourceRange(minimum=need)})
    return JobSpec(
        name=pod.name,
        tenant=TENANT,
        submitter=TENANT,
        components=(component,),
        gpu_models=pod.models,
        expected_seconds=expected_seconds,
    )


def _pod(row: table.Row) -> Pod:
    gpus, millis = row.whole("num_gpu"), row.whole("gpu_milli")
    if gpus > GPUS_MAX:
        raise row.refused("num_gpu", f"at most {GPUS_MAX}")
    if gpus == 0 and millis:
        raise row.refused("gpu_milli", "0 where num_gpu is 0: a share is one of 1 GPU")
    if gpus == 1 and millis > WHOLE_MILLIS:
        raise row.refused("gpu_milli", f"at most {WHOLE_MILLIS}: the whole of one GPU")
    if gpus > 1 and millis not in (0, WHOLE_MILLIS):
        raise row.refused("gpu_milli", f"{WHOLE_MILLIS} where num_gpu is {gpus}: more than one GPU are given whole")
    shared = gpus == 1 and 0 < millis < WHOLE_MILLIS
    models = row.text("gpu_spec") if "gpu_spec" in row.values else ""
    return Pod(
        name=row.text("name"),
        cpu_millis=row.whole("cpu_milli"),
        memory_mib=row.whole("memory_mib"),
        gpus=0 if shared else gpus,
        gpu_millis=millis if shared else 0,
        models=tuple(sorted(filter(None, models.split("|")))),
    )
