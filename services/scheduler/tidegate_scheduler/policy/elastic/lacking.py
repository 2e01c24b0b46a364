"""What no node of the cluster has that a job asks for, were they all empty."""

from __future__ import annotations

import numpy as np
from tidegate_events.events import Reason
from tidegate_events.resources import GpuDevice

from tidegate_scheduler.policy.elastic.devices import accepts
from tidegate_scheduler.policy.elastic.domains import domains_of
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape
from tidegate_scheduler.policy.elastic.table import NO_KIND, Kind


def missing(fit: Fit) -> Reason:
    """Say what no node has that the job asks for."""
    shape, table = fit.shape, fit.table
    kinds = [table.kinds[int(row)] for row in np.unique(table.kind[: len(table)], return_index=True)[1]]
    kinds = [kind for kind in kinds if kind != NO_KIND]
    if not kinds:
        return Reason(code="NoNode", detail="no node has joined")
    if not (kinds := [kind for kind in kinds if shape.isolation in kind.levels]):
        return Reason(code="NoNode", detail=f"no node offers isolation {shape.isolation}")
    if not (kinds := [kind for kind in kinds if shape.image in {each for pair in kind.images for each in pair}]):
        return Reason(code="NoNode", detail=f"no node of its isolation level has the image {shape.image}")
    if shape.cpu_model and not (kinds := [kind for kind in kinds if kind.cpu_model == shape.cpu_model]):
        detail = f"no such node has the CPU model {shape.cpu_model} that a strict job began on"
        return Reason(code="NoNode", detail=detail)
    return _too_small(fit, kinds)


def _too_small(fit: Fit, kinds: list[Kind]) -> Reason:
    """Say what even the nodes that offer what the job asks for have too little of."""
    shape, need = fit.shape, fit.shape.need
    members = int(fit.holds_empty().sum())
    if members:
        numbers = {"members_needed": shape.gang_size, "members_most": members}
        if members >= shape.gang_size:
            return _too_narrow(fit, numbers)
        return Reason(code="NoNode", detail="all nodes together are too small for the gang", numbers=numbers)
    able = [kind for kind in kinds if _devices(kind, shape) >= (need.gpus or 1)]
    if (need.gpus or need.gpu_millis) and not able:
        most = max(_devices(kind, shape) for kind in kinds)
        models = f" of {', '.join(shape.gpu_models)}" if shape.gpu_models else ""
        numbers = {"gpus_needed": need.gpus or 1, "gpus_most": most, "gpu_memory_mib": need.gpu_memory_mib}
        return Reason(code="NoNode", detail=f"no node has the GPUs{models} that a member needs", numbers=numbers)
    numbers = {
        "cpu_millis_needed": need.cpu_millis,
        "cpu_millis_most": max(kind.cpu_millis for kind in able or kinds),
        "memory_mib_needed": need.memory_mib,
        "memory_mib_most": max(kind.memory_mib for kind in able or kinds),
    }
    return Reason(code="NoNode", detail="no node is large enough for a member", numbers=numbers)


def _too_narrow(fit: Fit, numbers: dict[str, int]) -> Reason:
    """Say that the members would fit on all nodes together, but not on those that may hold one gang."""
    shape, holds = fit.shape, fit.holds_empty()
    most = int(domains_of(shape, fit.table, np.arange(len(holds))).sums(holds).max(initial=0))
    near = "rack" if shape.rack_wide else "switch"
    within = [what for what, bounds in ((near, shape.intensive), ("CPU model", shape.alike)) if bounds]
    detail = f"no {' and '.join(within)} has nodes for all members"
    return Reason(code="GangTopology", detail=detail, numbers=numbers | {"members_most_together": most})


def _devices(kind: Kind, shape: Shape) -> int:
    return sum(accepts(GpuDevice(0, "", model, mib), shape.need, shape.gpu_models) for model, mib in kind.devices)
