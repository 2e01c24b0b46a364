"""Moves: jobs leave with a checkpoint and resume elsewhere, so that a gang fits that only fragmentation keeps out.

Only for a job that has room reserved already and names its expected time: what is gained is at most its time on its
devices, and no more than it would wait for that room. That must be more than what is lost: of each job that moves the
time since its checkpoint and its restart, on its devices. Every one of them must find room elsewhere now, beside the
others and outside the nodes of the gang, and moves are budgeted by the hour.

One pass works this out for two gangs: the first, and one of the others in turn, by the second.

Who moves is of no higher priority than the gang, has saved a checkpoint before, and is nobody who is protected, in its
cool-down or past its budget of preemptions: a move counts into that.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.barred import RowsFor
from tidegate_scheduler.policy.elastic.departed import Cleared, Departed
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.elastic.domains import domains_of
from tidegate_scheduler.policy.elastic.emptiest import emptiest
from tidegate_scheduler.policy.elastic.entries import Seat
from tidegate_scheduler.policy.elastic.fit import Rows, rows_in, seats
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import Line
from tidegate_scheduler.policy.elastic.rounds import rest_begins_at
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import GPUS
from tidegate_scheduler.policy.elastic.victims import Victims
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import MOVED_WITHIN_NS, Job

NODES_LOOKED_AT_MAX = 32
GAINED_SECONDS_MAX = 24 * 3600


class Moves(msgspec.Struct, frozen=True):
    """The rows of the gang's room, one for each member, who moves for it, and what is gained and lost (GPU-seconds)."""

    rows: Rows
    jobs: tuple[str, ...]
    gained_gpu_seconds: int
    lost_gpu_seconds: int


class _Offer(msgspec.Struct, frozen=True):
    """A row that holds so many `members`, `gain` more than now, once these have moved."""

    row: int
    members: int
    gain: int
    lost: int
    jobs: tuple[Job, ...]


class Defragmentation:
    """Works moves out for one pass."""

    def __init__(self, draft: Draft, index: Index, victims: Victims, barred: RowsFor) -> None:
        """Take `barred` as the rows that a job may not move to."""
        self._draft = draft
        self._index = index
        self._victims = victims
        self._barred = barred
        self._asked = 0
        self.put_off = False
        """Whether moves for the gang that asked last were not worked out, as it was not its turn."""

    def plan(self, job: Job, line: Line, barred: frozenset[int]) -> Moves | None:
        """Return which jobs move so that `job` fits, None where that is not possible or not worth it."""
        self.put_off = False
        gained = self._gained(job, line.fit)
        if gained <= 0 or not _fragmented(line.fit, barred):
            return None
        budget = self._budget()
        if budget <= 0 or not self._has_its_turn():
            return None
        for offers in self._choices(job, line.fit, barred):
            moves = self._moves(line.fit, barred, offers)
            if moves is None or len(moves[1]) > budget:
                continue
            decisions = len(moves[1]) + 1
            # Asking for more room than any pass has would ask for the next pass at once, for ever.
            if decisions > self._draft.parameters.decisions_per_pass_max or not self._draft.has_room_for(decisions):
                continue
            lost = sum(self._lost(each) for each in moves[1])
            if lost < gained and self._find_room(moves[0], moves[1]):
                names = tuple(each.id for each in moves[1])
                return Moves(moves[0], names, gained // WHOLE_MILLIS, lost // WHOLE_MILLIS)
        return None

    def _has_its_turn(self) -> bool:
        """Say whether moves are worked out for who asks now: for the first, and for one of those behind it."""
        others = max(1, self._draft.parameters.reservations_max - 1)  # who asks has room kept
        turn = 1 + rest_begins_at(self._draft.now_ns, others)
        self.put_off = self._asked not in (0, turn)
        self._asked += 1
        return not self.put_off

    # ---- what it is worth ----

    def _gained(self, job: Job, fit: Fit) -> int:
        """Return what is gained at most, in thousandths of a GPU-second."""
        spec, devices = self._draft.state.specs[job.id], fit.shape.need.gpus * fit.shape.gang_size
        if devices < 2 or not spec.expected_seconds or not job.reserved_nodes:
            return 0
        seconds = min(spec.expected_seconds - job.ran_ns // SECOND_NS, GAINED_SECONDS_MAX)
        if job.reserved_start_ns:
            seconds = min(seconds, (job.reserved_start_ns - self._draft.now_ns) // SECOND_NS)
        return seconds * devices * WHOLE_MILLIS

    def _lost(self, job: Job) -> int:
        """Return what a move costs, in thousandths of a GPU-second; a job without devices counts as if it had one."""
        spec, need = self._draft.state.specs[job.id], self._draft.state.floors[job.id]
        since_ns = max(job.started_ns, job.saved_ns)
        seconds = max(0, self._draft.now_ns - since_ns) // SECOND_NS + spec.preemption.restart_seconds
        return seconds * spec.gang_size * ((need.gpus * WHOLE_MILLIS + need.gpu_millis) or WHOLE_MILLIS)

    def _budget(self) -> int:
        """Return how many may still move within this hour; where none may, ask to be woken when one may again."""
        most, moved = self._draft.parameters.defragmentations_per_hour, self._draft.state.header.moved_ns
        recent = [at_ns for at_ns in moved if at_ns > self._draft.now_ns - MOVED_WITHIN_NS]
        if most and len(recent) >= most:
            self._draft.wake_by(recent[-most] + MOVED_WITHIN_NS)
        return most - len(recent)

    # ---- who would have to move ----

    def _choices(self, job: Job, fit: Fit, barred: frozenset[int]) -> list[list[_Offer]]:
        """Return the ways to make room, the cheapest first: on one node, or on several (below one switch)."""
        table, rows = self._index.table, np.arange(len(self._index.table))
        holds = fit.members(table.later, which="later")
        holds[list(barred)] = 0
        able = rows[fit.suits() & ~np.isin(rows, list(barred))]
        numbers = domains_of(fit.shape, table, rows).numbers
        domains: dict[int, list[_Offer]] = {}
        choices: list[list[_Offer]] = []
        for row in emptiest(table, able, NODES_LOOKED_AT_MAX).tolist():
            offers = self._offers(fit, row, job)
            if offers and offers[-1].members >= fit.shape.gang_size:
                choices.append([offers[-1]])
            domains.setdefault(int(numbers[row]), []).extend(offers[:1])
        for domain, offers in domains.items():
            missing, taken = fit.shape.gang_size - int(holds[numbers == domain].sum()), list[_Offer]()
            for offer in sorted(offers, key=lambda each: (each.lost // each.gain, table.names[each.row])):
                if sum(each.gain for each in taken) < missing:
                    taken.append(offer)
            if taken and sum(each.gain for each in taken) >= missing:
                choices.append(taken)
        return sorted(choices, key=lambda offers: (sum(each.lost for each in offers), table.names[offers[0].row]))

    def _movable(self, row: int, job: Job) -> Iterator[Job]:
        for name in self._index.on_row.get(row, ()):
            other = self._draft.state.jobs[name]
            if other.priority <= job.priority and self._may_move(other):
                yield other

    def _may_move(self, job: Job) -> bool:
        if job.stage != "running" or job.id in self._draft.leaving or job.newest_checkpoint is None:
            return False
        if job.held or job.suspend_requested or job.requeue_requested or self._index.share(job.tenant).stopped:
            return False
        return not self._victims.spared(job)

    def _offers(self, fit: Fit, row: int, job: Job) -> list[_Offer]:
        """Return what the row holds more as one after the other leaves it, the cheapest first; the last is the most."""
        gone, found = list[Job](), list[_Offer]()
        with Cleared(self._index, fit, row) as cleared:
            before = members = cleared.members
            for other in sorted(self._movable(row, job), key=lambda each: (self._lost(each), each.id)):
                if members >= fit.shape.gang_size:
                    break
                gone.append(other)
                cleared.leave(other)
                if cleared.members > members:
                    members, lost = cleared.members, sum(self._lost(each) for each in gone)
                    found.append(_Offer(row, members, members - before, lost, tuple(gone)))
        return found

    def _moves(self, fit: Fit, barred: frozenset[int], offers: list[_Offer]) -> tuple[Rows, list[Job]] | None:
        """Return the gang's rows and who moves for them, without those who need not."""
        needed = list({job.id: job for offer in offers for job in offer.jobs}.values())
        with Departed(self._index, needed) as gone:
            rows = rows_in(fit, gone.room, barred, which="later")
            for job in sorted(needed, key=lambda each: (-self._lost(each), each.id)):
                if rows is None or len(needed) == 1:
                    break
                gone.stay(job)
                beside = rows_in(fit, gone.room, barred, which="later")
                if beside is None:
                    gone.leave(job)
                else:
                    needed.remove(job)
                    rows = beside
        return None if rows is None else (rows, needed)

    def _find_room(self, rows: Rows, moving: list[Job]) -> bool:
        """Say whether all of them fit elsewhere now, one beside the other."""
        index, taken = self._index, list[tuple[Job, Seat]]()
        try:
            for job in moving:
                fit = index.fit(index.line_key(job).shape)
                found = rows_in(fit, index.table.now, self._barred(job) | frozenset(rows))
                if found is None:
                    return False
                for seat in seats(index, fit, found):
                    index.table.occupy(seat.row, fit.shape.need, seat.gpu_indices)
                    taken.append((job, seat))
            return True
        finally:
            for job, seat in reversed(taken):
                index.table.vacate(seat.row, self._draft.state.floors[job.id], seat.gpu_indices)


def _fragmented(fit: Fit, barred: frozenset[int]) -> bool:
    """Say whether the nodes that suit the gang have as many free devices as it needs, on too many of them."""
    table = fit.table
    free = np.where(fit.suits(), np.maximum(table.now[GPUS, : len(table)], 0), 0)
    free[list(barred)] = 0
    return int(free.sum()) >= fit.shape.need.gpus * fit.shape.gang_size
