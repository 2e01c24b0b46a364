"""EASY backfill: in the order of submission; room is reserved for the first that does not fit, and others fill in.

Where jobs say how long they take, the reservation is for the moment at which the first fits by that, and whoever ends
before may fill in, or takes only what is left then. Where they do not, nobody is known to end: the nodes are reserved
on which least has to come free, and others may take only what is not on these.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

import msgspec

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.simulator.baselines.barring import rests, wanted_by
from tidegate_scheduler.simulator.baselines.cluster import Alike, Cluster, Seat, ran_seconds
from tidegate_scheduler.simulator.baselines.domains import Wanted, groups, most_together
from tidegate_scheduler.simulator.baselines.obeying import cluster_of
from tidegate_scheduler.simulator.baselines.seating import Rooms, place
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, State


class Reservation(msgspec.Struct, frozen=True):
    """From when on room is kept for the first (None: nobody knows), and what is left beside it then."""

    start_ns: int | None
    beside: Rooms


def rules(_workload: Workload) -> Rules:
    """Return the rules; jobs say how long they take where the rules are told durations."""
    return Rules(name="easy", fill=_fill)


def _rank(_state: State, _job: Job, _now_ns: int) -> tuple[int, ...]:
    return ()


def _fill(draft: Draft) -> None:
    cluster = cluster_of(draft, _rank)
    rooms = Rooms(cluster.now, cluster.open)
    try:
        _place_all(draft, cluster, rooms)
    finally:
        rooms.undo()


def _place_all(draft: Draft, cluster: Cluster, rooms: Rooms) -> None:
    state, kept = draft.state, None
    placed: dict[str, tuple[Seat, ...]] = {}
    failed: dict[bool, set[Alike]] = {True: set(), False: set()}
    for kind, (*_, name) in cluster.waiting(failed[True]):
        job = state.jobs[name]
        if draft.full:
            return
        if rests(draft, cluster, job):
            continue
        meanwhile = kept is None or _ends_by(draft, job, kept.start_ns)
        if kind in failed[meanwhile]:
            continue
        wanted = wanted_by(draft, cluster, job)
        seats = _seats(wanted, rooms, None if meanwhile else kept)
        if seats is not None:
            place(draft, job, seats)
            placed[name] = seats
            continue
        if not wanted.barred:  # another one of the kind may have more nodes
            failed[meanwhile].add(kind)
            if not meanwhile and not _fits(wanted, rooms):
                failed[True].add(kind)  # it fits nowhere now, however soon it would end
        if kept is None:
            kept = _reserve(draft, cluster, placed, wanted)
            if kept.start_ns is None:
                failed[False] = failed[True]  # nobody is known to end before the first begins


def _seats(wanted: Wanted, rooms: Rooms, kept: Reservation | None) -> tuple[Seat, ...] | None:
    """Return where the job goes now, beside what is kept for the first."""
    if kept is None:
        return rooms.seat(wanted)
    for names in groups(wanted, rooms.rooms, rooms.names):
        seats = _seats_beside(wanted, rooms, kept.beside, names)
        if seats is not None:
            return seats
    return None


def _seats_beside(wanted: Wanted, rooms: Rooms, beside: Rooms, names: list[str]) -> tuple[Seat, ...] | None:
    need, models = wanted.need, wanted.spec.gpu_models
    marks, seats = (rooms.mark, beside.mark), list[Seat]()
    for _ in range(wanted.spec.gang_size):
        seat = rooms.seat_one(wanted, [name for name in names if beside.rooms[name].fits(need, models)])
        if seat is None:
            rooms.undo(marks[0])
            beside.undo(marks[1])
            return None
        seats.append(seat)
        beside.occupy(need, Seat(seat.node, beside.rooms[seat.node].take(need, models)))
    return tuple(seats)


def _fits(wanted: Wanted, rooms: Rooms) -> bool:
    mark = rooms.mark
    seats = rooms.seat(wanted)
    rooms.undo(mark)
    return seats is not None


def _ends_by(draft: Draft, job: Job, start_ns: int | None) -> bool:
    if start_ns is None:
        return False
    end_ns = _end_ns(draft, job)
    return end_ns is not None and end_ns <= start_ns


def _end_ns(draft: Draft, job: Job) -> int | None:
    """Return when a job has ended that runs, or that would be placed now, by what it said; None: it said nothing."""
    expected = draft.state.specs[job.id].expected_seconds
    if expected is None:
        return None
    return draft.now_ns + max(0, expected - ran_seconds(job, draft.now_ns)) * SECOND_NS


def _reserve(draft: Draft, cluster: Cluster, placed: dict[str, tuple[Seat, ...]], wanted: Wanted) -> Reservation:
    """Return the reservation for a job that does not fit now."""
    spec, need = wanted.spec, wanted.need
    later = Rooms({name: room.copy() for name, room in cluster.now.items()}, cluster.open)
    members = {
        name: room.members(need, spec.gpu_models) for name, room in later.rooms.items() if wanted.offered_by(room)
    }
    fitting = sum(members.values())
    for start_ns, seats in _ends(draft, cluster, placed):
        for name, seat in seats:
            later.vacate(draft.state.floors[name], seat)
            if seat.node in members:
                more = later.rooms[seat.node].members(need, spec.gpu_models)
                fitting, members[seat.node] = fitting + more - members[seat.node], more
        if fitting >= spec.gang_size and later.seat(wanted) is not None:
            return Reservation(start_ns, later)
    return Reservation(None, _without_the_roomiest(cluster, wanted))


def _ends(
    draft: Draft, cluster: Cluster, placed: dict[str, tuple[Seat, ...]]
) -> Iterator[tuple[int, list[tuple[str, Seat]]]]:
    """Yield when jobs that said so will have ended, the first ones first, and what they give back then."""
    found: list[tuple[int, str, Seat]] = []
    for name, seats in {**cluster.running, **placed}.items():
        end_ns = _end_ns(draft, draft.state.jobs[name])
        if end_ns is not None:
            found += [(end_ns, name, seat) for seat in seats]
    found.sort(key=lambda each: (each[0], each[1], each[2].node))
    for end_ns, group in groupby(found, key=itemgetter(0)):
        yield end_ns, [(name, seat) for _, name, seat in group]


def _without_the_roomiest(cluster: Cluster, wanted: Wanted) -> Rooms:
    """Return what is free now without the nodes on which least has to come free for the job."""
    spec, need = wanted.spec, wanted.need
    empty = {name: cluster.empty[name].members(need, spec.gpu_models) for name in cluster.open}
    able = [name for name in cluster.open if empty[name] and wanted.offered_by(cluster.now[name])]
    enough = [
        names
        for names in groups(wanted, cluster.now, able)
        if most_together(wanted, (cluster.empty[name] for name in names)) >= spec.gang_size
    ]
    within = max(enough, key=lambda names: sum(cluster.now[name].gpu_millis for name in names), default=able)
    rooms = {name: room.copy() for name, room in cluster.now.items()}
    left = spec.gang_size
    for name in sorted(within, key=lambda name: (-rooms[name].gpu_millis, -rooms[name].cpu_millis, name)):
        if left > 0:
            rooms[name].close()
            left -= empty[name]
    return Rooms(rooms, cluster.open)
