"""What no node of the cluster has that a job asks for, were they all empty."""

from __future__ import annotations

import numpy as np
from tidegate_events.events import Reason
from tidegate_events.resources import GpuDevice, Resources

from tidegate_scheduler.isolation import isolates
from tidegate_scheduler.policy.elastic.devices import accepts
from tidegate_scheduler.policy.elastic.domains import domains_of
from tidegate_scheduler.policy.elastic.fit import could_hold_by
from tidegate_scheduler.policy.elastic.offered import by_size, may_come
from tidegate_scheduler.policy.elastic.shapes import Fit, Shape, has_image, holds_need
from tidegate_scheduler.policy.elastic.table import NO_KIND, Ints, Kind


def missing(fit: Fit) -> Reason:
    """Say what no node has that the job asks for; size first, as nothing that may come helps there."""
    table = fit.table
    kinds = [table.kinds[int(row)] for row in np.unique(table.kind[: len(table)], return_index=True)[1]]
    kinds = [kind for kind in kinds if kind != NO_KIND]
    if not kinds:
        return Reason(code="NoNode", detail="no node has joined")
    sizes = by_size(fit)
    if not could_hold_by(fit, sizes):
        return _too_small(fit, kinds, sizes, "all nodes")
    return _not_offered(fit, kinds)


def _not_offered(fit: Fit, kinds: list[Kind]) -> Reason:
    """Say what nodes that are large enough do not offer."""
    shape = fit.shape
    if not (kinds := [kind for kind in kinds if shape.isolation in kind.levels]):
        return Reason(code="NoNode", detail=f"no node offers isolation {shape.isolation}")
    if not (kinds := [kind for kind in kinds if isolates(kind, shape.isolation, shape.needs)]):
        return Reason(code="NoNode", detail=f"no node passes GPUs to a job at isolation {shape.isolation}")
    if may_come(fit):
        return _yet(fit)
    if not (kinds := [kind for kind in kinds if has_image(kind, shape.image)]):
        return Reason(code="NoNode", detail=f"no node of its isolation level has the image {shape.image}")
    if shape.cpu_model and not (kinds := [kind for kind in kinds if kind.cpu_model == shape.cpu_model]):
        detail = f"no such node has the CPU model {shape.cpu_model} that a strict job began on"
        return Reason(code="NoNode", detail=detail)
    return _too_small(fit, kinds, fit.holds_empty(), "the nodes of its isolation level that have its image")


def _yet(fit: Fit) -> Reason:
    """Say that nodes that could hold the job are told to get its image, and which part of it has a node that has it."""
    shape, members = fit.shape, int(fit.holds_empty().sum())
    which = "too few nodes that could hold it have" if members else "no node that could hold it has"
    detail = f"{which} the image {shape.image} yet: others are told to get it"
    return Reason(code="NoNode", detail=detail, numbers={"members_needed": shape.gang_size, "members_most": members})


def _too_small(fit: Fit, kinds: list[Kind], holds: Ints, which: str) -> Reason:
    """Say what even the nodes of those kinds, which hold so many members, have too little of."""
    shape = fit.shape
    members = int(holds.sum())
    if members:
        numbers = {"members_needed": shape.gang_size, "members_most": members}
        if members >= shape.gang_size:
            return _too_narrow(fit, holds, numbers)
        return Reason(code="NoNode", detail=f"{which} together are too small for the gang", numbers=numbers)
    for need in shape.needs:
        if not any(holds_need(shape, kind, need) for kind in kinds):
            return _short_of(shape, need, kinds)
    return Reason(code="NoNode", detail="no node is large enough for a member in each of its phases")


def _short_of(shape: Shape, need: Resources, kinds: list[Kind]) -> Reason:
    """Say what of a member's need, in one of its phases, no node has."""
    devices = need.gpus or (1 if need.gpu_millis else 0)
    able = [kind for kind in kinds if _devices(kind, shape, need) >= devices]
    if not able:
        most = max(_devices(kind, shape, need) for kind in kinds)
        models = f" of {', '.join(shape.gpu_models)}" if shape.gpu_models else ""
        numbers = {"gpus_needed": devices, "gpus_most": most, "gpu_memory_mib": need.gpu_memory_mib}
        return Reason(code="NoNode", detail=f"no node has the GPUs{models} that a member needs", numbers=numbers)
    cpu_most, memory_most = max(kind.cpu_millis for kind in able), max(kind.memory_mib for kind in able)
    detail = "no node is large enough for a member"
    if need.cpu_millis <= cpu_most and need.memory_mib <= memory_most:
        detail = "no node has all at once that a member needs"
    numbers = {
        "cpu_millis_needed": need.cpu_millis,
        "cpu_millis_most": cpu_most,
        "memory_mib_needed": need.memory_mib,
        "memory_mib_most": memory_most,
    }
    return Reason(code="NoNode", detail=detail, numbers=numbers)


def _too_narrow(fit: Fit, holds: Ints, numbers: dict[str, int]) -> Reason:
    """Say that the members would fit on all nodes together, but not on those that may hold one gang."""
    shape = fit.shape
    most = int(domains_of(shape, fit.table, np.arange(len(holds))).sums(holds).max(initial=0))
    near = "rack" if shape.rack_wide else "switch"
    within = [what for what, bounds in ((near, shape.intensive), ("CPU model", shape.alike)) if bounds]
    detail = f"no {' and '.join(within)} has nodes for all members"
    return Reason(code="GangTopology", detail=detail, numbers=numbers | {"members_most_together": most})


def _devices(kind: Kind, shape: Shape, need: Resources) -> int:
    """Return how many of the kind's devices a member with that need may have, if it needs any."""
    return sum(accepts(GpuDevice(0, "", model, mib), need, shape.gpu_models) for model, mib in kind.devices)
