"""Jobs are asked in an order that changes while they run, and who ranks lower leaves for who ranks higher.

A job that does not fit has the lowest of those below it leave, on the nodes where the best of those who leave ranks
lowest. What they leave is kept for it, and whoever fits beside that is placed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import msgspec
from tidegate_events.events import Reason
from tidegate_events.resources import Resources

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.simulator.baselines.barring import rests, wanted_by
from tidegate_scheduler.simulator.baselines.cluster import Alike, Cluster, Rank, Seat, Standing
from tidegate_scheduler.simulator.baselines.domains import Wanted, groups
from tidegate_scheduler.simulator.baselines.obeying import cluster_of
from tidegate_scheduler.simulator.baselines.room import Room
from tidegate_scheduler.simulator.baselines.seating import Rooms, place
from tidegate_scheduler.simulator.rules import Fill
from tidegate_scheduler.state import Job, State

Falls = Callable[[State, Job, int], int | None]
"""When a running job is next ranked otherwise by the time alone, so that others may come before it; None: never."""


def ranked(rank: Rank, falls: Falls | None = None) -> Fill:
    """Return rules by which whoever ranks higher runs."""

    def fill(draft: Draft) -> None:
        cluster = cluster_of(draft, rank)
        if cluster.lines:
            with_ranks = _Pass(draft, cluster)
            try:
                with_ranks.ask_all()
            finally:
                with_ranks.undo()
            if falls is not None:
                _wake(draft, cluster, falls)

    return fill


def _wake(draft: Draft, cluster: Cluster, falls: Falls) -> None:
    for name in cluster.running:
        at_ns = falls(draft.state, draft.state.jobs[name], draft.now_ns)
        if at_ns is not None:
            draft.wake_by(at_ns)


class _Victims(msgspec.Struct, frozen=True):
    """Who leaves a node so that one member fits: the best of them, and all."""

    best: Standing
    node: str
    jobs: tuple[str, ...]


class _Pass:
    """One pass: what is tried, and who could leave."""

    def __init__(self, draft: Draft, cluster: Cluster) -> None:
        self._draft = draft
        self._state = draft.state
        self._cluster = cluster
        self._now = Rooms(cluster.now, cluster.open)
        self._later = Rooms(cluster.later, cluster.open)
        self._gone: set[str] = set()
        self._stuck: set[Alike] = set()
        self._full: set[Alike] = set()

    @cached_property
    def _standing(self) -> list[Standing]:
        """Return those who could leave, in no order: it is looked at only where somebody does not fit."""
        rank, jobs, now_ns, leaving = self._cluster.rank, self._state.jobs, self._draft.now_ns, self._draft.leaving
        running = ((name, jobs[name]) for name in self._cluster.running if name not in leaving)
        return [(rank(self._state, job, now_ns), job.submitted_seq, name) for name, job in running]

    @cached_property
    def _lowest(self) -> Standing | None:
        return max(self._standing, default=None)

    @cached_property
    def _on_node(self) -> dict[str, list[Standing]]:
        """Return who could leave each node, the lowest first."""
        found: dict[str, list[Standing]] = {}
        for standing in sorted(self._standing, reverse=True):
            for node in {seat.node: None for seat in self._cluster.running[standing[2]]}:
                found.setdefault(node, []).append(standing)
        return found

    def undo(self) -> None:
        """Take back what was tried."""
        self._now.undo()
        self._later.undo()

    def ask_all(self) -> None:
        """Ask the waiting jobs, the highest first."""
        for kind, standing in self._cluster.waiting(self._stuck):
            job = self._state.jobs[standing[2]]
            if self._draft.full:
                return
            if rests(self._draft, self._cluster, job):
                continue
            wanted = wanted_by(self._draft, self._cluster, job)
            if kind not in self._full:
                if self._place(job, wanted):
                    continue
                if not wanted.barred:  # another one of the kind may have more nodes
                    self._full.add(kind)
            may_ask = self._lowest is not None and standing < self._lowest
            if not (may_ask and self._make_room(standing, job, wanted)) and not wanted.barred:
                self._stuck.add(kind)

    def _place(self, job: Job, wanted: Wanted) -> bool:
        """Place a job that fits now beside what is kept, or keep room for it that is being left; say whether it has."""
        marks = self._now.mark, self._later.mark
        seats = self._now.seat(wanted, self._beside)
        if seats is not None and all(self._free_later(seat, wanted.need) for seat in seats):
            for seat in seats:
                self._later.occupy(wanted.need, seat)
            place(self._draft, job, seats)
            return True
        self._now.undo(marks[0])
        self._later.undo(marks[1])
        return self._later.seat(wanted) is not None

    def _beside(self, room: Room, need: Resources) -> tuple[int, ...]:
        """Prefer nodes on which nothing is kept that the job would take, then the tightest."""
        later = self._cluster.later[room.node.name]
        return (not later.fits(need), later.gpu_millis, room.gpu_millis, room.cpu_millis)

    def _free_later(self, seat: Seat, need: Resources) -> bool:
        """Say whether nothing of the seat is kept for others."""
        room = self._cluster.later[seat.node]
        each = need.gpu_millis or 1000
        enough = room.cpu_millis >= need.cpu_millis and room.memory_mib >= need.memory_mib
        return enough and all(room.devices[index] >= each for index in seat.gpu_indices)

    def _make_room(self, standing: Standing, job: Job, wanted: Wanted) -> bool:
        """Have those leave who have to, and keep their room for the job; say whether that would do."""
        found: list[tuple[Standing, list[str]]] = []
        within = list(groups(wanted, self._later.rooms, self._later.names))
        for names in within if len(within) > 1 else ():
            mark, leaving = self._later.mark, self._leaving_in(names, standing, wanted)
            if leaving is not None:
                best = min((each for each in self._standing if each[2] in leaving), default=standing)
                found.append((best, names))
                self._later.undo(mark)
                self._gone.difference_update(leaving)
        if len(within) > 1:
            within = [max(found)[1]] if found else []
        leaves = self._leaving_in(within[0], standing, wanted) if within else None
        for name in leaves or ():
            victim = self._state.jobs[name]
            self._draft.ask_to_leave(victim, Reason(code="LowerPriority"), job.id, hold=victim.suspend_requested)
        return leaves is not None

    def _leaving_in(self, names: list[str], standing: Standing, wanted: Wanted) -> list[str] | None:
        """Return who leaves these nodes so that all members fit, which have their room then; None: nothing changes."""
        mark, leaving = self._later.mark, list[str]()
        for _ in range(wanted.spec.gang_size):
            if self._later.seat_one(wanted, names) is not None:
                continue
            victims = self._cheapest(standing, wanted, names)
            if victims is None:
                self._later.undo(mark)
                self._gone.difference_update(leaving)
                return None
            for name in victims.jobs:
                self._let_go(name)
                leaving.append(name)
            seated = self._later.seat_one(wanted, names)
            assert seated is not None, "those who leave make enough room"
        return leaving

    def _let_go(self, name: str) -> None:
        self._gone.add(name)
        for seat in self._cluster.running[name]:
            self._later.vacate(self._state.floors[name], seat)

    def _cheapest(self, standing: Standing, wanted: Wanted, names: list[str]) -> _Victims | None:
        """Return who leaves which node so that one member fits: there where the best of them ranks lowest."""
        found: _Victims | None = None
        within, later = set(names), self._cluster.later
        for node, there in self._on_node.items():
            if node not in within or not wanted.offered_by(later[node]):
                continue
            below = [each for each in there if each > standing and each[2] not in self._gone]
            victims = self._enough(node, below, wanted)
            if victims is not None and (found is None or (victims.best, victims.node) > (found.best, found.node)):
                found = victims
        return found

    def _enough(self, node: str, below: list[Standing], wanted: Wanted) -> _Victims | None:
        """Return as few of those below, the lowest first, as one member needs to leave the node."""
        mark = self._later.mark
        taken: list[Standing] = []
        room = self._cluster.later[node]
        for each in below:
            taken.append(each)
            for seat in self._cluster.running[each[2]]:
                if seat.node == node:
                    self._later.vacate(self._state.floors[each[2]], seat)
            if room.fits(wanted.need, wanted.spec.gpu_models):
                self._later.undo(mark)
                return _Victims(taken[-1], node, tuple(name for *_, name in taken))
        self._later.undo(mark)
        return None
