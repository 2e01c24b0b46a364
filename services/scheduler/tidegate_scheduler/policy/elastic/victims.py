"""Who may be asked to leave for another job, and what that would cost.

A job leaves for one of higher priority than it was placed with (its own, and what it had aged until then), or, while
its tenant borrows more than it was guaranteed, for one of a tenant that has less than that. Whoever is past the
protection threshold of its expected time, has used up its budget of preemptions, or resumed only a moment ago, leaves
for nobody. How often it left for jobs of its own priority (`slicing.py`) is no matter to those of higher ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidegate_scheduler.policy.elastic.entries import held_by
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import NONE, Amounts, aged, amounts, plus
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters
from tidegate_scheduler.state import Job, State

VICTIMS_MAX = 64
"""Who leaves one node at most, and all of them together beyond one for each member."""

PROTECTED, BUDGET, COOLDOWN = "Protected", "PreemptionBudget", "CoolDown"


class Cost(msgspec.Struct, frozen=True, gc=False, order=True):
    """What asking a job to leave costs, in the order in which that counts."""

    priority: int
    lost_seconds: int
    placed_ns: int
    job: str


_Alike = tuple[int, str, str]


class Able(msgspec.Struct, frozen=True):
    """Who could leave one node, the cheapest first.

    `most` is of CPU, of memory and of devices no less than what so many of them give back as may leave.
    """

    jobs: tuple[Job, ...]
    most: Amounts


class Victims:
    """Judges the running jobs for one pass."""

    def __init__(self, index: Index, now_ns: int, parameters: Parameters, leaving: set[str]) -> None:
        self._index = index
        self._now_ns = now_ns
        self._parameters = parameters
        self._leaving = leaving
        self._spared: dict[str, str] = {}
        self._costs: dict[str, Cost] = {}
        self._standings: dict[str, int] = {}
        self._able: dict[tuple[int, _Alike], Able] = {}
        self._able_now: object = None
        self._alike: _Alike = (0, "", "")
        self.promised: Amounts = NONE
        self.looked_at = 0
        """At how many jobs the plans of the pass have looked."""

        self.spared_until_ns: int | None = None
        """When time alone ends what spares the first of those who were spared; None: it spares nobody."""

    def plan_for(self, job: Job, promised: Amounts) -> None:
        """Begin to plan for the job, while so much is kept for others of its tenant: they have that of its guarantee.

        Who may leave is the same for all of one priority; for those too that are owed it, until somebody else is asked.
        """
        self.promised = promised
        shares = self._index.shares
        now = (len(self._leaving), [(share.used, share.leaving) for share in shares.values() if share.guaranteed])
        if now != self._able_now:
            self._able_now = now
            self._able.clear()
        self._alike = self._alike_of(job)

    def on_row(self, row: int, for_job: Job) -> Able:
        """Return who could leave the node for `for_job`, which is planned for."""
        if (known := self._able.get((row, self._alike))) is not None:
            return known
        jobs, there = self._index.state.jobs, self._index.on_row.get(row, {})
        self.looked_at += len(there)
        able = [jobs[name] for name in there if self.may_leave(jobs[name], for_job)]
        able.sort(key=self.cost)
        found = Able(tuple(able), _most_of([self._on(row, job) for job in able]))
        self._able[row, self._alike] = found
        return found

    def _alike_of(self, job: Job) -> _Alike:
        """Return what those share for whom the same may leave."""
        return (job.priority, job.tenant if self._owed(job) else "", "")

    def _on(self, row: int, job: Job) -> Amounts:
        """Return the CPU, the memory and the devices, some of which may be parts, that the job has on one row."""
        held, floor = NONE, self._index.state.floors[job.id]
        for seat in self._index.seats_of(job.id):
            if seat.row == row:
                need = seat.holds(floor)
                held = plus(held, (need.cpu_millis, need.memory_mib, len(seat.gpu_indices)))
        return held

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
        if (known := self._standings.get(job.id)) is None:
            ageing_ns = self._parameters.ageing_seconds * SECOND_NS
            known = aged(job.priority, max(job.submitted_ns, job.suspended_ns), job.placed_ns, ageing_ns)
            self._standings[job.id] = known
        return known

    def _owed(self, for_job: Job) -> bool:
        """Say whether the job lies within what its tenant was guaranteed."""
        lender = self._index.share(for_job.tenant)
        if lender.guaranteed is None:
            return False
        return lender.within(plus(self._whole(for_job), self.promised), lender.guaranteed)

    def _gives_back(self, job: Job, for_job: Job) -> bool:
        """Say whether the job's tenant borrows what the other one's was guaranteed."""
        if job.tenant == for_job.tenant or not self._owed(for_job):
            return False
        return self.keeps_its_own(job.tenant, self._whole(job))

    def together(self, for_job: Job) -> Together:
        """Return those who leave for the job, as far as it is planned: nobody yet."""
        return Together(self, for_job)

    def gives(self, job: Job, for_job: Job) -> tuple[Amounts, bool] | None:
        """Return what the job's tenant gives, and whether as it borrows that; None where that is no matter."""
        if self._index.share(job.tenant).guaranteed is None:
            return None
        return self._whole(job), self._standing(job) >= for_job.priority

    def keeps_its_own(self, tenant: str, whole: Amounts) -> bool:
        """Say whether a tenant that gives so much still has what it was guaranteed, when all who leave have left."""
        borrower = self._index.share(tenant)
        stays = plus(plus(borrower.used, borrower.leaving, -1), whole, -1)
        least = borrower.guaranteed or NONE
        return all(have >= guaranteed for have, guaranteed in zip(stays, least, strict=True))

    def _whole(self, job: Job) -> Amounts:
        state, seats = self._index.state, self._index.seats_of(job.id)
        floor = state.floors[job.id]
        return held_by(floor, seats) if seats else amounts(floor, state.specs[job.id].gang_size)


class Together:
    """Who leaves for one job, so that each tenant keeps its own: what each alone only borrows may together be that.

    Those who leave by their priority count too, where others of their tenant give back what it borrows.
    """

    def __init__(self, victims: Victims, for_job: Job) -> None:
        self._victims = victims
        self._for_job = for_job
        self.jobs: dict[str, Job] = {}
        self._given: dict[str, Amounts] = {}
        self._gives_back: set[str] = set()

    def add(self, jobs: Iterable[Job]) -> bool:
        """Let these leave too, all or none of them; say whether they may."""
        self._victims.looked_at += 1
        given, gives_back, more = dict[str, Amounts](), set[str](), dict[str, Job]()
        for job in jobs:
            if job.id in self.jobs or job.id in more:
                continue
            more[job.id] = job
            if (gives := self._victims.gives(job, self._for_job)) is None:
                continue
            given[job.tenant] = plus(given.get(job.tenant) or self._given.get(job.tenant, NONE), gives[0])
            if gives[1]:
                gives_back.add(job.tenant)
        for tenant, whole in given.items():
            borrows = tenant in gives_back or tenant in self._gives_back
            if borrows and not self._victims.keeps_its_own(tenant, whole):
                return False
        self.jobs |= more
        self._given |= given
        self._gives_back |= gives_back
        return True


def _most_of(held: list[Amounts]) -> Amounts:
    """Return the most of each amount that so many give back as may leave one node."""
    columns = [sum(sorted(column, reverse=True)[:VICTIMS_MAX]) for column in zip(*held, strict=True)]
    return (columns[0], columns[1], columns[2]) if columns else NONE


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
