"""Jobs are asked in an order, each is placed if it fits, and nobody is asked to leave."""

from __future__ import annotations

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.simulator.baselines.barring import rests, wanted_by
from tidegate_scheduler.simulator.baselines.cluster import Alike, Cluster, Rank
from tidegate_scheduler.simulator.baselines.obeying import cluster_of
from tidegate_scheduler.simulator.baselines.seating import Rooms, Tightness, place, tightest
from tidegate_scheduler.simulator.rules import Fill


def in_turn(rank: Rank, *, passing: bool, tightness: Tightness = tightest) -> Fill:
    """Return rules by which those who are `passing` a blocked job may be placed, else everybody behind it waits."""

    def fill(draft: Draft) -> None:
        cluster = cluster_of(draft, rank)
        rooms = Rooms(cluster.now, cluster.open)
        try:
            _fill(draft, cluster, rooms, passing, tightness)
        finally:
            rooms.undo()

    return fill


def _fill(draft: Draft, cluster: Cluster, rooms: Rooms, passing: bool, tightness: Tightness) -> None:
    state, failed = draft.state, cluster.fit_nowhere if passing else set[Alike]()
    for kind, (*_, name) in cluster.waiting(failed):
        job = state.jobs[name]
        if draft.full:
            return
        if rests(draft, cluster, job):
            continue
        wanted = wanted_by(draft, cluster, job)
        seats = rooms.seat(wanted, tightness)
        if seats is not None:
            place(draft, job, seats)
            continue
        if not wanted.barred:  # another one of the kind may have more nodes
            failed.add(kind)
        if not passing:
            return
