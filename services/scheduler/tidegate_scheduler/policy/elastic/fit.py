"""Where a whole gang finds room: all members or none, on the tightest nodes, so that whole nodes stay whole."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tidegate_scheduler.policy.elastic.domains import bounded, domains_of
from tidegate_scheduler.policy.elastic.entries import Seat
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.shapes import NOWHERE, Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, Ints

Rows = tuple[int, ...]
"""One row for each member, in the order of ranks."""


def rows_now(fit: Fit, barred: frozenset[int], *, one_node: bool) -> Rows | None:
    """Return the rows on which the gang fits at once, None where it does not."""
    if fit.nowhere():
        return None
    rows = _row_now(fit, barred) if fit.shape.gang_size == 1 else _rows_now(fit, barred, one_node=one_node)
    if rows is None and not (barred or one_node):
        fit.found_nowhere()
    return rows


def _row_now(fit: Fit, barred: frozenset[int]) -> Rows | None:
    score = fit.score()
    if barred:
        score = score.copy()
        score[list(barred)] = NOWHERE
    row = int(score.argmin()) if len(score) else -1
    return (row,) if row >= 0 and score[row] != NOWHERE else None


def _rows_now(fit: Fit, barred: frozenset[int], *, one_node: bool) -> Rows | None:
    holds = fit.holds_now()
    if barred:
        holds = holds.copy()
        holds[list(barred)] = 0
    return _chosen(fit, fit.table.now, np.arange(len(holds)), holds, one_node=one_node)


def row_later(fit: Fit, left: set[int], barred: frozenset[int]) -> Rows | None:
    """Return the row of `left` on which one member fits once those who leave it have left; elsewhere it fits now."""
    if not _holds_later(fit, left):
        return None
    rows = np.array(sorted(left - barred), np.int64)
    able = rows[fit.members(fit.table.later, rows) > 0]
    return (int(_tightest(fit, fit.table.later, able)[0]),) if len(able) else None


def may_hold_later(fit: Fit, left: set[int]) -> bool:
    """Say whether, by the number of members alone, the gang could fit once those who leave `left` have left."""
    if not _holds_later(fit, left) and (not fit.shape.intensive or fit.nowhere()):
        return False  # elsewhere it is the room that there is now, in which it does not fit
    rows = np.fromiter(left, np.int64, len(left))
    now = fit.holds_now()
    more = fit.members(fit.table.later, rows)
    return int(now.sum() - now[rows].sum() + more.sum()) >= fit.shape.gang_size


def _holds_later(fit: Fit, left: set[int]) -> bool:
    """Say whether one of the rows has enough for a member once those who leave it have left."""
    return any(fit.holds_one(fit.table.later_on(row)) for row in left)


def rows_in(
    fit: Fit, room: Ints, barred: Collection[int] = (), *, among: Collection[int] | None = None, one_node: bool = False
) -> Rows | None:
    """Return the rows (of those `among`, where that is given) on which the gang fits into `room`, None where on none.

    An intensive gang goes to one node, else (unless `one_node`) below one switch, that with the least left over; a
    strict one to nodes of one CPU model.
    """
    rows = np.arange(len(fit.table)) if among is None else np.array(sorted(among), np.int64)
    holds = fit.members(room, rows)
    if barred:
        holds[np.isin(rows, list(barred))] = 0
    return _chosen(fit, room, rows, holds, one_node=one_node)


def holds_rows(fit: Fit, room: Ints, rows: Rows) -> bool:
    """Say whether the gang fits on just these rows, so many members on each as they name."""
    there = sorted(set(rows))
    holds = fit.members(room, np.array(there, np.int64))
    return all(int(held) >= rows.count(row) for row, held in zip(there, holds, strict=True))


def _chosen(fit: Fit, room: Ints, rows: Ints, holds: Ints, *, one_node: bool) -> Rows | None:
    """Return where the gang goes if `rows` hold so many members each."""
    size = fit.shape.gang_size
    if int(holds.sum()) < size:
        return None
    if not bounded(fit.shape):
        return _filled(fit, room, rows, holds)
    if fit.shape.intensive:
        whole = rows[holds >= size]
        if len(whole):
            return (int(_tightest(fit, room, whole)[0]),) * size
        if one_node:
            return None
    domains = domains_of(fit.shape, fit.table, rows)
    sums = domains.sums(holds)
    able = np.flatnonzero(sums >= size).tolist()
    if not able:
        return None
    inside = domains.numbers == min(able, key=lambda number: (int(sums[number]), domains.names[number]))
    return _filled(fit, room, rows[inside], holds[inside])


def _filled(fit: Fit, room: Ints, rows: Ints, holds: Ints) -> Rows:
    """Return the rows that the members fill one after the other, the tightest first."""
    able = np.flatnonzero(holds > 0)
    chosen: list[int] = []
    for position in able[_order(fit, room, rows[able])]:
        chosen.extend([int(rows[position])] * min(int(holds[position]), fit.shape.gang_size - len(chosen)))
        if len(chosen) == fit.shape.gang_size:
            break
    return tuple(chosen)


def _tightest(fit: Fit, room: Ints, rows: Ints) -> Ints:
    """Return the rows ordered by how little is left on them: devices, then CPU, then the node's name."""
    return rows[_order(fit, room, rows)]


def _order(fit: Fit, room: Ints, rows: Ints) -> Ints:
    table = fit.table
    return np.lexsort((table.place[rows], room[CPU, rows], room[GPUS, rows]))


def seats(index: Index, fit: Fit, rows: Rows) -> tuple[Seat, ...]:
    """Return the members' seats on the rows, with the devices that each of them gets. They must fit at once."""
    table, shape = index.table, fit.shape
    if not (shape.need.gpus or shape.need.gpu_millis):
        return tuple(Seat(row, ()) for row in rows)
    if len(rows) == 1:
        return (Seat(rows[0], table.take(rows[0], shape.need, shape.gpu_models)),)
    taken: list[Seat] = []
    for row in rows:
        seat = Seat(row, table.take(row, shape.need, shape.gpu_models))
        table.occupy(row, shape.need, seat.gpu_indices)
        taken.append(seat)
    for seat in taken:
        table.vacate(seat.row, shape.need, seat.gpu_indices)
    return tuple(taken)


def is_roomy(fit: Fit, row: int) -> bool:
    """Say whether nobody holds so much of the row that one member would not fit, whatever is promised there."""
    need = fit.shape.need
    cpu_millis, memory_mib, gpus, share = fit.table.free_on(row)
    if need.cpu_millis > cpu_millis or need.memory_mib > memory_mib or need.gpus > gpus:
        return False
    return not need.gpu_millis or gpus > 0 or share >= need.gpu_millis


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
    if not bounded(fit.shape):
        return int(holds.sum()) >= fit.shape.gang_size
    sums = domains_of(fit.shape, fit.table, np.arange(len(holds))).sums(holds)
    return int(sums.max(initial=0)) >= fit.shape.gang_size
