"""Who is asked to leave, or to move, so that a blocked job fits: so many plans are worked out in one pass."""

from __future__ import annotations

from tidegate_events import events as e

from tidegate_scheduler.counting import DEFRAGMENTATION
from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic import leave
from tidegate_scheduler.policy.elastic.barred import Barred
from tidegate_scheduler.policy.elastic.defragment import Defragmentation, Moves
from tidegate_scheduler.policy.elastic.departed import Departed
from tidegate_scheduler.policy.elastic.fit import holds_rows
from tidegate_scheduler.policy.elastic.preempt import Plan, plan_preemption, promising
from tidegate_scheduler.policy.elastic.queue import NONE, Amounts, Line, amounts, plus
from tidegate_scheduler.policy.elastic.rounds import Round
from tidegate_scheduler.policy.elastic.slicing import Slicing
from tidegate_scheduler.policy.elastic.trial import Trial
from tidegate_scheduler.policy.elastic.victims import Victims
from tidegate_scheduler.policy.elastic.yielding import Yielding
from tidegate_scheduler.state import Job


class Plans:
    """The plans of one pass."""

    def __init__(
        self, draft: Draft, trial: Trial, victims: tuple[Victims, Slicing], yielding: Yielding, barred: Barred
    ) -> None:
        self._draft = draft
        self._trial = trial
        self._index = trial.index
        self._victims, self._slicing = victims
        self._yielding = yielding
        self._defragmentation = Defragmentation(draft, trial.index, self._victims, barred.unwanted)
        self._lowest = min(trial.index.held, default=None)
        self._round = Round(draft.now_ns, len(trial.index.lines), draft.on_trial)
        self.hopeless = True
        """Whether the job that asks would not fit whoever left for it; for each job it is said anew."""

        self.untried = False
        """Whether a plan that might help the job that asks was not worked out; for each job it is said anew."""

    def preemption(self, job: Job, line: Line, barred: frozenset[int]) -> Plan | None:
        """Return who has to leave so that the job fits, None where that would not do, or others had their turn."""
        self.hopeless = True
        if not self._may_preempt(job) or not self.may_plan(job):
            return None
        return self._plan((job, line), self._victims, self._yielding.outranked(job), barred)

    def _plan(
        self, asks: tuple[Job, Line], victims: Victims, yielding: list[Job], barred: frozenset[int]
    ) -> Plan | None:
        """Return who has to leave if those who are yielding lose what is kept for them where that is in the way."""
        job, line = asks
        victims.plan_for(job, self._promised_beside(job))

        def fits(plan: Plan) -> bool:
            with Departed(self._index, [self._draft.state.jobs[name] for name in plan.victims]) as gone:
                return holds_rows(line.fit, gone.room, plan.rows)

        def plan_anew() -> Plan | None:
            ways = promising(self._index, line.fit, job, victims, barred)
            self.hopeless = self.hopeless and not ways
            return plan_preemption(self._index, line, job, victims, ways)

        looked_at = victims.looked_at
        found = self._yielding.instead(yielding, job, plan_anew, fits)
        self._round.charge(victims.looked_at - looked_at)
        return found

    def _promised_beside(self, job: Job) -> Amounts:
        """Return what room is kept for other jobs of a tenant that was guaranteed something."""
        found, state = NONE, self._draft.state
        if self._index.share(job.tenant).guaranteed is not None:
            for name in self._trial.promises:
                if name != job.id and state.jobs[name].tenant == job.tenant:
                    found = plus(found, amounts(state.floors[name], state.specs[name].gang_size))
        return found

    def slice(self, job: Job, line: Line, barred: frozenset[int]) -> Plan | None:
        """Return who has to leave of those of its priority who have more work left, None where that would not do."""
        if not self._may_slice(job) or not self.may_plan(job):
            return None
        return self._plan((job, line), self._slicing, self._yielding.unknown_after(job), barred)

    def moves(self, job: Job, line: Line, barred: frozenset[int]) -> Moves | None:
        """Return who moves so that the job fits, None where nobody does, or others had their turn."""
        found = self._defragmentation.plan(job, line, barred)
        self.untried = self.untried or self._defragmentation.put_off
        return found

    def may_plan(self, job: Job) -> bool:
        """Say whether one more plan may be worked out for the job; where not, one is later, by turns."""
        its_turn = self._round.comes_to(job.id)
        self.untried = self.untried or not its_turn
        return its_turn

    def would_plan(self, job: Job) -> bool:
        """Say whether who leaves for the job would be worked out, were there no room for it; where not, it is later."""
        if not (self._may_preempt(job) or self._may_slice(job)):
            return False
        self.untried = not self._round.would_come_to(job.id)
        return not self.untried

    def begin_rest(self) -> None:
        """Let plans be worked out for those who went without, as the pass has decided nothing else."""
        self._round.rest()

    def _may_preempt(self, job: Job) -> bool:
        if self._lowest is not None and self._lowest < job.priority:
            return True
        return self._index.share(job.tenant).guaranteed is not None

    def _may_slice(self, job: Job) -> bool:
        return bool(self._slicing.steps) and self._lowest is not None and self._lowest <= job.priority

    def asks_all(self, plan: Plan, *, beside: int) -> bool:
        """Say whether this pass may ask all who have to leave, beside so many placements; else the next one does.

        Who was asked first would leave for nothing if the others may stay by then. Only what no pass can hold is split.
        """
        decisions = len(plan.victims) + 1
        if decisions > self._draft.parameters.decisions_per_pass_max:
            return True
        return self._draft.has_room_for(beside + decisions)

    def preempt(self, job: Job, plan: Plan, *, sliced: bool = False) -> None:
        """Ask those to leave who have to for the job."""
        for name in plan.victims:
            if self._draft.full:
                return  # the next pass asks the others
            victim = self._draft.state.jobs[name]
            if sliced:
                leave.ask(self._draft, self._trial, victim, self._slicing.reason(victim, job), for_job=job.id)
                continue
            reason = e.Reason(
                code="LeastCost" if victim.priority < job.priority else "QuotaReclaimed",
                detail=f"{job.id} has priority {job.priority}, {name} has {victim.priority}",
                numbers={
                    "priority": victim.priority,
                    "for_priority": job.priority,
                    "lost_seconds": self._victims.cost(victim).lost_seconds,
                    "candidates": plan.candidates,
                },
            )
            leave.ask(self._draft, self._trial, victim, reason, for_job=job.id)

    def move(self, job: Job, moves: Moves) -> None:
        """Ask those to leave who move for the job."""
        numbers = {
            "gained_gpu_seconds": moves.gained_gpu_seconds,
            "lost_gpu_seconds": moves.lost_gpu_seconds,
            "moves": len(moves.jobs),
        }
        reason = e.Reason(code=DEFRAGMENTATION, detail=f"fits elsewhere, and {job.id} fits then", numbers=numbers)
        for name in moves.jobs:
            leave.ask(self._draft, self._trial, self._draft.state.jobs[name], reason, for_job=job.id)
