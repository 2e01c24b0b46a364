"""What a pass tries on the tables, so that each of its decisions sees the earlier ones; taken back at its end.

But for what it placed, where it was decided: that is left for the index, which would enter the same when it is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from tidegate_events.events import Quota
from tidegate_events.resources import Resources
from tidegate_events.spec import DEFAULT_PHASE

from tidegate_scheduler.policy.elastic.entries import Seat, held_by
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import amounts, plus
from tidegate_scheduler.policy.elastic.table import Kept
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job

_Found = TypeVar("_Found")


class Trial:
    """Changes of one pass to an index; `undo` takes all of them back."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.touched: dict[int, None] = {}
        self._left_on: dict[int, None] = {}
        self._undo: list[Callable[[], None]] = []
        self._placed: list[tuple[Job, tuple[Seat, ...]]] = []
        self.asked: set[str] = set()
        self.left: set[int] = set(index.left)
        """The rows that somebody leaves."""

        self.awaited_mib: dict[int, int] = {}
        """By row the memory that simulators shall give back to jobs which would be placed there but for that."""

        self.backfills: dict[str, tuple[str, ...]] = {}
        """By job that is let into room that is kept, for whom it is kept."""

        self.awaited_by: dict[int, list[str]] = {}
        """By row the jobs that would be placed there if others gave back what they have of it."""

        self.recalled: set[str] = set()
        """Who was told in this pass to hand back what it has beyond its floor."""

        self.promises: dict[str, tuple[int, ...]] = {}
        """The rows of the room that is promised, one for each member, by job."""

        for name in index.reserving:
            job = index.state.jobs[name]
            rows = index.table.rows
            self.promises[name] = tuple(rows[node] for node in job.reserved_nodes if node in rows)
        self._promised = dict(self.promises)

    def undo(self) -> None:
        """Take everything back."""
        self.back_to(0)
        for job, seats in self._placed:
            self._hold(job, seats, self.index.state.floors[job.id], -1)
            self.index.unshared |= dict.fromkeys([seat.row for seat in seats])
        self._placed.clear()

    def leave_placed(self, quotas: Mapping[tuple[str, int], tuple[Quota, ...]]) -> None:
        """Take everything back but what was placed, which is decided with these quotas by job and rank."""
        self.back_to(0)
        for job, seats in self._placed:
            members = [(DEFAULT_PHASE, quotas[job.id, rank]) for rank in range(len(seats))]
            self.index.expect(job, seats, members, backfills=bool(self.backfills.get(job.id)))
        self._placed.clear()

    @property
    def mark(self) -> int:
        """Return the point that `back_to` goes back to."""
        return len(self._undo)

    def back_to(self, mark: int) -> None:
        """Take back what was tried since the mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def hold(self, job: Job, row: int, extra: Resources, gpu_indices: tuple[int, ...]) -> None:
        """Let a member that is there hold more on its row."""
        self._hold(job, (Seat(row, gpu_indices),), extra, 1)
        self._undo.append(lambda: self._hold(job, (Seat(row, gpu_indices),), extra, -1))

    def place(self, job: Job, seats: tuple[Seat, ...]) -> None:
        """Let the members of the job have their seats."""
        self._hold(job, seats, self.index.state.floors[job.id], 1)
        self._placed.append((job, seats))
        for seat in seats:
            self.touched[seat.row] = None

    def _hold(self, job: Job, seats: tuple[Seat, ...], need: Resources, sign: int) -> None:
        """Let the job hold so much on each of the seats, or with `sign` -1 no longer."""
        table, share = self.index.table, self.index.share(job.tenant)
        move = table.occupy if sign > 0 else table.vacate
        for seat in seats:
            move(seat.row, need, seat.gpu_indices)
        share.used = plus(share.used, amounts(need, len(seats)), sign)

    def ask_to_leave(self, job: Job) -> None:
        """Count the room of the job as free later, once."""
        if job.id in self.asked or self.index.leaving(job.id):
            return
        self.asked.add(job.id)
        need, seats = self.index.state.floors[job.id], self.index.seats_of(job.id)
        share = self.index.share(job.tenant)
        before = share.leaving
        share.leaving = plus(before, held_by(need, seats))
        self._undo.append(lambda: setattr(share, "leaving", before))
        for seat in seats:
            self._let_leave(seat.row, seat.holds(need), seat.gpu_indices)
            self.left.add(seat.row)
            self.touched[seat.row] = self._left_on[seat.row] = None

    def _let_leave(self, row: int, need: Resources, indices: tuple[int, ...]) -> None:
        table = self.index.table
        table.leave(row, need, indices)
        self._undo.append(lambda: table.stay(row, need, indices))

    def leaves_by_ns(self, name: str, now_ns: int) -> int | None:
        """Return when a job that leaves, or was asked to in this pass, has left at the latest; None: it stays."""
        if self.index.leaving(name):
            return self.index.state.jobs[name].deadline_ns
        if name not in self.asked:
            return None
        return now_ns + self.index.state.specs[name].preemption.grace_seconds * SECOND_NS

    # ---- promises ----

    def promise(self, job: Job, rows: tuple[int, ...]) -> None:
        """Promise the job room for one member on each of the rows."""
        kept = self.index.kept_for(job.id)
        for row in rows:
            self._keep(row, kept)
        self._remember(job.id, rows)

    def withdraw(self, job: Job) -> tuple[int, ...]:
        """Promise the job nothing more; return the rows of what was promised."""
        rows = self.promises.pop(job.id, ())
        if rows:
            kept = self.index.kept_for(job.id)
            for row in rows:
                self._release(row, kept)
        return rows

    def beside(self, others: list[Job], find: Callable[[], _Found]) -> _Found:
        """Return what is found while nothing is promised to the others, who keep theirs."""
        kept = [(other, self.withdraw(other)) for other in others]
        found = find()
        for other, promised in kept:
            self.promise(other, promised)
        return found

    def promised(self) -> list[Job]:
        """Return the jobs that room is promised to, in a total order."""
        jobs = [self.index.state.jobs[name] for name in self.promises]
        return sorted(jobs, key=lambda job: (job.submitted_seq, job.id))

    def changed(self) -> set[int]:
        """Return the rows on which this pass changed who is there or what is promised."""
        return self.touched.keys() | self.disturbed()

    def disturbed(self) -> set[int]:
        """Return those of them on which it did not only place somebody."""
        rows = set(self._left_on) | self.awaited_mib.keys()
        for job in self.promises.keys() | self._promised.keys():
            now, before = self.promises.get(job, ()), self._promised.get(job, ())
            if now != before:
                rows.update(now, before)
        return rows

    def _remember(self, job: str, rows: tuple[int, ...]) -> None:
        if rows:
            self.promises[job] = rows
        else:
            self.promises.pop(job, None)

    def _keep(self, row: int, kept: Kept) -> None:
        self.index.table.promise(row, kept)
        self._undo.append(lambda: self.index.table.release(row, kept))

    def _release(self, row: int, kept: Kept) -> None:
        self.index.table.release(row, kept)
        self._undo.append(lambda: self.index.table.promise(row, kept))
