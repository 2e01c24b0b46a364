"""What a job wants of nodes, and what its members must not go beyond: a switch, a rack, one CPU model, barred nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec

from tidegate_scheduler.simulator.baselines.room import Room
from tidegate_scheduler.state import Job, Node

Level = Literal["switch", "rack", "cluster"]
ANYWHERE: tuple[Level, ...] = ("cluster",)

Bound = tuple[tuple[Level, ...], bool, str]
"""In one of what all members have to be, the narrowest first; whether on one CPU model, whichever; and on which."""


class Wanted(msgspec.Struct, frozen=True):
    """What a job needs, what bounds it, and the nodes that it may not have now."""

    spec: JobSpec
    need: Resources
    bound: Bound = (ANYWHERE, False, "")
    barred: frozenset[str] = frozenset()

    def offered_by(self, room: Room) -> bool:
        """Say whether the node is one of those on which the job may run."""
        model = self.bound[2]
        if model and room.node.cpu_model != model:
            return False
        return room.node.name not in self.barred and room.offers(self.spec)

    def without_bars(self) -> Wanted:
        """Return the same with no nodes barred."""
        return msgspec.structs.replace(self, barred=frozenset()) if self.barred else self


def bound_of(spec: JobSpec, job: Job) -> Bound:
    """Return what bounds a job: an intensive gang is close together, a strict one on the CPU model that it began on."""
    levels = ANYWHERE
    if spec.communication == "intensive" and spec.gang_size > 1:
        levels = ("switch", "rack") if spec.widest_domain == "rack" else ("switch",)
    return levels, spec.determinism == "strict" and spec.gang_size > 1 and not job.cpu_model, job.cpu_model


def groups(wanted: Wanted, rooms: dict[str, Room], names: list[str]) -> Iterable[list[str]]:
    """Return the nodes in one group of which all members have to be, those first that are narrow and full."""
    levels, alike, _ = wanted.bound
    return [names] if levels == ANYWHERE and not alike else _bounded(wanted, rooms, names)


def most_together(wanted: Wanted, rooms: Iterable[Room]) -> int:
    """Return how many members the rooms hold of which one job may have all, whatever the nodes offer."""
    levels, alike, _ = wanted.bound
    found: dict[tuple[str, str], int] = {}
    for room in rooms:
        if room.fits(wanted.need, wanted.spec.gpu_models):
            key = _key(room.node, levels[-1], alike=alike)
            found[key] = found.get(key, 0) + room.members(wanted.need, wanted.spec.gpu_models)
            if found[key] >= wanted.spec.gang_size:
                return found[key]
    return max(found.values(), default=0)


def _bounded(wanted: Wanted, rooms: dict[str, Room], names: list[str]) -> Iterator[list[str]]:
    levels, alike, _ = wanted.bound
    for level in levels:
        found: dict[tuple[str, str], list[str]] = {}
        for name in names:
            found.setdefault(_key(rooms[name].node, level, alike=alike), []).append(name)
        yield from sorted(found.values(), key=lambda group: (sum(rooms[name].gpu_millis for name in group), group))


def place_of(node: Node, level: Level) -> str:
    """Return what a node is in; one that says nothing of it is in one of its own."""
    alone = f"node {node.name}"
    if level == "switch":
        return (f"{node.switch} in {node.rack}" if node.rack else node.switch) if node.switch else alone
    if level == "rack":
        return f"rack {node.rack}" if node.rack else f"switch {node.switch}" if node.switch else alone
    return ""


def _key(node: Node, level: Level, *, alike: bool) -> tuple[str, str]:
    return place_of(node, level), (node.cpu_model or f"node {node.name}") if alike else ""
