"""Reads what a component needs: amounts, their range, and the range of each phase."""

from __future__ import annotations

from typing import Any

from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE, ResourceRange

from tidegate_gateway.submission import bounds
from tidegate_gateway.submission.problems import Problems, child
from tidegate_gateway.submission.shape import MISSING, Field, integer, kind_of, record

AMOUNT_HINTS = {
    "memory": "memory_mib, a whole number of MiB (2 GiB is 2048)",
    "memory_gb": "memory_mib, a whole number of MiB (2 GiB is 2048)",
    "memory_gib": "memory_mib, a whole number of MiB (2 GiB is 2048)",
    "memory_mb": "memory_mib, a whole number of MiB",
    "mem": "memory_mib, a whole number of MiB",
    "ram": "memory_mib, a whole number of MiB",
    "cpu": "cpu_millis, thousandths of a CPU (2 CPUs are 2000)",
    "cpus": "cpu_millis, thousandths of a CPU (2 CPUs are 2000)",
    "cores": "cpu_millis, thousandths of a CPU (2 CPUs are 2000)",
    "millicpu": "cpu_millis, thousandths of a CPU",
    "gpu": "gpus, whole devices",
    "gpu_share": "gpu_millis, thousandths of one device (half of one is 500)",
    "gpu_fraction": "gpu_millis, thousandths of one device (half of one is 500)",
    "gpu_memory": "gpu_memory_mib, MiB that each device must have",
    "gpu_memory_gb": "gpu_memory_mib, MiB that each device must have",
    "vram": "gpu_memory_mib, MiB that each device must have",
    "min": "minimum",
    "max": "maximum",
    "requests": "minimum",
    "limits": "maximum",
}

_AMOUNTS = {
    "cpu_millis": Field(
        integer(bounds.CPU_MILLIS_MIN, bounds.CPU_MILLIS_MAX, "thousandths of a CPU", example="2000 for 2 CPUs")
    ),
    "memory_mib": Field(integer(bounds.MEMORY_MIB_MIN, bounds.MEMORY_MIB_MAX, "MiB", example="2048 for 2 GiB")),
    "gpus": Field(integer(0, bounds.GPUS_MAX, "GPUs")),
    "gpu_memory_mib": Field(integer(0, bounds.GPU_MEMORY_MIB_MAX, "MiB per GPU", example="24576 for 24 GiB")),
    "gpu_millis": Field(
        integer(bounds.GPU_MILLIS_MIN, bounds.GPU_MILLIS_MAX, "thousandths of one GPU", example="500 for half of it")
    ),
}
_RANGE_KEYS = ("minimum", "maximum")


def read_phases(value: Any, path: str, problems: Problems) -> Any:
    """Read `resources`: an object of phases, or one range (or plain amounts), which then is the default phase's."""
    if not isinstance(value, dict):
        problems.add(path, f"must be an object, not {kind_of(value)}", _accepted_phases())
        return MISSING
    if any(key in _RANGE_KEYS for key in value) or any(not isinstance(element, dict) for element in value.values()):
        read = _range(value, path, problems, needs_memory=True)
        return MISSING if read is None else {DEFAULT_PHASE: read}
    return _phases(value, path, problems)


def _phases(value: dict[str, Any], path: str, problems: Problems) -> Any:
    if len(value) > bounds.PHASES_MAX:
        problems.add(path, f"has {len(value)} phases", f"at most {bounds.PHASES_MAX}")
        return MISSING
    if DEFAULT_PHASE not in value:
        problems.add(child(path, DEFAULT_PHASE), "is missing", "what holds in phases that are not declared")
    result: dict[str, ResourceRange] = {}
    for phase, element in value.items():
        if not bounds.PHASE.fullmatch(phase):
            problems.add(child(path, phase), "cannot name a phase", bounds.COMPONENT_FORM)
            continue
        read = _range(element, child(path, phase), problems, needs_memory=phase == DEFAULT_PHASE)
        if read is not None:
            result[phase] = read
    # A partial answer would later be judged as if it were whole.
    return result if len(result) == len(value) and DEFAULT_PHASE in result else MISSING


def _range(value: Any, path: str, problems: Problems, *, needs_memory: bool) -> ResourceRange | None:
    needed = ("cpu_millis", "memory_mib") if needs_memory else ("cpu_millis",)
    if not isinstance(value, dict) or not any(key in value for key in _RANGE_KEYS):
        plain = _amounts(value, path, problems, needed)
        return None if plain is None else ResourceRange(minimum=Resources(**plain))
    # Amounts are read here, not by `record`, so that the maximum can be told from the minimum it belongs to.
    given = record(value, path, problems, {key: Field(lambda v, p, q: v) for key in _RANGE_KEYS}, AMOUNT_HINTS) or {}
    minimum = _amounts(given.get("minimum", {}), child(path, "minimum"), problems, needed)
    maximum = {} if given.get("maximum") is None else _amounts(given["maximum"], child(path, "maximum"), problems, ())
    if minimum is None or maximum is None or not _is_ordered(minimum, maximum, child(path, "maximum"), problems):
        return None
    # What the maximum leaves out stays at the minimum.
    most = {**minimum, **maximum}
    if _is_both(most, child(path, "maximum"), problems):
        return None
    return ResourceRange(minimum=Resources(**minimum), maximum=Resources(**most) if maximum else None)


def _is_ordered(minimum: dict[str, int], maximum: dict[str, int], path: str, problems: Problems) -> bool:
    below = [name for name, low in minimum.items() if maximum.get(name, low) < low]
    for name in below:
        problems.add(
            child(path, name),
            f"{maximum[name]} is less than the minimum, {minimum[name]}",
            f"{minimum[name]} or more",
        )
    return not below


def _amounts(value: Any, path: str, problems: Problems, needed: tuple[str, ...]) -> dict[str, int] | None:
    read = record(value, path, problems, _AMOUNTS, AMOUNT_HINTS)
    if read is None:
        return None
    for name in needed:
        if name not in value:
            problems.add(child(path, name), "is missing", "the amount that each replica never gets less than")
    if set(read) != set(value) or any(name not in read for name in needed):
        return None
    if read.get("gpu_memory_mib") and not read.get("gpus") and "gpu_millis" not in read:
        accepted = "gpus of 1 or more, or gpu_millis, beside it"
        problems.add(child(path, "gpu_memory_mib"), "is given without GPUs", accepted)
        return None
    return None if _is_both(read, path, problems) else read


def _is_both(amounts: dict[str, int], path: str, problems: Problems) -> bool:
    """Say whether whole GPUs and a share of one are asked for together, and note it."""
    both = bool(amounts.get("gpus")) and "gpu_millis" in amounts
    if both:
        accepted = "either gpus, whole devices, or gpu_millis, a share of one"
        problems.add(child(path, "gpu_millis"), "is given beside whole GPUs", accepted)
    return both


def _accepted_phases() -> str:
    return 'an object of phases, as in {"default": {"minimum": {"cpu_millis": 500, "memory_mib": 512}}}'
