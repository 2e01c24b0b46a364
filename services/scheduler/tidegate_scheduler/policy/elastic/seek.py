"""Where a job finds room in a pass: now, in room that is kept for others, or once those who are leaving have left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic import backfill, fit
from tidegate_scheduler.policy.elastic.domains import narrowest
from tidegate_scheduler.policy.elastic.queue import Line, Turn
from tidegate_scheduler.policy.elastic.sites import Level
from tidegate_scheduler.policy.elastic.spread import ANYWHERE, Locality
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.elastic.yielding import Yielding
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job

_Use = TypeVar("_Use")


class Seek:
    """Looks for room on the tables as the pass has left them so far."""

    def __init__(self, draft: Draft, trial: Trial, yielding: Yielding) -> None:
        self._draft = draft
        self._trial = trial
        self._table = trial.index.table
        self.yielding = yielding
        self._most: tuple[tuple[int, int], list[int]] = ((-1, 0), [])

    def rows(self, job: Job, turn: Turn, reserved: fit.Rows, barred: frozenset[int]) -> fit.Rows | None:
        """Return where the job fits at once: in free room, in room kept for lower ones, in room kept for later."""
        line = turn.line
        locality = self._locality(job, line)
        self._trial.backfills.pop(job.id, None)
        rows = fit.rows_now(line.fit, barred, locality)
        others = self.yielding.to(job, turn) if rows is None else []
        if others and fit.any_roomy(line.fit, [self._trial.promises[other.id] for other in others]):
            rows = self._without(job, others, lambda: fit.rows_now(line.fit, barred, locality))
        if rows is None and reserved and (behind := self.yielding.behind(job, reserved)):
            rows = self._without(
                job,
                behind,
                lambda: fit.rows_in(line.fit, self._table.now, barred, among=set(reserved), locality=locality),
            )
        return rows if rows is not None else backfill.find(self._draft, self._trial, job, line.fit, barred)

    def _locality(self, job: Job, line: Line) -> Locality:
        within = self.waits_within(job, line) if line.key.shape.intensive else None
        near = self._table.rows.get(job.saved_on, -1)
        return ANYWHERE if within is None and near < 0 else Locality(within, near)

    def later(
        self, job: Job, line: Line, reserved: fit.Rows, barred: frozenset[int], use: Callable[[fit.Rows], _Use | None]
    ) -> _Use | None:
        """Return of what use it is where the job fits once the leaving have left, None where it is of none.

        Where room was promised to it before all else.
        """

        if not reserved and not self._trial.left:
            return None  # what will be free is free already
        locality = Locality(near=self._table.rows.get(job.saved_on, -1))

        def on_reserved() -> _Use | None:
            as_it_is = barred.isdisjoint(reserved) and fit.holds_rows(line.fit, self._table.later, reserved)
            if as_it_is and (found := use(reserved)) is not None:
                return found
            rows = fit.rows_in(
                line.fit, self._table.later, barred, among=set(reserved), locality=locality, which="later"
            )
            return use(rows) if rows is not None else None

        if reserved and self._trial.left and (found := on_reserved()) is not None:
            return found
        rows = self._beside_all(line, reserved, barred, locality)
        if rows is not None and (found := use(rows)) is not None:
            return found
        # Those whose room comes after have it still, as the next pass will see it: theirs is what is left then.
        behind = self.yielding.behind(job, reserved) if reserved else []
        return self._trial.beside(behind, on_reserved) if behind else None

    def _beside_all(
        self, line: Line, reserved: fit.Rows, barred: frozenset[int], locality: Locality
    ) -> fit.Rows | None:
        """Return where the job fits then beside all that is promised to others, wherever that is."""
        if not self._trial.left:
            return None
        if line.fit.shape.gang_size == 1 and not reserved:
            if not line.fit.holds_one(self._most_later()):
                return None
            return fit.row_later(line.fit, self._trial.left, barred, locality.near)
        if not fit.may_hold_later(line.fit, self._trial.left):
            return None
        return fit.rows_in(line.fit, self._table.later, barred, locality=locality, which="later")

    def _most_later(self) -> list[int]:
        """Return the most of each amount that there will be on any row that somebody leaves."""
        known = (self._table.changes.position, len(self._trial.left))
        if self._most[0] != known:
            rooms = [self._table.later_on(row) for row in self._trial.left]
            self._most = (known, [max(amounts) for amounts in zip(*rooms, strict=True)])
        return self._most[1]

    def waits_within(self, job: Job, line: Line) -> Level | None:
        """Return within what an intensive gang still waits to be, None where the widest that it may take will do.

        That is the narrowest thing which could hold it when empty.
        """
        if not line.key.shape.intensive or (level := narrowest(line.fit)) is None:
            return None
        spec = self._draft.state.specs[job.id]
        until_ns = max(job.submitted_ns, job.suspended_ns) + spec.locality_wait_seconds * SECOND_NS
        if self._draft.now_ns >= until_ns:
            return None
        self._draft.wake_by(until_ns)
        return level

    def _without(self, job: Job, others: list[Job], find: Callable[[], fit.Rows | None]) -> fit.Rows | None:
        """Return the rows that are found when nothing is promised to the others, to as few of them as will do.

        Whom that costs its room asks anew; whoever comes only when the job will have left keeps it.
        """
        kept: list[tuple[Job, fit.Rows]] = []
        rows = None
        for other in others:
            kept.append((other, self._trial.withdraw(other)))
            if (rows := find()) is not None:
                break
        if rows is None:
            for other, promised in kept:
                self._trial.promise(other, promised)
            return None
        # Whoever lost its room before that was of use has it back, unless it is in the way too.
        for other, promised in reversed(kept[:-1]):
            self._trial.promise(other, promised)
            if (beside := find()) is None:
                self._trial.withdraw(other)
            else:
                rows = beside
        self._give_back(job, kept, rows)
        return rows

    def _give_back(self, job: Job, kept: list[tuple[Job, fit.Rows]], rows: fit.Rows) -> None:
        """Keep for each of the others what was kept, but where the job is in the way when it comes."""
        meanwhile = list[str]()
        for other, promised in kept:
            if other.id in self._trial.promises:
                continue
            apart = set(promised).isdisjoint(rows)
            if apart or self.yielding.leaves_before(job, other):
                self._trial.promise(other, promised)
                meanwhile += [] if apart else [other.id]
            else:
                self.yielding.take(other, job)
        if meanwhile:
            self._trial.backfills[job.id] = tuple(sorted(meanwhile))
