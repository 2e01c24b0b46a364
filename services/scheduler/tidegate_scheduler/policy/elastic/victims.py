"""Who may be asked to leave for another job, and what that would cost.

A job leaves for one of higher priority than it was placed with (its own, and what it had aged until then), or, while
its tenant borrows more than it was guaranteed, for one of a tenant that has less than that. Whoever is past the
protection threshold of its expected time, has used up its budget of preemptions, or resumed only a moment ago, leaves
for nobody. How often it left for jobs of its own priority (`slicing.py`) is no matter to those of higher ones.
"""

from __future__ import annotations

import msgspec

from tidegate_scheduler.policy.elastic.entries import held_by
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import NONE, Amounts, Share, aged, amounts, plus
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters
from tidegate_scheduler.state import Job, State

PROTECTED, BUDGET, COOLDOWN = "Protected", "PreemptionBudget", "CoolDown"


class Cost(msgspec.Struct, frozen=True, gc=False, order=True):
    """What asking a job to leave costs, in the order in which that counts."""

    priority: int
    lost_seconds: int
    placed_ns: int
    job: str


class Victims:
    """Judges the running jobs for one pass."""

    def __init__(self, index: Index, now_ns: int, parameters: Parameters, leaving: set[str]) -> None:
        self._index = index
        self._now_ns = now_ns
        self._parameters = parameters
        self._leaving = leaving
        self._spared: dict[str, str] = {}
        self._costs: dict[str, Cost] = {}
        self.promised: Amounts = NONE
        """What is kept for others of the tenant whose job is planned for: they will have it of its guarantee."""

        self.spared_until_ns: int | None = None
        """When time alone ends what spares the first of those who were spared; None: it spares nobody."""

    def on_row(self, row: int, for_job: Job) -> list[Job]:
        """Return who could leave the node for `for_job`, cheapest first."""
        jobs = self._index.state.jobs
        found = [jobs[name] for name in self._index.on_row.get(row, ()) if self.may_leave(jobs[name], for_job)]
        return sorted(found, key=self.cost)

    def below(self, for_job: Job) -> int:
        """Return the priority below which somebody might leave for the job, whatever was guaranteed to whom."""
        return for_job.priority

    def may_leave(self, job: Job, for_job: Job) -> bool:
        """Say whether the job may be asked to leave for the other one."""
        if job.stage not in ("placed", "running") or job.id in self._leaving:
            return False
        if self._standing(job) >= for_job.priority and not self._gives_back(job, for_job):
            return False
        return not self.spared(job)

    def spared(self, job: Job) -> str:
        """Return why nobody may be preferred to the job, empty where there is no such reason."""
        if (known := self._spared.get(job.id)) is None:
            known = self._spared[job.id] = _spared(self._index.state, job, self._now_ns, self._parameters)
            self._look_again(job, known)
        return known

    def _look_again(self, job: Job, why: str) -> None:
        """Remember when time alone ends what spares the job."""
        until_ns = None
        if why == COOLDOWN:
            until_ns = (job.started_ns or job.placed_ns) + self._parameters.preemption_cooldown_seconds * SECOND_NS
        elif why == PROTECTED:
            until_ns = overrun_ns(self._index.state, job, self._parameters)
        if until_ns is not None:
            self.spared_until_ns = min(until_ns, self.spared_until_ns or until_ns)

    def cost(self, job: Job) -> Cost:
        """Return what it costs to ask the job to leave."""
        if (known := self._costs.get(job.id)) is None:
            spec = self._index.state.specs[job.id]
            since_ns = max(job.started_ns, job.saved_ns)
            lost = (self._now_ns - since_ns) // SECOND_NS if job.started_ns else 0
            penalty = self._parameters.preemption_penalty_seconds * job.preemptions
            lost = (max(0, lost) + spec.preemption.restart_seconds + penalty) * spec.gang_size
            known = self._costs[job.id] = Cost(job.priority, lost, -job.placed_ns, job.id)
        return known

    def _standing(self, job: Job) -> int:
        """Return the class in which the job was placed: were what it waited forgotten, it would be pushed out again."""
        ageing_ns = self._parameters.ageing_seconds * SECOND_NS
        return aged(job.priority, max(job.submitted_ns, job.suspended_ns), job.placed_ns, ageing_ns)

    def _gives_back(self, job: Job, for_job: Job) -> bool:
        """Say whether the job's tenant borrows what the other one's was guaranteed."""
        lender, borrower = self._index.share(for_job.tenant), self._index.share(job.tenant)
        if job.tenant == for_job.tenant or lender.guaranteed is None:
            return False
        if not lender.within(plus(self._whole(for_job), self.promised), lender.guaranteed):
            return False
        return self._keeps_its_own(borrower, self._whole(job))

    def jointly(self, jobs: list[Job], for_job: Job) -> bool:
        """Say whether all of them together may leave: what each alone only borrows may together be a tenant's own.

        Those who leave by their priority count too, where others of their tenant give back what it borrows.
        """
        given, gives_back = dict[str, Amounts](), dict[str, None]()
        for job in jobs:
            given[job.tenant] = plus(given.get(job.tenant, NONE), self._whole(job))
            if self._standing(job) >= for_job.priority:
                gives_back[job.tenant] = None
        return all(self._keeps_its_own(self._index.share(tenant), given[tenant]) for tenant in gives_back)

    @staticmethod
    def _keeps_its_own(borrower: Share, whole: Amounts) -> bool:
        """Say whether a tenant that gives so much still has what it was guaranteed, when all who leave have left."""
        stays = plus(plus(borrower.used, borrower.leaving, -1), whole, -1)
        least = borrower.guaranteed or NONE
        return all(have >= guaranteed for have, guaranteed in zip(stays, least, strict=True))

    def _whole(self, job: Job) -> Amounts:
        state, seats = self._index.state, self._index.seats_of(job.id)
        floor = state.floors[job.id]
        return held_by(floor, seats) if seats else amounts(floor, state.specs[job.id].gang_size)


def _spared(state: State, job: Job, now_ns: int, parameters: Parameters) -> str:
    if job.preemptions - job.slices >= parameters.preemptions_max:
        return BUDGET
    since_ns = job.started_ns or job.placed_ns
    if job.preemptions and now_ns < since_ns + parameters.preemption_cooldown_seconds * SECOND_NS:
        return COOLDOWN
    return PROTECTED if protected(state, job, now_ns, parameters) else ""


def overrun_ns(state: State, job: Job, parameters: Parameters) -> int | None:
    """Return when a job has overrun its estimate by more than the bound; None: it does not run, or says nothing."""
    expected = state.specs[job.id].expected_seconds
    if not expected or not job.started_ns:
        return None
    return job.started_ns - job.ran_ns + expected * SECOND_NS * (1000 + parameters.overrun_permille) // 1000 + 1


def protected(state: State, job: Job, now_ns: int, parameters: Parameters) -> bool:
    """Say whether the job is close to its end by its own estimate, and has not overrun that by more than the bound."""
    expected = state.specs[job.id].expected_seconds
    if not expected or not parameters.protection_permille:
        return False
    ran_ns = job.ran_ns + (max(0, now_ns - job.started_ns) if job.started_ns else 0)
    ran_permille = ran_ns * 1000
    expected_ns = expected * SECOND_NS
    if ran_permille < expected_ns * parameters.protection_permille:
        return False
    return ran_permille <= expected_ns * (1000 + parameters.overrun_permille)
