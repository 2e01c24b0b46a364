"""Judges what a job says of lending and borrowing: what of it goes together."""

from __future__ import annotations

from typing import Any

from tidegate_events.spec import Component, JobSpec, phase_need

from tidegate_gateway.submission import bounds
from tidegate_gateway.submission.problems import Problems


def check_lending(value: dict[str, Any], read: dict[str, Any], problems: Problems) -> None:
    """Note a job that borrows without asking for its phases, shares of a device, or too much to be granted at once."""
    if not read.get("borrows"):
        return
    if read.get("phase_entry", value.get("phase_entry", "told")) == "told":
        accepted = "phase_entry: asked beside it"
        problems.add("borrows", "is given for a job that does not ask for its phases", accepted)
    components: tuple[Component, ...] = read.get("components", ())
    if not components:
        return
    if (places := read.get("gang_size", 1) * len(components)) > bounds.BORROWING_PLACES_MAX:
        accepted = f"at most {bounds.BORROWING_PLACES_MAX}, members times components, of a job that borrows"
        problems.add("gang_size", f"{places} members times components would be granted their phases at once", accepted)
    spec = JobSpec(name="", tenant="", submitter="", components=components)
    shares = {phase_need(spec, phase).gpu_millis for phase in spec.phases}
    if len(shares) > 1:
        accepted = "the same gpu_millis in every phase, or gpus, whole devices"
        problems.add("components", "phases of a job that borrows differ in their share of a GPU", accepted)
