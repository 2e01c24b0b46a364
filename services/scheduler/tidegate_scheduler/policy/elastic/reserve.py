"""Room that is kept for a blocked job which nobody leaves for, and who may use it until then.

The reservation is durable: it stands in the journal until the job is placed or ends, or its nodes go away. It is made
where the job fits earliest by what those who hold room there have declared: the hard ends (time limits) of running
attempts, the deadlines of those who are leaving. Others may use the room meanwhile if their own time limit ends before.
"""

from __future__ import annotations

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


def reserve(index: Index, line: Line, barred: frozenset[int]) -> Reservation | None:
    """Return where room for the job comes free first, None where it never would."""
    table, fit = index.table, line.fit
    rows = np.arange(len(table))
    holds = fit.holds_empty() * table.open[: len(rows)]
    if barred:
        holds[list(barred)] = 0
    candidates = _emptiest(fit, np.flatnonzero(holds > 0))[: NODES_LOOKED_AT_MAX + fit.shape.gang_size]
    ends = sorted({end for row in candidates for end in _ends(index, int(row))})
    others = frozenset(range(len(table))) - {int(row) for row in candidates}
    for end in [0, *ends]:
        gone = {job for row in candidates for job in index.on_row.get(int(row), ()) if _end(index, job) <= end}
        found = _seats_without(index, fit, gone, others)
        if found is not None:
            return Reservation(found, 0 if end >= NEVER else end)
    return None


def may_use_until(index: Index, reserved: dict[str, Rows], until_ns: int) -> frozenset[int]:
    """Return the rows on which all room that is kept is kept for a time after `until_ns`."""
    soonest: dict[int, int] = {}
    for job, rows in reserved.items():
        start_ns = index.state.jobs[job].reserved_start_ns
        for row in rows:
            soonest[row] = min(soonest.get(row, NEVER), start_ns)
    return frozenset(row for row, start_ns in soonest.items() if start_ns > until_ns)


def _emptiest(fit: Fit, rows: Ints) -> Ints:
    table = fit.table
    return rows[np.lexsort((table.place[rows], -table.later[CPU, rows], -table.later[GPUS, rows]))]


def _ends(index: Index, row: int) -> list[int]:
    return [_end(index, job) for job in index.on_row.get(row, ())]


def _end(index: Index, job: str) -> int:
    found = ends_by_ns(index.state.jobs[job], index.state.specs[job])
    return NEVER if found is None else found


def _seats_without(index: Index, fit: Fit, gone: set[str], others: frozenset[int]) -> Rows | None:
    """Return the gang's rows in the room that there is without these jobs."""
    table, floors = index.table, index.state.floors
    room = table.later.copy()
    for job in sorted(gone):
        if index.leaving(job):
            continue
        for seat in index.seats_of(job):
            need = floors[job]
            room[:3, seat.row] += (need.cpu_millis, need.memory_mib, need.gpus or (1 if need.gpu_millis else 0))
    return rows_in(fit, room, others, one_node=False)
