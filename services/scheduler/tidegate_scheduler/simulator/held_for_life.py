"""Jobs as rules see them that grant no phases: each holds the most that any of its phases needs, from placement to end.

Under such rules a job that asks for a phase would wait for an answer that never comes.
"""

from __future__ import annotations

import msgspec
from tidegate_events.spec import JobSpec

from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import State


def told(spec: JobSpec) -> JobSpec:
    """Return a job that asks for nothing: it tells its phases, and is guaranteed the most that any of them needs."""
    if spec.phase_entry == "told" and not spec.borrows:
        return spec
    return msgspec.structs.replace(spec, phase_entry="told", borrows=False)


def arriving(workload: Workload) -> Workload:
    """Return a workload whose jobs ask for nothing."""
    arrivals = tuple(msgspec.structs.replace(each, spec=told(each.spec)) for each in workload.arrivals)
    return msgspec.structs.replace(workload, arrivals=arrivals)


def present(state: State) -> None:
    """Have the jobs of a state ask for nothing from now on."""
    for job, spec in list(state.specs.items()):
        if (seen := told(spec)) is not spec:
            state.remember_spec(job, seen)
