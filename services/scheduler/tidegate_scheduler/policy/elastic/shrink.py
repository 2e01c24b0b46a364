"""Who gives back what it was granted beyond its floor, so that a job finds room without anybody leaving for it.

A borrower is guaranteed its floor. What it has beyond that counts as held, but a job of the same priority or a higher
one, which needs the room for its own floor, comes first: the borrower is told to hand it back, as what is leased is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.coming import returns_within_ns
from tidegate_scheduler.policy.elastic.departed import Freed, Held
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.elastic.fit import Rows, could_hold_by, holds_rows, rows_in
from tidegate_scheduler.policy.elastic.physical import asking_on
from tidegate_scheduler.policy.elastic.recall import recalled_for, tell
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, SHARE, Ints
from tidegate_scheduler.policy.elastic.terms import extra_devices
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.elastic.yielding import Yielding
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job, Member

ROWS_MAX = 256
"""Nodes with borrowers that one pass looks at."""

FOUND_NOTHING_MAX = 8
"""For how many jobs of one pass it is worked out in vain; whoever comes after them has it worked out in its turn."""

_Extra = tuple[int, Job, Member]
"""What a member on a row has beyond its floor."""


class _Extras(msgspec.Struct, frozen=True):
    """Those who may hand back for jobs of one priority; `most` is what they would give back by row, or more."""

    each: list[_Extra]
    rows: Ints
    most: Ints


class Shrunk(msgspec.Struct, frozen=True):
    """Where a job fits when others have handed back, and when that is at the latest."""

    rows: Rows
    back_ns: int


class _Found(msgspec.Struct, frozen=True):
    """Where a job fits when all of these have been handed back."""

    rows: Rows
    needed: list[_Extra]


class Shrinking:
    """The stage in one pass."""

    def __init__(self, draft: Draft, trial: Trial, yielding: Yielding, may_plan: Callable[[Job], bool]) -> None:
        """Take `may_plan`, which says whether it is the turn of a job to have more worked out for it."""
        self._draft = draft
        self._trial = trial
        self._yielding = yielding
        self._may_plan = may_plan
        self._index = trial.index
        self._known: list[_Extra] | None = None
        self._by_priority: dict[tuple[int, int], _Extras] = {}
        self._in_vain = 0

    def ask(self, job: Job, fit: Fit, barred: frozenset[int]) -> Shrunk | None:
        """Tell the fewest to hand back what they have beyond their floors, if the job fits then; else tell nobody."""
        extras = self._extras_for(job)
        if not extras.each:
            return None

        def fits(found: _Found) -> bool:
            with self._handed_back(found.needed) as freed:
                return holds_rows(fit, freed.room, found.rows)

        find = partial(self._find, job, fit, barred, extras)
        found = find() or self._yielding.instead(self._yielding.outranked(job), job, find, fits)
        if found is None:
            return None
        asked = {each.id: each for _, each, _ in found.needed}
        for other in asked.values():
            if other.id not in self._trial.recalled and not any(each.hand_back_ns for each in other.members):
                tell(self._draft, self._trial, other, job.id, beyond=True)
        return Shrunk(found.rows, max([*map(self._back_ns, asked.values()), *self._leave_by(found.rows)]))

    def _leave_by(self, rows: Rows) -> list[int]:
        """Return when those have left who are leaving the rows already, or were asked to in this pass."""
        names = {name for row in rows for name in self._index.on_row.get(row, ())}
        ends = (self._trial.leaves_by_ns(name, self._draft.now_ns) for name in names)
        return [end_ns for end_ns in ends if end_ns is not None]

    def _find(self, job: Job, fit: Fit, barred: frozenset[int], extras: _Extras) -> _Found | None:
        """Return where the job fits, and the fewest of the extras that have to be handed back for that."""
        if not self._may_help(fit, barred, extras):
            return None
        # Who was told to hand back for it goes on doing so, whose turn it ever is.
        told = bool(recalled_for(self._index, job))
        if self._in_vain >= FOUND_NOTHING_MAX and not told and not self._may_plan(job):
            return None
        found = self._fewest(job, fit, barred, extras.each)
        self._in_vain += found is None
        return found

    def _may_help(self, fit: Fit, barred: frozenset[int], extras: _Extras) -> bool:
        """Say whether the job would fit if all that is given back were of use to it."""
        table, rows = self._index.table, extras.rows
        there = table.later[:, rows]
        there[:SHARE] += extras.most
        there[SHARE] = np.where((there[GPUS] > 0) | (extras.most[GPUS] > 0), WHOLE_MILLIS, there[SHARE])
        some = fit.members_in(there, rows, "any")
        if barred:
            some[np.isin(rows, list(barred))] = 0
        if fit.shape.gang_size == 1:
            return bool(some.any())
        holds = fit.members(table.later, which="later")
        holds[rows] = some
        return could_hold_by(fit, holds)

    def _fewest(self, job: Job, fit: Fit, barred: frozenset[int], extras: list[_Extra]) -> _Found | None:
        ground = set(recalled_for(self._index, job))
        rows = self._fits(fit, extras, barred, ground) if ground else None
        if rows is None:
            ground = self._ground(fit, extras)
            rows = self._fits(fit, extras, barred, ground)
            if rows is not None and fit.shape.gang_size > 1:
                extras = self._first_few(fit, extras, barred, ground)
                rows = self._fits(fit, extras, barred, ground)
        if rows is None:
            return None
        needed = [each for each in extras if each[0] in rows]
        with self._handed_back(needed) as freed:
            for name in self._in_turn(needed):
                mine = [each for each in needed if each[1].id == name]
                rest = [each for each in needed if each[1].id != name]
                if not (mine and rest):
                    continue
                for each in mine:
                    freed.keep(_key(each))
                beside = rows_in(fit, freed.room, barred, among=ground if len(rows) > 1 else set(rows), which="later")
                if beside is None:
                    for each in mine:
                        freed.give(_key(each), _held(each))
                    continue
                for each in rest:
                    if each[0] not in beside:
                        freed.keep(_key(each))
                needed, rows = [each for each in rest if each[0] in beside], beside
        # Where nobody hands back it fits without, which is for others to see.
        return _Found(rows, needed) if needed else None

    def _ground(self, fit: Fit, extras: list[_Extra]) -> set[int]:
        """Return the rows on which somebody may hand back; for a gang those too on which other members find room."""
        rows = {row for row, *_ in extras}
        if fit.shape.gang_size > 1:
            rows |= self._trial.left
            rows.update(np.flatnonzero(fit.holds_now()).tolist())
        return rows

    def _first_few(self, fit: Fit, extras: list[_Extra], barred: frozenset[int], ground: set[int]) -> list[_Extra]:
        """Return the extras of as few as will do, of those who are first to hand back."""
        names = self._in_turn(extras)[::-1]

        def of_first(count: int) -> list[_Extra]:
            first = set(names[:count])
            return [each for each in extras if each[1].id in first]

        counts = range(len(names))
        return of_first(
            bisect_left(counts, True, key=lambda count: bool(self._fits(fit, of_first(count), barred, ground)))
        )

    def _extras(self) -> list[_Extra]:
        if self._known is None:
            index = self._index
            rows = sorted(index.asking.on_row, key=index.table.names.__getitem__)[:ROWS_MAX]
            self._known = [
                (row, job, member) for row in rows for job, member in asking_on(index, row) if member.extra is not None
            ]
        return self._known

    def _extras_for(self, job: Job) -> _Extras:
        """Return those who may hand back for the job."""
        key = (job.priority, len(self._draft.leaving))
        if (known := self._by_priority.get(key)) is None:
            each = [extra for extra in self._extras() if self._gives(extra[1], job)]
            rows = sorted({row for row, *_ in each})
            place, most = {row: number for number, row in enumerate(rows)}, np.zeros((SHARE, len(rows)), np.int64)
            for extra in each:
                for row, more, devices in _held(extra):
                    most[CPU, place[row]] += more.cpu_millis
                    most[MEMORY, place[row]] += more.memory_mib
                    most[GPUS, place[row]] += len(devices)
            known = self._by_priority[key] = _Extras(each, np.array(rows, np.int64), most)
        return known

    def _gives(self, other: Job, job: Job) -> bool:
        stays = other.stage in ("placed", "running") and other.id not in self._draft.leaving
        return stays and other.priority <= job.priority

    def _fits(self, fit: Fit, extras: list[_Extra], barred: frozenset[int], among: set[int]) -> Rows | None:
        with self._handed_back([each for each in extras if each[0] in among]) as freed:
            return rows_in(fit, freed.room, barred, among=among, which="later")

    def _handed_back(self, extras: list[_Extra]) -> Freed:
        """Return what there will be once these have handed back."""
        freed = Freed(self._index.table)
        for each in extras:
            freed.give(_key(each), _held(each))
        return freed

    def _in_turn(self, extras: list[_Extra]) -> list[str]:
        """Return who keeps what it has if that may be: who was not told before, of those who had it granted first."""
        found = {
            job.id: (any(each.hand_back_ns for each in job.members), member.leased_ns) for _, job, member in extras
        }
        return sorted(found, key=lambda name: (*found[name], name))

    def _back_ns(self, job: Job) -> int:
        told = [each.hand_back_ns for each in job.members if each.active and each.hand_back_ns]
        if not told:
            return self._draft.now_ns + returns_within_ns(self._index, job)
        return max(self._draft.now_ns, *told) + self._index.state.specs[job.id].preemption.grace_seconds * SECOND_NS


def _key(extra: _Extra) -> tuple[int, str, int]:
    row, job, member = extra
    return row, job.id, member.rank


def _held(extra: _Extra) -> list[Held]:
    row, _, member = extra
    return [(row, member.extra, extra_devices(member))] if member.extra is not None else []
