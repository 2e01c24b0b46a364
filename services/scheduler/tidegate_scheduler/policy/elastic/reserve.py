"""Room that is kept for a blocked job which nobody leaves for, and who may use it until then.

The reservation is durable: it stands in the journal until the job is placed or ends, or its nodes go away. It is made
where the job fits earliest by what those who hold room there have declared: the hard ends (time limits) of running
attempts, the deadlines of those who are leaving. Others may use the room meanwhile if their own time limit ends before.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec
import numpy as np

from tidegate_scheduler.policy.elastic.fit import Rows, rows_in
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, Ints
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.limits import ends_by_ns
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job

NODES_LOOKED_AT_MAX = 32
"""Nodes of one reservation beyond what its gang needs at least: those that are emptiest already."""

SLIP_NS = 60 * SECOND_NS
"""A start is told anew when it is so much later than was told, so it is told no more often than time passes."""

NEVER = 1 << 62


class Reservation(msgspec.Struct, frozen=True):
    """The rows, one for each member, and when they are expected to be free; 0 where that is not known."""

    rows: Rows
    start_by_ns: int


def reserve(trial: Trial, now_ns: int, job: Job, fit: Fit, barred: frozenset[int]) -> Reservation | None:
    """Return where room for the job comes free first, None where it never would."""
    table = trial.index.table
    rows = np.arange(len(table))
    holds = fit.holds_empty() * table.open[: len(rows)]
    if barred:
        holds[list(barred)] = 0
    looked_at = NODES_LOOKED_AT_MAX + fit.shape.gang_size
    candidates = _emptiest(fit, np.flatnonzero(holds > 0))[:looked_at].tolist()
    return _first(trial, now_ns, job, fit, candidates)


def first_on(trial: Trial, now_ns: int, job: Job, fit: Fit, rows: Rows) -> Reservation | None:
    """Return when the job fits on these rows first, and how it lies on them then."""
    return _first(trial, now_ns, job, fit, sorted(set(rows)))


def slips(told_ns: int, start_ns: int) -> bool:
    """Say whether a start that was told has become so much later, or unknown, that it is told anew."""
    return bool(told_ns) and (not start_ns or start_ns >= told_ns + SLIP_NS)


def _first(trial: Trial, now_ns: int, job: Job, fit: Fit, candidates: list[int]) -> Reservation | None:
    """Return the first moment at which the job fits on the candidates, and where, None where there is none.

    It is not before now, and not before those have left whose room is counted as free later. Whoever fits already and
    yet waits does so for what nobody knows: at moment 0.
    """
    index = trial.index
    there = [name for row in candidates for name in index.on_row.get(row, ())]
    ends = {name: max(now_ns, _end(trial, now_ns, name, job)) for name in there}
    moments = [0, *sorted(set(ends.values()))]
    room = np.zeros_like(index.table.later)
    room[:, candidates] = index.table.later[:, candidates]

    def rows_at(moment: int) -> Rows | None:
        gone = [name for name, end in ends.items() if end <= moment and not _goes(trial, name)]
        still = [name for name, end in ends.items() if end > moment and _goes(trial, name)]
        _add(index, gone, room, 1)
        _add(index, still, room, -1)
        rows = rows_in(fit, room, among=candidates)
        _add(index, still, room, 1)
        _add(index, gone, room, -1)
        return rows

    # The more have left, the more fits: the first moment at which it does is found by halving.
    first = bisect_left(moments, True, key=lambda moment: rows_at(moment) is not None)
    if first == len(moments):
        return None
    found = rows_at(moments[first])
    assert found is not None, "it fits at the moment that was found"
    return Reservation(found, 0 if moments[first] >= NEVER else moments[first])


def _emptiest(fit: Fit, rows: Ints) -> Ints:
    table = fit.table
    return rows[np.lexsort((table.place[rows], -table.later[CPU, rows], -table.later[GPUS, rows]))]


def _goes(trial: Trial, name: str) -> bool:
    return name in trial.asked or trial.index.leaving(name)


def _end(trial: Trial, now_ns: int, name: str, for_job: Job) -> int:
    """Return when one who holds room has certainly left; whoever was let in until the job comes leaves for it."""
    index = trial.index
    job = index.state.jobs[name]
    if index.leaving(name):
        return job.deadline_ns
    if name in trial.asked:
        return now_ns + index.state.specs[name].preemption.grace_seconds * SECOND_NS
    found = ends_by_ns(job, index.state.specs[name])
    end_ns = NEVER if found is None else found
    if for_job.reserved_start_ns and for_job.id in job.backfills:
        return min(end_ns, for_job.reserved_start_ns)
    return end_ns


def _add(index: Index, jobs: list[str], room: Ints, sign: int) -> None:
    """Add to the room what the jobs hold, or with `sign` -1 take it away."""
    for job in jobs:
        for seat in index.seats_of(job):
            need = seat.holds(index.state.floors[job])
            amounts = (need.cpu_millis, need.memory_mib, need.gpus or (1 if need.gpu_millis else 0))
            for amount, each in enumerate(amounts):
                room[amount, seat.row] += sign * each
