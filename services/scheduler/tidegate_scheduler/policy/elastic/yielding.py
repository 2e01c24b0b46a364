"""Whose room a job may have that is kept for others: of those below it, of those whose room comes free only later, and
of those whose turn comes after its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.backfill import stays_ns
from tidegate_scheduler.policy.elastic.fit import Rows, any_roomy
from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.queue import Turn, aged, amounts
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job, State

_Found = TypeVar("_Found")


class Yielding:
    """Judges what is promised in one pass; `asked` are the jobs whose turn has come, `served` those with room kept."""

    def __init__(self, draft: Draft, trial: Trial) -> None:
        self._draft = draft
        self._trial = trial
        self.asked: set[str] = set()
        self.served: set[str] = set()
        self.lost_to: dict[str, Job] = {}
        """By job that lost the room that was kept for it in this pass, who has that."""

        self._later: list[str] | None = None

    def to(self, job: Job, turn: Turn) -> list[Job]:
        """Return those whose room the job may have, wherever that is, whoever loses it first in front."""
        promises, jobs, asked = self._trial.promises, self._draft.state.jobs, self.asked
        # Most have had their turn, or know when their room comes: those are passed by at a glance, for each that asks.
        may = [
            other
            for name in promises
            if (other := jobs[name]).priority < job.priority or not (name in asked or other.reserved_start_ns)
        ]
        if not may or not any_roomy(turn.line.fit, promises.values()):
            return []  # it is of no use
        need = _whole(self._draft.state, job)
        found = [other for other in may if self._lower(other, job, turn.level) or self._later_in_turn(other, need)]
        return sorted(found, key=_loses)

    def may_lose(self) -> bool:
        """Say whether room is kept for one whose turn has not come, at no known time: who needs more may have that."""
        jobs, asked, promises = self._draft.state.jobs, self.asked, self._trial.promises
        if self._later is None:  # who is promised room in this pass has been asked
            self._later = [name for name in promises if not jobs[name].reserved_start_ns]
        while self._later and (self._later[-1] in asked or self._later[-1] not in promises):
            self._later.pop()
        return bool(self._later)

    def instead(
        self, others: list[Job], job: Job, find: Callable[[], _Found | None], fits: Callable[[_Found], bool]
    ) -> _Found | None:
        """Return what is found for the job while nothing is kept for the others, of whom the first loses it first.

        Whoever has room beside it, as `fits` says, has it back, and so has everybody where nothing is found.
        """
        kept = [(other, self._trial.withdraw(other)) for other in others]
        found = find()
        for other, promised in reversed(kept):
            self._trial.promise(other, promised)
            if found is not None and not fits(found):
                self.take(other, job)
        return found

    def take(self, other: Job, job: Job) -> Rows:
        """Keep nothing for the other one any more, as the job has it; return the rows."""
        self.lost_to[other.id] = job
        return self._trial.withdraw(other)

    def behind(self, job: Job, reserved: Rows) -> list[Job]:
        """Return those whose room on the same rows comes free after that of the job: theirs is what is left then.

        Whoever loses it first is in front.
        """
        if not reserved:
            return []
        rows = set(reserved)
        found = [other for other in self._trial.promised() if self._behind(other, job, rows)]
        return sorted(found, key=_loses)

    def _behind(self, other: Job, job: Job, rows: set[int]) -> bool:
        after = self._comes_after(other, job.reserved_start_ns or NEVER)
        return after and not rows.isdisjoint(self._trial.promises[other.id])

    def others(self) -> list[Job]:
        """Return all that room is promised to."""
        return self._trial.promised()

    def after(self, start_ns: int) -> list[Job]:
        """Return those whose promised room comes no sooner than that, as far as anybody knows, or just then but later
        in turn, and those who will have come and left again by then.
        """
        return [
            other
            for other in self._trial.promised()
            if self._comes_after(other, start_ns) or self._has_left_by(other, start_ns)
        ]

    def leaves_before(self, job: Job, other: Job) -> bool:
        """Say whether the job, placed now, will have left by the start that the other one was told."""
        longest_ns = stays_ns(self._draft, job)
        return longest_ns is not None and self._draft.now_ns + longest_ns <= other.reserved_start_ns

    def _has_left_by(self, other: Job, start_ns: int) -> bool:
        longest_ns = stays_ns(self._draft, other)
        comes_ns = max(self._draft.now_ns, other.reserved_start_ns)
        return longest_ns is not None and comes_ns + longest_ns <= start_ns

    def _comes_after(self, other: Job, start_ns: int) -> bool:
        theirs = other.reserved_start_ns or NEVER
        return theirs > start_ns or (theirs == start_ns and other.id not in self.asked)

    @property
    def kept(self) -> int:
        """Return for how many of those whose turn has come room is kept, also if somebody took it since.

        They ask anew in the next pass: whoever had their place would lose it then, and have it again, for ever.
        """
        return len(self.served)

    def outranked(self, job: Job) -> list[Job]:
        """Return those whose room the job may have that others leave or hand back: it is above them, or was guaranteed
        the room. Whoever loses it first is in front.
        """
        jobs, entitled = self._draft.state.jobs, self._entitled(job)
        may = [other for name in self._trial.promises if (other := jobs[name]).priority < job.priority or entitled]
        if not may:
            return []
        level = self._level(job)
        found = [
            other
            for other in may
            if self._lower(other, job, level)
            or (entitled and other.tenant != job.tenant and not other.reserved_start_ns and not self._entitled(other))
        ]
        return sorted(found, key=_loses)

    def unknown_after(self, job: Job) -> list[Job]:
        """Return those below the job, and of its priority those whose turn comes after its own, at no known time."""
        level = self._level(job)
        found = [
            other
            for other in self._trial.promised()
            if self._lower(other, job, level)
            or (other.priority <= job.priority and other.id not in self.asked and not other.reserved_start_ns)
        ]
        return sorted(found, key=_loses)

    def _level(self, job: Job) -> int:
        """Return the class in which the job waits."""
        ageing_ns = self._draft.parameters.ageing_seconds * SECOND_NS
        return aged(job.priority, max(job.submitted_ns, job.suspended_ns), self._draft.now_ns, ageing_ns)

    def _entitled(self, job: Job) -> bool:
        """Say whether the job lies within what its tenant was guaranteed."""
        share, state = self._trial.index.share(job.tenant), self._draft.state
        if share.guaranteed is None:
            return False
        return share.within(amounts(state.floors[job.id], state.specs[job.id].gang_size), share.guaranteed)

    def _lower(self, other: Job, job: Job, level: int) -> bool:
        """Say whether it is below the job by priority, and has not aged beyond it, nor is owed what the job takes."""
        if other.priority >= job.priority:
            return False
        if self._level(other) >= level:
            return False
        return other.tenant == job.tenant or not self._entitled(other) or self._entitled(job)

    def _later_in_turn(self, other: Job, need: tuple[int, ...]) -> bool:
        """Say whether its turn comes after that of the job, it needs no more, and its room comes at no known time.

        Room is kept so that smaller jobs do not pass by; who is first among equals is for the order of turns to say.
        """
        if other.id in self.asked or other.reserved_start_ns:
            return False
        return all(mine >= theirs for mine, theirs in zip(need, _whole(self._draft.state, other), strict=True))


def _loses(job: Job) -> tuple[int, int, int, str]:
    """Return the order in which jobs lose room: those of lower priority, whose room comes later, who came later."""
    return (job.priority, -(job.reserved_start_ns or NEVER), -job.submitted_seq, job.id)


def _whole(state: State, job: Job) -> tuple[int, ...]:
    """Return all that the job needs: for one member, and for all of them."""
    size = state.specs[job.id].gang_size
    return (*amounts(state.floors[job.id]), *amounts(state.floors[job.id], size))
