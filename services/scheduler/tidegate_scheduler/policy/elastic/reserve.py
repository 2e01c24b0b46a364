"""Room that is kept for a blocked job which nobody leaves for, and who may use it until then.

The reservation is durable: it stands in the journal until the job is placed or ends, or its nodes go away. It is made
where the job fits earliest by what those who hold room there have declared: the hard ends (time limits) of running
attempts, the deadlines of those who are leaving. Others may use the room meanwhile if their own time limit ends before.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec
import numpy as np

from tidegate_scheduler.policy.elastic.devices_then import DevicesThen, Part, millis_of
from tidegate_scheduler.policy.elastic.fit import Rows, rows_in
from tidegate_scheduler.policy.elastic.holders import NEVER, Until, until, untils_tried
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.soonest import Candidates, soonest
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, Ints
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job

NODES_LOOKED_AT_MAX = 16
"""Nodes of one reservation beyond what its gang needs at least: the emptiest of those that hold it first."""

SLIP_NS = 60 * SECOND_NS
"""A start is told anew when it is so much later than was told, so it is told no more often than time passes."""

AFTER_ALL = NEVER + 1
DEVICES_ANY = 1 << 20


class Reservation(msgspec.Struct, frozen=True):
    """The rows, one for each member, and when they are expected to be free; 0 where that is not known."""

    rows: Rows
    start_by_ns: int


def reserve(trial: Trial, now_ns: int, job: Job, fit: Fit, barred: frozenset[int]) -> Reservation | None:
    """Return where room for the job comes free first of all nodes, None where it never would."""
    suits = fit.suits()
    if barred:
        suits = suits.copy()
        suits[list(barred)] = False
    looked_at = NODES_LOOKED_AT_MAX + fit.shape.gang_size
    if np.count_nonzero(suits) <= looked_at:
        return _first(trial, now_ns, job, fit, Candidates(np.flatnonzero(suits).tolist()))
    holders = trial.index.holders
    holders.refresh(trial, untils_tried(trial, now_ns, job))
    found = soonest(holders, now_ns, fit, suits, looked_at)
    first = _first(trial, now_ns, job, fit, found) if found is not None else None
    if first is None and found is not None and (mixed := list(trial.index.table.mixed)):
        # Where devices differ, those that come free may be others than the job needs.
        suits = suits.copy()
        suits[mixed] = False
        found = soonest(holders, now_ns, fit, suits, looked_at)
        first = _first(trial, now_ns, job, fit, found) if found is not None else None
    return first


def first_on(trial: Trial, now_ns: int, job: Job, fit: Fit, rows: Rows) -> Reservation | None:
    """Return when the job fits on these rows first, and how it lies on them then."""
    return _first(trial, now_ns, job, fit, Candidates(sorted(set(rows))))


def may_be_known(trial: Trial, rows: Rows) -> bool:
    """Say whether anybody on these rows has an end that is known; else `first_on` knows no start there."""
    index = trial.index
    return any(until(index, name).ends_ns < NEVER for row in set(rows) for name in index.on_row.get(row, ()))


def slips(told_ns: int, start_ns: int) -> bool:
    """Say whether a start that was told has become so much later, or unknown, that it is told anew."""
    return bool(told_ns) and (not start_ns or start_ns >= told_ns + SLIP_NS)


def _first(trial: Trial, now_ns: int, job: Job, fit: Fit, among: Candidates) -> Reservation | None:
    """Return the first moment at which the job fits on the candidates, and where, None where there is none.

    It is not before now, and not before those have left whose room is counted as free later. Whoever fits already and
    yet waits does so for what nobody knows: at moment 0.
    """
    index, candidates, begin_ns = trial.index, among.rows, among.not_before_ns
    ends = _ends(trial, now_ns, candidates, job)
    held, devices = _held(trial, ends, set(candidates)), _devices(trial, ends, candidates)
    moments = [0, *np.unique(held.ends_ns).tolist()]
    later = index.table.later
    room = np.empty_like(later)  # nobody looks at other rows

    def rows_at(moment: int) -> Rows | None:
        room[:, candidates] = later[:, candidates]
        # Who goes is counted as gone in what is free later, until it is; all others as there.
        counts = (held.ends_ns <= moment).astype(np.int64) - held.goes
        for amount in (CPU, MEMORY, GPUS):
            np.add.at(room[amount], held.rows, counts * held.amounts[amount])
        devices.put(fit, room, moment, largest=True)
        return rows_in(fit, room, among=candidates, which="counted")

    # The more have left, the more fits: the first moment at which it does is found by halving, unless it is the first
    # at which some row has enough for a member.
    if begin_ns is None:
        begin_ns = _first_for_one(fit, later, held, np.array(candidates, np.int64), list(devices.rows))
    begin = bisect_left(moments, begin_ns)
    if begin == len(moments):
        return None
    found = rows_at(moments[begin])
    if found is None:
        begin = bisect_left(moments, True, begin + 1, key=lambda moment: rows_at(moment) is not None)
        if begin == len(moments):
            return None
        found = rows_at(moments[begin])
    assert found is not None, "it fits at the moment that was found"
    return Reservation(found, 0 if moments[begin] >= NEVER else moments[begin])


def _first_for_one(fit: Fit, later: Ints, held: _Held, rows: Ints, parted: list[int]) -> int:
    """Return the first moment at which a row has enough for one member by whole amounts: before, none fits.

    Where devices differ, or parts of them were given away, they are not looked at.
    """
    order = np.lexsort((held.ends_ns, held.rows))
    on_row, amounts, goes = held.rows[order], held.amounts[:, order], held.goes[order]
    without = later[: GPUS + 1].copy()  # as now: who goes is counted as gone in what is free later
    for amount in (CPU, MEMORY, GPUS):
        np.subtract.at(without[amount], on_row, amounts[amount] * goes)
    without[GPUS, parted] = DEVICES_ANY
    if bool(fit.enough(without[:, rows]).any()):
        return 0
    gained = np.cumsum(amounts, axis=1)
    begins = np.searchsorted(on_row, on_row)
    gained -= gained[:, begins] - amounts[:, begins]
    able = fit.enough(without[:, on_row] + gained)
    return int(held.ends_ns[order][able].min(initial=AFTER_ALL))


_Ends = dict[str, Until]


def _ends(trial: Trial, now_ns: int, rows: list[int], for_job: Job) -> _Ends:
    """Return until when those hold room who are on the rows, which is not before now."""
    index, tried, found = trial.index, untils_tried(trial, now_ns, for_job), _Ends()
    for name in {name for row in rows for name in index.on_row.get(row, ())}:
        known = tried.get(name) or until(index, name)
        found[name] = Until(max(now_ns, known.ends_ns), known.goes)
    return found


class _Held(msgspec.Struct, frozen=True):
    """What members hold, as the table's amounts, on which row, until when; 1 where it `goes`, as it is leaving."""

    rows: Ints
    amounts: Ints
    ends_ns: Ints
    goes: Ints


def _held(trial: Trial, ends: _Ends, among: set[int]) -> _Held:
    """Return what these jobs hold on the rows."""
    index, found = trial.index, list[tuple[int, int, int, int, int, int]]()
    for name, end in ends.items():
        floor = index.state.floors[name]
        for seat in index.seats_of(name):
            if seat.row in among:
                need = seat.holds(floor)
                gpus = need.gpus or (1 if need.gpu_millis else 0)
                found.append((need.cpu_millis, need.memory_mib, gpus, seat.row, end.ends_ns, end.goes))
    columns = np.array(found, np.int64).reshape(-1, 6).T
    return _Held(columns[3], columns[: GPUS + 1], columns[4], columns[5])


def _devices(trial: Trial, ends: _Ends, candidates: list[int]) -> DevicesThen:
    """Return who holds what of which devices, on the rows where that matters: where they differ, or are parted."""
    index, table = trial.index, trial.index.table
    found = DevicesThen(table, without_leaving=True)
    for row in candidates:
        if table.devices[row].parts or row in table.mixed:
            found.add(row)
            if table.devices[row].promised:
                found.keep(row)
            for name in index.on_row.get(row, ()):
                for seat in index.seats_of(name):
                    if seat.row == row:
                        millis, end = millis_of(seat.holds(index.state.floors[name])), ends[name]
                        found.hold(row, [Part(each, millis, end.ends_ns, end.goes) for each in seat.gpu_indices])
    return found
