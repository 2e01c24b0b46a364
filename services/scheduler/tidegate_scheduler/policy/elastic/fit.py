"""Where a whole gang finds room: all members or none, on the tightest nodes, so that whole nodes stay whole."""

from __future__ import annotations

import numpy as np

from tidegate_scheduler.policy.elastic.index import Index, Seat
from tidegate_scheduler.policy.elastic.shapes import NOWHERE, Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, Ints

Rows = tuple[int, ...]
"""One row for each member, in the order of ranks."""


def rows_now(fit: Fit, barred: frozenset[int], *, one_node: bool) -> Rows | None:
    """Return the rows on which the gang fits at once, None where it does not."""
    if fit.shape.gang_size == 1:
        if fit.nowhere():
            return None
        score = fit.score()
        if barred:
            score = score.copy()
            score[list(barred)] = NOWHERE
        row = int(score.argmin()) if len(score) else -1
        if row >= 0 and score[row] != NOWHERE:
            return (row,)
        if not barred:
            fit.found_nowhere()
        return None
    return rows_in(fit, fit.table.now, barred, one_node=one_node)


def rows_in(fit: Fit, room: Ints, barred: frozenset[int], *, one_node: bool) -> Rows | None:
    """Return the rows on which the gang fits into `room`, None where it does not.

    An intensive gang goes to one node, else (unless `one_node`) below one switch, that with the least left over.
    """
    rows = np.arange(len(fit.table))
    holds = fit.members(room, rows)
    if barred:
        holds[list(barred)] = 0
    size = fit.shape.gang_size
    if not fit.shape.intensive:
        return _filled(fit, room, holds, size) if int(holds.sum()) >= size else None
    whole = np.flatnonzero(holds >= size)
    if len(whole):
        return (int(_tightest(fit, room, whole)[0]),) * size
    if one_node:
        return None
    below = _per_switch(fit, holds)
    able = np.flatnonzero(below >= size).tolist()
    if not able:
        return None
    switch = min(able, key=lambda number: (int(below[number]), fit.table.switches[number]))
    holds[fit.table.switch[: len(rows)] != switch] = 0
    return _filled(fit, room, holds, size)


def _filled(fit: Fit, room: Ints, holds: Ints, size: int) -> Rows:
    """Return the rows that the members fill one after the other, the tightest first."""
    chosen: list[int] = []
    for row in _tightest(fit, room, np.flatnonzero(holds > 0)):
        chosen.extend([int(row)] * min(int(holds[row]), size - len(chosen)))
        if len(chosen) == size:
            break
    return tuple(chosen)


def _tightest(fit: Fit, room: Ints, rows: Ints) -> Ints:
    """Return the rows ordered by how little is left on them: devices, then CPU, then the node's name."""
    table = fit.table
    return rows[np.lexsort((table.place[rows], room[CPU, rows], room[GPUS, rows]))]


def seats(index: Index, fit: Fit, rows: Rows) -> tuple[Seat, ...]:
    """Return the members' seats on the rows, with the devices that each of them gets. They must fit at once."""
    table, shape = index.table, fit.shape
    if not (shape.need.gpus or shape.need.gpu_millis):
        return tuple(Seat(row, ()) for row in rows)
    taken: list[Seat] = []
    for row in rows:
        seat = Seat(row, table.take(row, shape.need, shape.gpu_models))
        table.occupy(row, shape.need, seat.gpu_indices)
        taken.append(seat)
    for seat in taken:
        table.vacate(seat.row, shape.need, seat.gpu_indices)
    return tuple(taken)


def could_hold(fit: Fit, *, up_only: bool, barred: frozenset[int] = frozenset()) -> bool:
    """Say whether the gang would fit on empty nodes: those that are open, or all there are."""
    if not barred and (known := fit.holds_gang.get(up_only)) is not None and known[0] == fit.table.nodes_changed:
        return known[1]
    holds = fit.holds_empty()
    if up_only:
        holds = np.where(fit.table.open[: len(holds)], holds, 0)
    if barred:
        holds[list(barred)] = 0
    could = could_hold_by(fit, holds)
    if not barred:
        fit.holds_gang[up_only] = (fit.table.nodes_changed, could)
    return could


def could_hold_by(fit: Fit, holds: Ints) -> bool:
    """Say whether the gang fits where each row holds so many members."""
    size = fit.shape.gang_size
    if not fit.shape.intensive:
        return int(holds.sum()) >= size
    return bool(len(holds)) and int(_per_switch(fit, holds).max()) >= size


def _per_switch(fit: Fit, holds: Ints) -> Ints:
    """Return how many members fit below each switch."""
    below = np.zeros(len(fit.table.switches), np.int64)
    np.add.at(below, fit.table.switch[: len(holds)], holds)
    return below
