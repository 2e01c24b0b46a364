"""What each node meant for a waiting job when its turn came, with the numbers: for people, never for a decision."""

from __future__ import annotations

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy import registry
from tidegate_scheduler.policy.first import fit
from tidegate_scheduler.policy.first.pipeline import Turn
from tidegate_scheduler.policy.first.room import Space
from tidegate_scheduler.state import Job, Node, State

FITS = "Fits"


class Verdict(msgspec.Struct, frozen=True):
    """Why a node takes no member of the job, or that it does (`Fits`), with what is needed and what is free."""

    node: str
    code: str
    detail: str = ""
    numbers: dict[str, int] = {}


def verdicts(state: State, job: Job, now_ns: int) -> tuple[Verdict, ...]:
    """Return what every node means for the waiting `job` in a pass on `state` at `now_ns`, by name."""
    draft = Draft(state, max(now_ns, state.header.now_ns))
    turn = registry.find(state.header.policy).turn_of(draft, job.id)
    eligible = {node.name for node in fit.Suitable(state).eligible(job)}
    return tuple(_verdict(state, job, node, turn, eligible) for _, node in sorted(state.nodes.items()))


def _verdict(state: State, job: Job, node: Node, turn: Turn, eligible: set[str]) -> Verdict:
    unsuited = _unsuited(state, job, node)
    if unsuited is not None:
        return unsuited
    if node.status != "up":
        return Verdict(node.name, "NodeAway", f"it is {node.status}")
    if node.zombies:
        held = ", ".join(sorted({zombie.job for zombie in node.zombies}))
        return Verdict(node.name, "Leftovers", f"it still has to end what was given up: {held}")
    if node.name not in eligible:
        return Verdict(node.name, "Excluded", "it refused this job before, and others may take it")
    ahead = turn.closed.get(node.name)
    if ahead is not None and not (node.name in job.reserved_nodes and ahead.priority == job.priority):
        return Verdict(node.name, "Priority", f"{ahead.id} is in front", {"priority": ahead.priority})
    space = turn.room.now_for(job, node.name)
    numbers = _compared(state.floors[job.id], space)
    return Verdict(node.name, FITS if space.takes(state.floors[job.id]) else "Resources", numbers=numbers)


def _unsuited(state: State, job: Job, node: Node) -> Verdict | None:
    spec, need = state.specs[job.id], state.floors[job.id]
    if spec.isolation not in node.levels:
        return Verdict(node.name, "Isolation", f"it offers {', '.join(node.levels) or 'none'}, not {spec.isolation}")
    if spec.image not in node.images and spec.image not in node.images.values():
        return Verdict(node.name, "Image", f"it has no image {spec.image}")
    empty = fit.empty_space(node)
    if not empty.takes(need):
        return Verdict(node.name, "TooSmall", "it could not hold a member were it empty", _compared(need, empty))
    return None


def _compared(need: Resources, space: Space) -> dict[str, int]:
    numbers = {
        "cpu_millis_needed": need.cpu_millis,
        "cpu_millis_free": space.cpu_millis,
        "memory_mib_needed": need.memory_mib,
        "memory_mib_free": space.memory_mib,
    }
    if need.gpus:
        numbers |= {"gpus_needed": need.gpus, "gpus_free": space.gpu_count}
    return numbers
