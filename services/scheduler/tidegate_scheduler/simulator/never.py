"""Why a job is never placed, whoever decides: what of it no node could hold, even an empty one."""

from __future__ import annotations

from tidegate_events.events import Reason

from tidegate_scheduler.simulator.baselines.domains import Wanted, bound_of, most_together
from tidegate_scheduler.simulator.baselines.room import Room
from tidegate_scheduler.state import State

NEVER, QUEUED = "Inadmissible", "Queued"


def why_never(state: State, job: str) -> Reason:
    """Return the reason of a job that waits as a simulation ends."""
    spec, need = state.specs[job], state.floors[job]
    if state.jobs[job].held:
        return Reason(code="Held", detail="an operator holds it")
    wanted = Wanted(spec, need, bound_of(spec, state.jobs[job]))
    rooms = [room for room in map(Room, state.nodes.values()) if wanted.offered_by(room)]
    if not rooms:
        return Reason(
            code=NEVER, detail=f"no node has the image {spec.image}, or fetches it, and isolates by {spec.isolation}"
        )
    able = [room for room in rooms if room.fits(need, spec.gpu_models)]
    if not able:
        return Reason(
            code=NEVER,
            detail="no node could hold a member, even if it were empty",
            numbers={
                "cpu_millis_needed": need.cpu_millis,
                "cpu_millis_free": max(room.cpu_millis for room in rooms),
                "memory_mib_needed": need.memory_mib,
                "memory_mib_free": max(room.memory_mib for room in rooms),
                "gpus_needed": need.gpus,
                "gpus_free": max(room.whole for room in rooms),
            },
        )
    held = sum(room.members(need, spec.gpu_models) for room in able)
    if held < spec.gang_size:
        return Reason(code=NEVER, detail=f"all nodes together could hold {held} of its {spec.gang_size} members")
    if (most := most_together(wanted, able)) < spec.gang_size:
        numbers = {"members_needed": spec.gang_size, "members_most_together": most}
        return Reason(code=NEVER, detail="its members have to be closer together than nodes are", numbers=numbers)
    return Reason(code=QUEUED, detail="the rules had not placed it when nothing more could happen")
