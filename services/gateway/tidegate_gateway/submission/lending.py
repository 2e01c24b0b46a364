"""Judges what a job says of lending and borrowing: what of it goes together."""

from __future__ import annotations

from typing import Any

from tidegate_events.spec import DEFAULT_PHASE, Component, JobSpec, phase_need

from tidegate_gateway.submission import bounds
from tidegate_gateway.submission.problems import Problems


def check_lending(value: dict[str, Any], read: dict[str, Any], problems: Problems) -> None:
    """Note a job that borrows without asking for its phases, for too large a device, or too much to be granted at once.

    And one that asks for its phases, and would be back in `default` without asking for what that needs.
    """
    told = read.get("phase_entry", value.get("phase_entry", "told")) == "told"
    components: tuple[Component, ...] = read.get("components", ())
    if not told:
        _check_default(components, problems)
    if not read.get("borrows"):
        return
    if told:
        accepted = "phase_entry: asked beside it"
        problems.add("borrows", "is given for a job that does not ask for its phases", accepted)
    if not components:
        return
    if (places := read.get("gang_size", 1) * len(components)) > bounds.BORROWING_PLACES_MAX:
        accepted = f"at most {bounds.BORROWING_PLACES_MAX}, members times components, of a job that borrows"
        problems.add("gang_size", f"{places} members times components would be granted their phases at once", accepted)
    spec = JobSpec(name="", tenant="", submitter="", components=components)
    _check_device(spec, problems)


def _check_device(spec: JobSpec, problems: Problems) -> None:
    """Note where a borrower has a share in `default`, and needs a larger device in another phase: it keeps to its own.

    One that has none in `default` gets a share of a device that is large enough.
    """
    default = phase_need(spec, DEFAULT_PHASE)
    largest = max(phase_need(spec, phase).gpu_memory_mib for phase in spec.phases)
    if default.gpu_millis and largest > default.gpu_memory_mib:
        problems.add(
            "components",
            f"a phase needs a device of gpu_memory_mib {largest}, and who borrows keeps to the one it has a share "
            f"of in phase default, with {default.gpu_memory_mib}",
            f"gpu_memory_mib of {largest} in phase default too, or no gpu_millis there",
        )


def _check_default(components: tuple[Component, ...], problems: Problems) -> None:
    """Note where `default` needs more than another phase: a phase is left for it without asking.

    A phase that a component does not declare is `default` for it, so that needs no check of its own.
    """
    for component in components:
        default = component.range_in(DEFAULT_PHASE).minimum
        for name in ("memory_mib", "gpus", "gpu_millis"):
            least = min(getattr(each.minimum, name) for each in component.resources.values())
            if getattr(default, name) > least:
                problems.add(
                    "components",
                    f"phase default of component {component.name} needs more {name} than another phase, and whoever "
                    "leaves that is in default without having asked",
                    f"with phase_entry: asked, a minimum {name} of {least} or less in phase default; put what needs "
                    "more into a phase with a name",
                )
