"""Stage 4, preempt: who has to leave so that a job of higher priority fits, and what room is then promised to it.

Nobody is asked to leave unless the job then fits; a job that is leaving already is counted once; and the smallest set
is taken that the order of victims allows (lowest priority first, then the one that began last: it has least to lose).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.first.fit import Seat, seat_gang
from tidegate_scheduler.policy.first.room import Room
from tidegate_scheduler.state import Job, Member, Node, State


class Plan(msgspec.Struct, frozen=True):
    """The room to promise, and the jobs that must leave for it (none where leaving ones suffice)."""

    nodes: tuple[str, ...]
    victims: tuple[str, ...]
    candidates: int


def plan_preemption(state: State, job: Job, nodes: list[Node], room: Room, spared: set[str]) -> Plan | None:
    """Return how `job` gets room on `nodes`; None when not even every lower job's leaving would do."""

    def seats_without(victims: frozenset[str], among: list[Node]) -> tuple[Seat, ...] | None:
        return seat_gang(state, job, among, lambda name: room.later_for(job, name, victims))

    reserved = [node for node in nodes if node.name in job.reserved_nodes]
    for among in (reserved, nodes):
        if among and (seats := seats_without(frozenset(), among)) is not None:
            return Plan(tuple(seat.node for seat in seats), (), 0)
    names = {node.name for node in nodes}
    candidates = _candidates(state, job, names, spared)
    chosen: list[str] = []
    for candidate in candidates:
        chosen.append(candidate.id)
        if seats_without(frozenset(chosen), nodes) is not None:
            break
    else:
        return None
    needed = _without_needless(chosen, lambda victims: seats_without(victims, nodes) is not None)
    seats = seats_without(frozenset(needed), nodes)
    assert seats is not None, "pruning keeps the job's seats"
    return Plan(tuple(seat.node for seat in seats), tuple(needed), len(candidates))


def plan_relief(state: State, node: Node, spared: set[str]) -> list[Job]:
    """Return who has to leave a node that holds more than it has, because it came back smaller: cheapest first."""
    staying: list[tuple[Job, Member]] = [
        (job, member)
        for job in state.jobs.values()
        if job.stage in ("placed", "running") and job.id not in spared
        for member in job.members
        if member.active and member.node == node.name
    ]
    victims: list[Job] = []
    devices = {gpu.index for gpu in node.gpus}
    for job, member in sorted(staying, key=lambda pair: _cost(pair[0])):
        if job in victims:
            continue
        held = Resources()
        for other, _ in staying:
            held = held if other in victims else held.plus(state.floors[other.id])
        crowded = held.cpu_millis > node.capacity.cpu_millis or held.memory_mib > node.capacity.memory_mib
        if crowded or not devices.issuperset(member.gpu_indices):
            victims.append(job)
    return victims


def _candidates(state: State, job: Job, names: set[str], spared: set[str]) -> list[Job]:
    """Return who could be asked to leave, cheapest first."""
    found = [
        other
        for other in state.jobs.values()
        if other.priority < job.priority
        and other.stage in ("placed", "running")
        and other.id not in spared
        and any(member.active and member.node in names for member in other.members)
    ]
    found.sort(key=_cost)
    return found


def _cost(victim: Job) -> tuple[int, int, str]:
    """Return the order in which jobs are asked to leave: the lowest priority first, then who began last."""
    return (victim.priority, -victim.placed_ns, victim.id)


def _without_needless(chosen: list[str], enough: Callable[[frozenset[str]], bool]) -> list[str]:
    """Drop, dearest first, each victim without whom the others still make room."""
    needed = list(chosen)
    for victim in reversed(chosen):
        rest = [other for other in needed if other != victim]
        if rest and enough(frozenset(rest)):
            needed = rest
    return needed
