"""Whose room a job may have that is kept for others: of those below it, of those whose room comes free only later, and
of those whose turn comes after its own."""

from __future__ import annotations

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.fit import Rows
from tidegate_scheduler.policy.elastic.queue import Turn, aged, amounts
from tidegate_scheduler.policy.elastic.reserve import NEVER
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.parameters import SECOND_NS
from tidegate_scheduler.state import Job, State


class Yielding:
    """Judges what is promised in one pass; `asked` are the jobs whose turn has come."""

    def __init__(self, draft: Draft, trial: Trial) -> None:
        self._draft = draft
        self._trial = trial
        self.asked: set[str] = set()

    def to(self, job: Job, turn: Turn, reserved: Rows) -> list[Job]:
        """Return those whose room the job may have, each once, in a total order."""
        yielding = {other.id: other for other in self._lower(job, turn)}
        yielding |= {other.id: other for other in self.behind(job, reserved)}
        yielding |= {other.id: other for other in self._later_in_turn(job)}
        return [yielding[name] for name in sorted(yielding)]

    def behind(self, job: Job, reserved: Rows) -> list[Job]:
        """Return those whose room on the same rows comes free after that of the job: theirs is what is left then."""
        mine, rows = job.reserved_start_ns or NEVER, set(reserved)
        if not rows:
            return []
        return [
            other
            for other in self._trial.promised()
            if ((theirs := other.reserved_start_ns or NEVER) > mine or (theirs == mine and other.id not in self.asked))
            and rows & set(self._trial.promises[other.id])
        ]

    def others(self) -> list[Job]:
        """Return all that room is promised to."""
        return self._trial.promised()

    @property
    def kept(self) -> int:
        """Return for how many of those whose turn has come room is kept."""
        return sum(name in self.asked for name in self._trial.promises)

    def borrowing(self, job: Job) -> list[Job]:
        """Return those whose room the job may have others leave for, as its tenant was guaranteed it and theirs not."""
        if not self._entitled(job):
            return []
        return [
            other
            for other in self._trial.promised()
            if other.tenant != job.tenant and not other.reserved_start_ns and not self._entitled(other)
        ]

    def _entitled(self, job: Job) -> bool:
        """Say whether the job lies within what its tenant was guaranteed."""
        share = self._trial.index.share(job.tenant)
        state = self._draft.state
        whole = amounts(state.floors[job.id], state.specs[job.id].gang_size)
        return share.guaranteed is not None and share.within(whole, share.guaranteed)

    def _lower(self, job: Job, turn: Turn) -> list[Job]:
        """Return those that are below the job by priority, and have not aged beyond it, nor are owed what it takes."""
        ageing_ns, now_ns = self._draft.parameters.ageing_seconds * SECOND_NS, self._draft.now_ns
        entitled = self._entitled(job)
        return [
            other
            for other in self._trial.promised()
            if other.priority < job.priority
            and aged(other.priority, max(other.submitted_ns, other.suspended_ns), now_ns, ageing_ns) < turn.level
            if entitled or other.tenant == job.tenant or not self._entitled(other)
        ]

    def _later_in_turn(self, job: Job) -> list[Job]:
        """Return those whose turn comes after the job's, who are no larger, and whose room comes at no known time.

        Room is kept so that smaller jobs do not pass by; who is first among equals is for the order of turns to say.
        """
        state = self._draft.state
        need = _whole(state, job)
        return [
            other
            for other in self._trial.promised()
            if other.id not in self.asked and not other.reserved_start_ns
            if all(mine >= theirs for mine, theirs in zip(need, _whole(state, other), strict=True))
        ]


def _whole(state: State, job: Job) -> tuple[int, ...]:
    """Return all that the job needs: for one member, and for all of them."""
    size = state.specs[job.id].gang_size
    return (*amounts(state.floors[job.id]), *amounts(state.floors[job.id], size))
