"""Who may be asked to leave for another job, and what that would cost.

A job leaves for one of higher priority than it was placed with (its own, and what it had aged until then), or, while
its tenant borrows more than it was guaranteed, for one of a tenant that has less than that. Whoever is past the
protection threshold of its expected time, has used up its budget of preemptions, or resumed only a moment ago, leaves
for nobody. How often it left for jobs of its own priority (`slicing.py`) is no matter to those of higher ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter

import msgspec

from tidegate_scheduler.policy.elastic.entries import held_by
from tidegate_scheduler.policy.elastic.held import Lower
from tidegate_scheduler.policy.elastic.holders import NEVER
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import NONE, Amounts, amounts, plus
from tidegate_scheduler.policy.elastic.sparing import Judged
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters
from tidegate_scheduler.state import Job

VICTIMS_MAX = 64
"""Who leaves one node at most, and all of them together beyond one for each member."""


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


NOBODY = Able((), NONE)

_Priced = tuple[Cost, Job, Amounts]
"""What it costs to have a job leave, and what it has on a row."""


class Victims:
    """Judges the running jobs for one pass."""

    def __init__(self, index: Index, now_ns: int, parameters: Parameters, leaving: set[str]) -> None:
        self._index = index
        self._now_ns = now_ns
        self._parameters = parameters
        self._leaving = leaving
        self.lower = Lower(index.held)
        self._costs: dict[str, Cost] = {}
        index.judgements.begin_pass(parameters)
        self._able: dict[tuple[int, _Alike], Able] = {}
        self._all_able: dict[int, list[_Priced]] = {}
        """By row all who may leave it for somebody of a higher class, those of lower classes first."""

        self._first_able: dict[tuple[int, int], Able] = {}
        """By row, the first so many of them."""

        self._able_now: object = None
        self._rows_left: set[int] = set()
        """The rows that somebody was asked to leave in this pass."""

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
            self._rows_left = {seat.row for name in self._leaving for seat in self._index.seats_of(name)}
        self._alike = self._alike_of(job)

    def on_row(self, row: int, for_job: Job) -> Able:
        """Return who could leave the node for `for_job`, which is planned for."""
        if (known := self._able.get((row, self._alike))) is not None:
            return known
        there = self._index.on_row.get(row, {})
        self.looked_at += len(there)
        found = self._able[row, self._alike] = self._able_on(row, there, for_job)
        return found

    def _able_on(self, row: int, there: Iterable[str], for_job: Job) -> Able:
        """Return who of those on the row may leave for the job: as `may_leave` says of each of them."""
        on_row = self._index.judgements.on_row(row, there, self._now_ns, self._parameters)
        if row in self._rows_left or self._owed(for_job):
            return able_of([self._priced(row, job) for job in on_row.jobs if self.may_leave(job, for_job)])
        below = bisect_left(on_row.standings, for_job.priority)
        self._spares_until(on_row.soonest_ns[below])
        count = on_row.able[below]
        if not count:
            return NOBODY
        # Whoever may leave for a lower class may for a higher one: as many are the same.
        if (known := self._first_able.get((row, count))) is None:
            if (priced := self._all_able.get(row)) is None:
                both = zip(on_row.jobs, on_row.judged, strict=True)
                priced = self._all_able[row] = [self._priced(row, job) for job, each in both if not each.why]
            known = self._first_able[row, count] = able_of(priced[:count])
        return known

    def _priced(self, row: int, job: Job) -> _Priced:
        return self.cost(job), job, self._on(row, job)

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
        judged = self._judged(job)
        self._spares_until(judged.spared_until_ns)
        return judged.why

    def _spares_until(self, until_ns: int) -> None:
        """Remember when time alone ends what spares somebody."""
        if until_ns < NEVER:
            self.spared_until_ns = min(until_ns, self.spared_until_ns or until_ns)

    def _judged(self, job: Job) -> Judged:
        return self._index.judgements.of(job, self._now_ns, self._parameters)

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
        return self._judged(job).standing

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


def able_of(priced: list[_Priced]) -> Able:
    """Return them in the order of what they cost."""
    if not priced:
        return NOBODY
    in_order = sorted(priced, key=itemgetter(0))
    return Able(tuple([job for _, job, _ in in_order]), _most_of([held for _, _, held in in_order]))


def _most_of(held: list[Amounts]) -> Amounts:
    """Return the most of each amount that so many give back as may leave one node."""
    columns = [sum(sorted(column, reverse=True)[:VICTIMS_MAX]) for column in zip(*held, strict=True)]
    return (columns[0], columns[1], columns[2]) if columns else NONE
