"""Where a whole gang finds room: all members or none, on the tightest nodes, so that whole nodes stay whole.

Which of them that are equally tight: the one that has the job's checkpoint, then the first by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from tidegate_scheduler.policy.elastic import spread
from tidegate_scheduler.policy.elastic.devices import Which
from tidegate_scheduler.policy.elastic.domains import bounded, domains_of, levels
from tidegate_scheduler.policy.elastic.entries import Seat
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.peaks import Asked
from tidegate_scheduler.policy.elastic.shapes import NOWHERE, PLACE_BITS, Fit
from tidegate_scheduler.policy.elastic.spread import ANYWHERE, Ground, Locality
from tidegate_scheduler.policy.elastic.table import Ints

Rows = spread.Rows


def rows_now(fit: Fit, barred: frozenset[int], locality: Locality = ANYWHERE) -> Rows | None:
    """Return the rows on which the gang fits at once, None where it does not."""
    if fit.nowhere():
        return None
    rows = _row_now(fit, barred, locality.near) if fit.shape.gang_size == 1 else _rows_now(fit, barred, locality)
    if rows is None and not (barred or locality.within):
        fit.found_nowhere()
    return rows


def _row_now(fit: Fit, barred: frozenset[int], near: int) -> Rows | None:
    score = fit.score()
    if barred:
        score = score.copy()
        score[list(barred)] = NOWHERE
    row = int(score.argmin()) if len(score) else -1
    if row < 0 or score[row] == NOWHERE:
        return None
    as_tight = 0 <= near < len(score) and score[near] >> PLACE_BITS == score[row] >> PLACE_BITS
    return (near,) if as_tight else (row,)


def _rows_now(fit: Fit, barred: frozenset[int], locality: Locality) -> Rows | None:
    holds = fit.holds_now()
    if barred:
        holds = holds.copy()
        holds[list(barred)] = 0
    ground = Ground(fit, fit.table.now, np.arange(len(holds)), holds, locality.near, is_now=not barred)
    return _chosen(ground, locality)


def row_later(fit: Fit, left: set[int], barred: frozenset[int], near: int = -1) -> Rows | None:
    """Return the row of `left` on which one member fits once those who leave it have left; elsewhere it fits now."""
    if not _holds_later(fit, left):
        return None
    rows = np.array(sorted(left - barred), np.int64)
    able = rows[fit.members(fit.table.later, rows, "later") > 0]
    return (spread.tightest(fit, fit.table.later, able, near),) if len(able) else None


def may_hold_later(fit: Fit, left: set[int]) -> bool:
    """Say whether, by the number of members alone, the gang could fit once those who leave `left` have left."""
    if not _holds_later(fit, left) and (not fit.shape.intensive or fit.nowhere()):
        return False  # elsewhere it is the room that there is now, in which it does not fit
    rows = np.fromiter(left, np.int64, len(left))
    now = fit.holds_now()
    more = fit.members(fit.table.later, rows, "later")
    return int(now.sum() - now[rows].sum() + more.sum()) >= fit.shape.gang_size


def _holds_later(fit: Fit, left: set[int]) -> bool:
    """Say whether one of the rows has enough for a member once those who leave it have left."""
    return any(map(fit.holds_one, map(fit.table.later_on, left)))


def rows_in(
    fit: Fit,
    room: Ints,
    barred: Collection[int] = (),
    *,
    among: Collection[int] | None = None,
    locality: Locality = ANYWHERE,
    which: Which = "now",
) -> Rows | None:
    """Return the rows (of those `among`, where that is given) on which the gang fits into `room`, None where on none.

    An intensive gang goes to one node, else below one switch, else, where it may, to one rack, that with the least left
    over; a strict one to nodes of one CPU model. A loose one stays together where that costs no whole nodes.
    """
    rows = np.arange(len(fit.table)) if among is None else np.array(sorted(among), np.int64)
    holds = fit.members(room, rows, which)
    if barred:
        holds[np.isin(rows, list(barred))] = 0
    return _chosen(Ground(fit, room, rows, holds, locality.near), locality)


def holds_rows(fit: Fit, room: Ints, rows: Rows) -> bool:
    """Say whether the gang fits on just these rows in what there will be, so many members on each as they name."""
    there = sorted(set(rows))
    holds = fit.members(room, np.array(there, np.int64), "later")
    return all(int(held) >= rows.count(row) for row, held in zip(there, holds, strict=True))


def _chosen(ground: Ground, locality: Locality) -> Rows | None:
    """Return where the gang goes, None where there is no room for it."""
    fit, size = ground.fit, ground.fit.shape.gang_size
    if int(ground.holds.sum()) < size:
        return None
    if fit.shape.intensive:
        whole = ground.rows[ground.holds >= size]
        if len(whole):
            return (spread.tightest(fit, ground.room, whole, ground.near),) * size
    grounds = ground.by_peaks()
    for level in levels(fit.shape, locality.within):
        for each in grounds:
            inside = each.tightest_domain(level)
            if inside is None:
                continue
            if level == "switch":
                return inside.filled()
            return spread.few_switches(inside) if level == "rack" else spread.close_by(inside)
    return None


def seats(index: Index, fit: Fit, rows: Rows) -> tuple[Seat, ...]:
    """Return the members' seats on the rows, with the devices that each of them gets. They must fit at once."""
    table, shape = index.table, fit.shape
    if not (shape.need.gpus or shape.need.gpu_millis):
        return tuple(Seat(row, ()) for row in rows)
    if len(rows) == 1:
        return (Seat(rows[0], table.take(rows[0], shape.need, shape.gpu_models, fit.share_millis)),)
    taken: list[Seat] = []
    more_millis = fit.share_millis - shape.need.gpu_millis
    for row in rows:
        seat = Seat(row, table.take(row, shape.need, shape.gpu_models, fit.share_millis))
        table.occupy(row, shape.need, seat.gpu_indices)
        taken.append(seat)
        if more_millis:
            table.peaks.add(Asked(row, (0, 0, more_millis), seat.gpu_indices[0]))
    for seat in taken:
        table.vacate(seat.row, shape.need, seat.gpu_indices)
        if more_millis:
            table.peaks.add(Asked(seat.row, (0, 0, more_millis), seat.gpu_indices[0]), -1)
    return tuple(taken)


def any_roomy(fit: Fit, rooms: Iterable[Rows]) -> bool:
    """Say whether nobody holds so much of one of the rows that no member would fit, whatever is promised there."""
    need, free_on = fit.shape.need, fit.table.free_on
    cpu_needed, memory_needed, gpus_needed, gpu_millis = need.cpu_millis, need.memory_mib, need.gpus, need.gpu_millis
    for rows in rooms:
        for row in rows:
            cpu_millis, memory_mib, gpus, share = free_on(row)
            if cpu_needed > cpu_millis or gpus_needed > gpus or memory_needed > memory_mib:
                continue
            if not gpu_millis or gpus > 0 or share >= gpu_millis:
                return True
    return False


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
