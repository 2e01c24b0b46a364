"""Within one priority: who has more work left leaves for who has less, so that short jobs do not wait for long ones.

Work is counted in steps that double (`work.py`), and a job leaves only for one that has `slice_steps` less, so nobody
is pushed to and fro: where jobs say how long they take, whoever came in comes closer to its end only; where they do
not, it may run until it has had twice as much, and more with each step. What protects from leaving for higher
priorities protects here too, and nobody leaves who was placed a moment ago or who waited so long that it had aged.
Who left for its own priority as often as one may leave for others stays; that is counted by itself, since it shall
protect from no higher priority.

Of another tenant only those leave whose tenant has at least as much of its fair share, and more than it was guaranteed.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate_events.events import Reason

from tidegate_scheduler.counting import MORE_WORK_LEFT
from tidegate_scheduler.policy.elastic import work
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import Amounts, FairOrder
from tidegate_scheduler.policy.elastic.sparing import BUDGET
from tidegate_scheduler.policy.elastic.victims import Able, Cost, Victims, able_of
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters
from tidegate_scheduler.state import Job

LOST_MOST = 1 << 60


class Slicing(Victims):
    """Judges for one pass who leaves for jobs of its own priority, if it has so many `steps` more (0: nobody does)."""

    def __init__(self, index: Index, now_ns: int, parameters: Parameters, leaving: set[str]) -> None:
        super().__init__(index, now_ns, parameters, leaving)
        self.steps = parameters.slice_steps
        self._fair: FairOrder | None = None
        self._left: dict[str, int] = {}

    def below(self, for_job: Job) -> int:
        """Return the priority below which somebody might leave: those of its own are among them."""
        return for_job.priority + 1

    def _alike_of(self, job: Job) -> tuple[int, str, str]:
        """Return the job itself: who may leave for it hangs on its work."""
        return (job.priority, job.tenant, job.id)

    def _able_on(self, row: int, there: Iterable[str], for_job: Job) -> Able:
        """Return who of those on the row may leave for the job: by its own work, so it is asked of each of them."""
        jobs = self._index.state.jobs
        return able_of([self._priced(row, jobs[name]) for name in there if self.may_leave(jobs[name], for_job)])

    def may_leave(self, job: Job, for_job: Job) -> bool:
        """Say whether the job may be asked to leave for the other one."""
        if job.stage != "running" or job.id in self._leaving or self._standing(job) != for_job.priority:
            return False
        if job.tenant != for_job.tenant and not self._yields(job, for_job):
            return False
        least = self._steps_of(for_job) + self.steps
        if self.spared(job):
            return False
        if self._steps_of(job) >= least:
            return self._has_run(job)
        self._look_again_at(self._reaches_ns(job, least))
        return False

    def spared(self, job: Job) -> str:
        """Return why nobody of its priority may be preferred to the job, empty where there is no such reason."""
        return BUDGET if job.slices >= self._parameters.preemptions_max else super().spared(job)

    def cost(self, job: Job) -> Cost:
        """Return what it costs: as few as possible leave, and of these those who have most work left."""
        if (known := self._costs.get(job.id)) is None:
            spec, need = self._index.state.specs[job.id], self._index.state.floors[job.id]
            left = work.seconds_left(job, spec, self._ran_ns(job)) * work.size_millis(spec, need)
            known = self._costs[job.id] = Cost(job.priority, LOST_MOST - min(left, LOST_MOST), -job.placed_ns, job.id)
        return known

    def gives(self, job: Job, for_job: Job) -> tuple[Amounts, bool] | None:
        """Return what the job's tenant gives to another one; within a tenant anybody may leave for anybody."""
        return super().gives(job, for_job) if job.tenant != for_job.tenant else None

    def reason(self, job: Job, for_job: Job) -> Reason:
        """Say why the job leaves."""
        numbers = {"steps": self._steps_of(job), "for_steps": self._steps_of(for_job)}
        return Reason(code=MORE_WORK_LEFT, detail=f"{for_job.id} has less work left", numbers=numbers)

    # ---- how much work there is ----

    def _steps_of(self, job: Job) -> int:
        if (known := self._left.get(job.id)) is None:
            state = self._index.state
            known = work.steps_left(job, state.specs[job.id], state.floors[job.id], self._ran_ns(job))
            self._left[job.id] = known
        return known

    def _ran_ns(self, job: Job) -> int:
        return job.ran_ns + (max(0, self._now_ns - job.started_ns) if job.started_ns else 0)

    def _reaches_ns(self, job: Job, steps: int) -> int | None:
        """Return when the job has had so much work, if it says nothing of what is left; None: it never counts so."""
        spec, need = self._index.state.specs[job.id], self._index.state.floors[job.id]
        seconds = -(-work.service_of(steps) // work.size_millis(spec, need))
        if spec.expected_seconds is not None:
            seconds = max(seconds, spec.expected_seconds * work.BELIEVED_PERMILLE // 1000 + 1)
        return job.started_ns - job.ran_ns + seconds * SECOND_NS

    def _has_run(self, job: Job) -> bool:
        """Say whether the job has run for the cool-down, whether it was preempted before or not."""
        until_ns = job.started_ns + self._parameters.preemption_cooldown_seconds * SECOND_NS
        if self._now_ns >= until_ns:
            return True
        self._look_again_at(until_ns)
        return False

    def _look_again_at(self, at_ns: int | None) -> None:
        if at_ns is not None and at_ns > self._now_ns:
            self.spared_until_ns = min(at_ns, self.spared_until_ns or at_ns)

    # ---- tenants ----

    def _yields(self, job: Job, for_job: Job) -> bool:
        """Say whether the job's tenant has no less of its fair share than the other one's, and more than its own."""
        index = self._index
        if self._fair is None:
            self._fair = FairOrder(index.total, [share.weight for share in index.shares.values()])
        mine, theirs = index.share(job.tenant), index.share(for_job.tenant)
        if self._fair.of(mine) < self._fair.of(theirs):
            return False
        return self.keeps_its_own(job.tenant, self._whole(job))
