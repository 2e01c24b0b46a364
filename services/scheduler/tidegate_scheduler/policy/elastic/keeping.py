"""For whom room is kept in a pass, where, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidegate_events import events as e

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.fit import Rows, holds_rows
from tidegate_scheduler.policy.elastic.queue import Line
from tidegate_scheduler.policy.elastic.reasons import Waiting, shortage
from tidegate_scheduler.policy.elastic.reserve import SLIP_NS, Reservation, first_on, may_be_known, reserve, slips
from tidegate_scheduler.policy.elastic.seek import Seek
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.room_changes import rests_until_ns
from tidegate_scheduler.state import Job


class Keeping:
    """Keeps room in one pass; `may_plan` says whether one more place for a job may be worked out."""

    def __init__(
        self, draft: Draft, trial: Trial, waiting: Waiting, seek: Seek, may_plan: Callable[[Job], bool]
    ) -> None:
        self._draft = draft
        self._trial = trial
        self._index = trial.index
        self._table = trial.index.table
        self._waiting = waiting
        self._seek = seek
        self._yielding = seek.yielding
        self._may_plan = may_plan

    def usable(self, reserved: Rows, barred: frozenset[int]) -> bool:
        """Say whether the job may use room that is kept for it, when that comes free."""
        return all(self._table.open[row] for row in reserved) and barred.isdisjoint(reserved)

    def once_left(self, job: Job, line: Line, reserved: Rows, barred: frozenset[int]) -> Reservation | None:
        """Return where the job fits once the leaving have left, None where it does not or has no use for that.

        Where it finds nothing beside all that is kept, those whom it outranks lose theirs, as few as will do.
        Room that is kept from a time that was told moves only to where it comes free sooner: so no two jobs swap
        theirs for ever, since with each change somebody's start comes closer.
        """
        told_ns, now_ns = job.reserved_start_ns, self._draft.now_ns
        bound = bool(told_ns) and self.usable(reserved, barred)

        def found_on(rows: Rows) -> Reservation | None:
            found = first_on(self._trial, now_ns, job, line.fit, rows)
            if found is None or not bound:
                return found
            for same in (rows, found.rows):  # as was told, also if it is promised to nobody at this moment
                if self._nodes(same) == sorted(job.reserved_nodes):
                    return Reservation(same, found.start_by_ns)
            return found if 0 < found.start_by_ns < told_ns else None

        later = partial(self._seek.later, job, line, reserved, barred, found_on)
        if (found := later()) is not None or not self._trial.left:
            return found
        promises, left = self._trial.promises, self._trial.left
        others = [other for other in self._yielding.outranked(job) if not left.isdisjoint(promises[other.id])]
        if not others:
            return None
        return self._yielding.instead(
            others, job, later, lambda found: holds_rows(line.fit, self._table.later, found.rows)
        )

    def stay(self, job: Job, line: Line, reserved: Rows, barred: frozenset[int]) -> None:
        """Keep the room that is kept; if it comes free later than was told, keep other room, or say when it does.

        Also where nobody knew when that is, and it is known now.
        """
        told_ns, now_ns = job.reserved_start_ns, self._draft.now_ns
        start_ns = told_ns
        # Who was placed there in this pass, or asked to leave, is known when that was recorded.
        if (told_ns or may_be_known(self._trial, reserved)) and self._trial.touched.keys().isdisjoint(reserved):
            behind = self._yielding.after(told_ns) if told_ns else []
            first = self._trial.beside(behind, lambda: first_on(self._trial, now_ns, job, line.fit, reserved))
            start_ns = first.start_by_ns if first is not None else 0
        found = Reservation(reserved, start_ns)
        if slips(told_ns, start_ns) and self._may_plan(job):
            other = reserve(self._trial, now_ns, job, line.fit, barred)
            if other is not None and other.start_by_ns and slips(other.start_by_ns, start_ns):
                found = other
        self.keep(job, line, found.rows, found.start_by_ns)

    def reserve(self, job: Job, line: Line, barred: frozenset[int]) -> None:
        """Keep room for the job where it comes free first, if that many may be kept."""
        found, why = None, f"room is kept for {self._draft.parameters.reservations_max} in front of it"
        if self.may_keep():
            if self._may_plan(job):
                found = self._anew(job, line, barred) or self._after_all(job, line, barred)
            elif self.usable(told := self._told(job), barred):
                found = Reservation(told, job.reserved_start_ns) if told else None  # until it has its turn
            taker = self._yielding.lost_to.get(job.id)
            why = "NoNode" if taker is None else f"{taker.id} has it, and is in front of it"
        if found is not None:
            self.keep(job, line, found.rows, found.start_by_ns)
            return
        self.release(job, why)
        self._waiting.of_line(line, None)

    def rests(self, job: Job, line: Line, reserved: Rows, barred: frozenset[int]) -> bool:
        """Leave what is kept for the job as it is for a while, if it changed often in a row; say whether that is so."""
        until_ns = rests_until_ns(job, self._draft.now_ns)
        if until_ns is None:
            return False
        self._draft.wake_by(until_ns)
        if reserved and self.usable(reserved, barred) and self.may_keep():
            self.keep(job, line, reserved, job.reserved_start_ns)
            return True
        if reserved:
            self.release(job, "others are in front of it, or its nodes are closed to it, and it changed often")
        self._waiting.of_line(line, None)
        return True

    def may_keep(self) -> bool:
        """Say whether one more reservation is allowed: of those whose turn comes later, who has one may lose it."""
        return self._yielding.kept < self._draft.parameters.reservations_max

    def _anew(self, job: Job, line: Line, barred: frozenset[int]) -> Reservation | None:
        """Return where room for the job comes free first; one that was told a start does not lose it to later ones."""
        told_ns, now_ns = job.reserved_start_ns, self._draft.now_ns
        behind = self._yielding.after(told_ns) if told_ns else []
        return self._trial.beside(behind, lambda: reserve(self._trial, now_ns, job, line.fit, barred))

    def _after_all(self, job: Job, line: Line, barred: frozenset[int]) -> Reservation | None:
        """Return room that is kept for others too: nobody knows when it comes, but then whose turn is first has it."""
        others = self._yielding.others()
        if not others:
            return None
        now_ns = self._draft.now_ns
        found = self._trial.beside(others, lambda: reserve(self._trial, now_ns, job, line.fit, barred))
        return Reservation(found.rows, 0) if found is not None else None

    def left_by(self, rows: Rows, victims: tuple[str, ...]) -> int:
        """Return when those who are leaving the rows, and the victims, have left at the latest."""
        now_ns, on_row = self._draft.now_ns, self._index.on_row
        ends = [now_ns]
        for name in (*victims, *(each for row in rows for each in on_row.get(row, ()))):
            if (left_ns := self._trial.leaves_by_ns(name, now_ns)) is not None:
                ends.append(left_ns)
            elif name in victims:
                ends.append(now_ns + self._draft.state.specs[name].preemption.grace_seconds * SECOND_NS)
        return max(ends)

    def keep(self, job: Job, line: Line, rows: Rows, start_by_ns: int) -> None:
        """Promise the rows to the job, and say so where they are others, or come free when was not told."""
        nodes = tuple(self._table.names[row] for row in rows)
        is_news = slips(job.reserved_start_ns, start_by_ns) or (start_by_ns and not job.reserved_start_ns)
        if is_news or self._nodes(rows) != sorted(job.reserved_nodes):
            reason = shortage(self._index, line.fit, promises=self._trial.promises)
            self._draft.add(e.RoomReserved, job, reason, nodes=nodes, start_by_ns=start_by_ns)
        elif job.reserved_start_ns and (due_ns := job.reserved_start_ns + SLIP_NS) > self._draft.now_ns:
            # If nobody has left by then, it is told anew. Where that is over, it waits for a pass that plans for it.
            self._draft.wake_by(due_ns)
        self.hold(job, rows)

    def hold(self, job: Job, rows: Rows) -> None:
        """Promise the rows to the job in this pass, whether that is told or the pass is too full for it."""
        self._waiting.for_room(job, rows)
        self._trial.promise(job, rows)
        self._yielding.served.add(job.id)

    def release(self, job: Job, why: str) -> None:
        """Say that nothing is kept for the job any more, where something was."""
        if job.reserved_nodes:
            self._draft.add(e.RoomReserved, job, e.Reason(code="Released", detail=why), nodes=())

    def _told(self, job: Job) -> Rows:
        """Return the rows of the room that was told to be kept for the job, none where a node of them is gone."""
        rows = self._table.rows
        told = tuple(rows[node] for node in job.reserved_nodes if node in rows)
        return told if len(told) == len(job.reserved_nodes) else ()

    def _nodes(self, rows: Rows) -> list[str]:
        return sorted(self._table.names[row] for row in rows)
