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
from tidegate_scheduler.policy.elastic.queue import Line
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, Ints
from tidegate_scheduler.policy.limits import ends_by_ns

NODES_LOOKED_AT_MAX = 32
"""Nodes of one reservation beyond what its gang needs at least: those that are emptiest already."""

NEVER = 1 << 62


class Reservation(msgspec.Struct, frozen=True):
    """The rows, one for each member, and when they are expected to be free; 0 where that is not known."""

    rows: Rows
    start_by_ns: int


def reserve(index: Index, line: Line, barred: frozenset[int], asked: set[str]) -> Reservation | None:
    """Return where room for the job comes free first, None where it never would.

    The room of those who were `asked` to leave counts as free later already.
    """
    table, fit = index.table, line.fit
    rows = np.arange(len(table))
    holds = fit.holds_empty() * table.open[: len(rows)]
    if barred:
        holds[list(barred)] = 0
    looked_at = NODES_LOOKED_AT_MAX + fit.shape.gang_size
    candidates = _emptiest(fit, np.flatnonzero(holds > 0))[:looked_at].tolist()
    there = [job for row in candidates for job in index.on_row.get(row, ())]
    ends = {job: _end(index, job) for job in there if job not in asked}
    moments = [0, *sorted(set(ends.values()))]

    def rows_at(moment: int) -> Rows | None:
        gone = [job for job, end in ends.items() if end <= moment]
        return _rows_without(index, fit, gone, candidates)

    # The more have left, the more fits: the first moment at which it does is found by halving.
    first = bisect_left(moments, True, key=lambda moment: rows_at(moment) is not None)
    if first == len(moments):
        return None
    found = rows_at(moments[first])
    assert found is not None, "it fits at the moment that was found"
    return Reservation(found, 0 if moments[first] >= NEVER else moments[first])


def may_use_until(index: Index, reserved: dict[str, Rows], until_ns: int) -> frozenset[int]:
    """Return the rows on which the first room that is kept is kept for a time after `until_ns`, which is known."""
    soonest: dict[int, int] = {}
    for name, rows in reserved.items():
        job, nodes = index.state.jobs[name], tuple(index.table.names[row] for row in rows)
        start_ns = (
            (job.reserved_start_ns or NEVER) if nodes == job.reserved_nodes else 0
        )  # one of this pass: not said yet
        for row in rows:
            soonest[row] = min(soonest.get(row, NEVER), start_ns)
    return frozenset(row for row, start_ns in soonest.items() if until_ns < start_ns < NEVER)


def _emptiest(fit: Fit, rows: Ints) -> Ints:
    table = fit.table
    return rows[np.lexsort((table.place[rows], -table.later[CPU, rows], -table.later[GPUS, rows]))]


def _end(index: Index, job: str) -> int:
    found = ends_by_ns(index.state.jobs[job], index.state.specs[job])
    return NEVER if found is None else found


def _rows_without(index: Index, fit: Fit, gone: list[str], among: list[int]) -> Rows | None:
    """Return the gang's rows in the room that there is without these jobs."""
    table, floors = index.table, index.state.floors
    room = table.later.copy()
    for job in gone:
        if not index.leaving(job):
            for seat in index.seats_of(job):
                need = seat.holds(floors[job])
                amounts = (need.cpu_millis, need.memory_mib, need.gpus or (1 if need.gpu_millis else 0))
                room[:3, seat.row] += amounts
    return rows_in(fit, room, among=among)
