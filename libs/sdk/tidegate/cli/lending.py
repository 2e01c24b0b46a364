"""Says in words what happens to phases that are asked for, and to what is lent and recalled for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.cli import amounts, text

Entry = dict[str, Any]


def terms(data: dict[str, Any]) -> str:
    """Return what a change of quotas says beside the limits: the phase it opens, the devices, what of it is leased."""
    parts = [f"may enter phase {data['phase']}"] if data.get("phase") else []
    if data.get("gpu_indices"):
        parts.append(f"GPU {', '.join(str(index) for index in data['gpu_indices'])}")
    if data.get("gpu_millis"):
        parts.append(f"{text.cpus(data['gpu_millis'])} of its GPU")
    if data.get("leased"):
        parts.append(f"leased of it {amounts.shown(data['leased'])}")
    return f"; {', '.join(parts)}" if parts else ""


def _requested(entry: Entry, data: dict[str, Any]) -> str:
    at = f" at step {data['step']}" if data.get("step") is not None else ""
    what = f"waits to enter phase {data['phase']}{at}" if data.get("phase") else "waits for no phase any more"
    return what + _rank(entry)


def _hand_back(entry: Entry, data: dict[str, Any]) -> str:
    for_whom = f", for {data['for_job']}" if data.get("for_job") else ""
    if not data.get("deadline_ns"):
        return f"may stay in its leased phase: nobody needs that any more{_rank(entry)}"
    seconds = max(0, data.get("deadline_ns", 0) - entry["at_ns"]) / 1e9
    return f"told to leave its leased phase within {seconds:.0f} s{for_whom}{_rank(entry)}"


def _shrink_refused(entry: Entry, data: dict[str, Any]) -> str:
    kept = ", ".join(f"{one['component']} {text.mib(one['memory_mib'])}" for one in data.get("quotas") or [])
    return f"memory in use is not taken back: the kernel keeps {kept or 'the limits'}{_rank(entry)}"


def _hand_back_failed(entry: Entry, data: dict[str, Any]) -> str:
    why = (data.get("reason") or {}).get("detail", "")
    return f"cannot hand back the devices of phase {data.get('phase')}: {why}{_rank(entry)}"


def _rank(entry: Entry) -> str:
    return f" (rank {entry['rank']})" if entry.get("rank") else ""


WORDS: dict[str, Callable[[Entry, dict[str, Any]], str]] = {
    "PhaseRequested": _requested,
    "HandBackRequested": _hand_back,
    "ShrinkRefused": _shrink_refused,
    "HandBackFailed": _hand_back_failed,
}
