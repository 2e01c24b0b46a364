"""Whether this node takes a member: the agent's own accounting, and the last word on admission. Pure.

A member claims its floor (what it is guaranteed in every phase), not its present quotas: what is lent above floors is
taken back by the kernel's limits, not by refusing to start. Of one that asks for its phases, the share of a device is
what its phase needs: the rest is somebody else's, whose share is claimed too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set

import msgspec
from tidegate_events.events import Reason
from tidegate_events.orders import SandboxOrder
from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE, JobSpec, member_floor, phase_need

from tidegate_executor.capacity import NodeCapacity
from tidegate_executor.images import Image, find

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}\Z")
_SUBJECT_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
GPU_MILLIS = 1000  # one whole device
# At these every process sees every device; at others a GPU is there where the node's CDI files know it (`devices.py`).
LEVELS_WITH_GPUS = frozenset({"unisolated"})
WITHOUT_GPUS = dict.fromkeys(("guarded", "vm"), "a guest's kernel opens no device of the host")
NO_CDI = "no CDI file names all of its GPUs"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What one sandbox that is not over yet holds of the node."""

    job: str
    floor: Resources
    gpu_indices: tuple[int, ...] = ()
    uid_slot: int = 0
    share_millis: int | None = None
    """What it has of its one device, where that follows its phases; None: as its floor says."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What the node has for members."""

    capacity: NodeCapacity
    levels: Set[str]
    images: Mapping[str, Image]
    gpu_levels: Set[str] = LEVELS_WITH_GPUS
    fetches_images: bool = False
    """Others may be had from a store: whether they can is seen when a member is made ready."""


def offerable(capacity: NodeCapacity, levels: Set[str], gpu_levels: Set[str] = LEVELS_WITH_GPUS) -> NodeCapacity:
    """Return the capacity without GPUs where no offered level could pass one to a job."""
    if gpu_levels & levels:
        return capacity
    resources = msgspec.structs.replace(capacity.resources, gpus=0, gpu_memory_mib=0)
    return msgspec.structs.replace(capacity, resources=resources, gpus=())


def gpu_levels(offer: Offer) -> tuple[str, ...] | None:
    """Return at which of its levels the node passes GPUs; None where it has none to pass, or passes them at all."""
    if not offer.capacity.gpus or offer.levels <= offer.gpu_levels:
        return None
    return tuple(sorted(offer.levels & offer.gpu_levels))


def claim_of(
    order: SandboxOrder, uid_slot: int = 0, gpu_indices: tuple[int, ...] | None = None, phases: tuple[str, ...] = ()
) -> Claim:
    """Return what the member of this order holds: the devices it was placed with, and those it has in its phase.

    `phases` is the one that it is in, and the one that it may enter.
    """
    floor = member_floor(order.spec)
    if (share_millis := _share_in(order.spec, phases or (DEFAULT_PHASE,))) is not None:
        indices = (order.gpu_indices if gpu_indices is None else gpu_indices) if share_millis else ()
        return Claim(job=order.job, floor=floor, gpu_indices=indices, uid_slot=uid_slot, share_millis=share_millis)
    devices = tuple(sorted({*order.gpu_indices, *(gpu_indices or ())}))
    return Claim(job=order.job, floor=floor, gpu_indices=devices, uid_slot=uid_slot)


def refusal(order: SandboxOrder, offer: Offer, claims: Iterable[Claim]) -> Reason | None:
    """Return why the member is refused, None where it is taken."""
    held = list(claims)
    return (
        _name_refusal(order)
        or _level_refusal(order, offer)
        or _image_refusal(order, offer)
        or _quota_refusal(order)
        or _room_refusal(order, offer, held)
        or _gpu_refusal(order, offer, held)
    )


def _name_refusal(order: SandboxOrder) -> Reason | None:
    """Names become files and subjects here."""
    for what, name, form in (("job", order.job, _FILE_NAME), ("tenant", order.tenant, _SUBJECT_TOKEN)):
        if not form.match(name):
            return Reason(code="NameRefused", detail=f"{what} {name!r}: {form.pattern} is accepted")
    return None


def _level_refusal(order: SandboxOrder, offer: Offer) -> Reason | None:
    level = order.spec.isolation
    if level in offer.levels:
        return None
    return Reason(
        code="LevelNotOffered",
        detail=f"isolation level {level} is not offered here; offered: {', '.join(sorted(offer.levels))}",
    )


def _image_refusal(order: SandboxOrder, offer: Offer) -> Reason | None:
    if offer.fetches_images or find(offer.images, order.spec.image) is not None:
        return None
    known = ", ".join(sorted(offer.images)) or "none"
    return Reason(code="ImageMissing", detail=f"image {order.spec.image} is not here; there are: {known}")


def _quota_refusal(order: SandboxOrder) -> Reason | None:
    given = {quota.component for quota in order.quotas}
    missing = sorted({component.name for component in order.spec.components} - given)
    if not missing:
        return None
    return Reason(code="QuotaMissing", detail=f"the order has no quota for component {', '.join(missing)}")


def _room_refusal(order: SandboxOrder, offer: Offer, claims: list[Claim]) -> Reason | None:
    capacity = offer.capacity.resources
    used = Resources()
    for claim in claims:
        used = used.plus(claim.floor)
    need = member_floor(order.spec)
    for name in ("cpu_millis", "memory_mib"):
        free = getattr(capacity, name) - getattr(used, name)
        if getattr(need, name) > free:
            return Reason(
                code="CapacityExceeded",
                detail=f"{name}: {getattr(need, name)} needed, {free} of {getattr(capacity, name)} free",
                numbers={"needed": getattr(need, name), "free": free},
            )
    return None


def _gpu_refusal(order: SandboxOrder, offer: Offer, claims: list[Claim]) -> Reason | None:
    if not order.gpu_indices:
        return None
    if (refused := _gpu_level_refusal(order, offer)) is not None:
        return refused
    known = {gpu.index: gpu for gpu in offer.capacity.gpus}
    taken: dict[int, int] = {}
    for claim in claims:
        for index in claim.gpu_indices:
            taken[index] = taken.get(index, 0) + _share(claim.floor, claim.share_millis)
    floor = member_floor(order.spec)
    need_mib, need_millis = floor.gpu_memory_mib, _share(floor, _share_in(order.spec, (DEFAULT_PHASE,)))
    for index in order.gpu_indices:
        if index not in known:
            return Reason(code="GpuMissing", detail=f"there is no GPU {index}; there are {sorted(known)}")
        free = GPU_MILLIS - taken.get(index, 0)
        if need_millis > free:
            return Reason(
                code="GpuTaken",
                detail=f"GPU {index} is held by other sandboxes: {need_millis} thousandths needed, {free} free",
                numbers={"needed": need_millis, "free": free},
            )
        if known[index].memory_mib < need_mib:
            return Reason(code="GpuTooSmall", detail=f"GPU {index} has {known[index].memory_mib} MiB of {need_mib}")
    return None


def _gpu_level_refusal(order: SandboxOrder, offer: Offer) -> Reason | None:
    level = order.spec.isolation
    if level not in offer.gpu_levels:
        offered = ", ".join(sorted(offer.gpu_levels & offer.levels)) or "no level"
        detail = f"this node passes GPUs at {offered}, and not at {level}"
        return Reason(code="GpuNotPassed", detail=f"{detail}: {WITHOUT_GPUS.get(level, NO_CDI)}")
    if order.spec.phase_entry == "asked" and level not in LEVELS_WITH_GPUS:
        accepted = ", ".join(sorted(LEVELS_WITH_GPUS))
        detail = f"at level {level} no device comes and goes with phases that are asked for; accepted: {accepted}"
        return Reason(code="GpuNotPassed", detail=detail)
    return None


def _share_in(spec: JobSpec, phases: tuple[str, ...]) -> int | None:
    """Return the share of its one device that a member has in these phases, None where that does not follow them."""
    if spec.phase_entry != "asked" or not any(phase_need(spec, each).gpu_millis for each in spec.phases):
        return None
    return max(phase_need(spec, each).gpu_millis for each in phases)


def _share(floor: Resources, share_millis: int | None) -> int:
    """Return how much of each of its devices a member holds, in thousandths."""
    if share_millis is not None:
        return share_millis
    return floor.gpu_millis if floor.gpu_millis and not floor.gpus else GPU_MILLIS


def free_uid_slot(job: str, claims: Iterable[Claim]) -> int:
    """Return a member's uid slot: that of the job's other members here, which share a directory, or a free one."""
    held = list(claims)
    for claim in held:
        if claim.job == job:
            return claim.uid_slot
    taken = {claim.uid_slot for claim in held}
    return next(slot for slot in range(len(taken) + 1) if slot not in taken)
