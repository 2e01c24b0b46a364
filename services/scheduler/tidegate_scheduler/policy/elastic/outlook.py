"""What explanations ask of policy 2, answered from the tables that it decides by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec
from tidegate_events.events import Reason

from tidegate_scheduler.draft import Draft
from tidegate_scheduler.policy.elastic.admission import larger_than_ceiling, may_change_until_ns, may_hold
from tidegate_scheduler.policy.elastic.causes import SHORT, Causes, queue_stopped
from tidegate_scheduler.policy.elastic.domains import narrowest
from tidegate_scheduler.policy.elastic.forecast import forecast
from tidegate_scheduler.policy.elastic.lacking import missing
from tidegate_scheduler.policy.elastic.order import Order
from tidegate_scheduler.policy.elastic.pipeline import index_of
from tidegate_scheduler.policy.elastic.queue import Line, LineKey, amounts
from tidegate_scheduler.policy.elastic.reasons import HELD, Waiting
from tidegate_scheduler.policy.elastic.verdicts import verdicts
from tidegate_scheduler.policy.outlook import NOT_CONSIDERED, Counts, Start, Verdict
from tidegate_scheduler.policy.parameters import SECOND_NS, as_parameters
from tidegate_scheduler.state import Job, State


class ElasticOutlook:
    """The answers of policy 2 about `state` at `now_ns`."""

    def __init__(self, state: State, now_ns: int) -> None:
        self._state = state
        self._now_ns = now_ns
        self._index = index_of(state)
        self._index.refresh(now_ns)
        parameters = as_parameters(state.header.parameters)
        self._order = Order(self._index, now_ns, parameters)
        self._causes = Causes(self._index, self._order, now_ns, parameters)

    @property
    def total(self) -> int:
        """Return how many jobs wait."""
        return self._order.total

    def in_line(self, at_most: int) -> list[Job]:
        """Return the first jobs in line."""
        return [self._state.jobs[name] for name in self._order.first(at_most)]

    def position(self, job: Job) -> int:
        """Return the job's place in line, from 1."""
        return self._order.position(job.id)

    def reasons(self, job: Job, waiting: Mapping[str, Reason]) -> tuple[Reason, ...]:
        """Return why the job waits: the dominant reason first, then what else is in its way."""
        key = self._key(job)
        dominant = self._causes.dominant(job, key, self._said(job, key, waiting))
        others = self._causes.others(job, key, dominant)
        if dominant.code == "Reserved" and job.reserved_start_ns:
            numbers = {**dominant.numbers, "start_by_ns": job.reserved_start_ns}
            dominant = msgspec.structs.replace(dominant, numbers=numbers)
        waits = self._waits_within(job, key) if dominant.code in SHORT | {"Reserved"} else {}
        if waits:
            numbers = {**dominant.numbers, **waits}
            dominant = msgspec.structs.replace(dominant, numbers=numbers)
        return (dominant, *others)

    def _waits_within(self, job: Job, key: LineKey) -> dict[str, int]:
        """Return how long the job waits for one node, or one switch, before a wider place will do, if it does."""
        level = narrowest(self._index.fit(key.shape)) if key.shape.intensive else None
        until_ns = max(job.submitted_ns, job.suspended_ns) + key.locality_wait_seconds * SECOND_NS
        return {f"one_{level}_until_ns": until_ns} if level and until_ns > self._now_ns else {}

    def _key(self, job: Job) -> LineKey:
        standing = self._index.standing(job.id)
        return self._index.line_key(job) if standing is None else standing[0].key

    def _said(self, job: Job, key: LineKey, waiting: Mapping[str, Reason]) -> Reason:
        """Return the reason of the last pass, but for what an operator or a failure has said since."""
        if job.held:
            return HELD
        if job.not_before_ns > self._now_ns:
            return Reason(code="BackOff", numbers={"wait_ms": (job.not_before_ns - self._now_ns) // 1_000_000})
        if self._index.share(job.tenant).stopped:
            return queue_stopped(job.tenant)
        if not isinstance(waiting, Waiting):
            return waiting.get(job.id, NOT_CONSIDERED)
        return waiting.own(job.id) or self._of_line(key, waiting)

    def _of_line(self, key: LineKey, waiting: Waiting) -> Reason:
        try:
            return waiting.of(key) or self._causes.short(key.shape)
        except KeyError:
            return NOT_CONSIDERED

    def counts(self, waiting: Mapping[str, Reason]) -> Counts:
        """Return how many jobs wait, by tenant and reason; by lines, as there are many more jobs than lines."""
        jobs, counts = self._state.jobs, Counts()
        if not isinstance(waiting, Waiting):
            return Counter((job.tenant, self._code(job, waiting)) for job in jobs.values() if job.waiting)
        for line in self._index.lines.values():
            counts[line.key.tenant, self._code_of(line, waiting)] += len(line.waiters)
        for name in waiting.named():
            if (standing := self._index.standing(name)) is not None:
                counts[jobs[name].tenant, self._code_of(standing[0], waiting)] -= 1
                counts[jobs[name].tenant, self._code(jobs[name], waiting)] += 1
        aside = self._index.aside
        counts.update({(tenant, HELD.code): held for tenant, held in aside.held.items()})
        counts.update({(tenant, "BackOff"): resting for tenant, resting in aside.resting.items()})
        for name in aside.over(self._now_ns):
            counts[jobs[name].tenant, "BackOff"] -= 1
            counts[jobs[name].tenant, self._code(jobs[name], waiting)] += 1
        return counts

    def _code_of(self, line: Line, waiting: Waiting) -> str:
        """Return the code for those of a line of whom nothing is said alone; of a shortage without its numbers."""
        first, key = self._state.jobs[line.waiters[0].job], line.key
        if self._index.share(key.tenant).stopped:
            return queue_stopped(key.tenant).code
        if waiting.only_short(key) and not self._state.maintenance:
            return self._causes.short_code(key.shape)
        return self._causes.dominant(first, key, self._of_line(key, waiting)).code

    def _code(self, job: Job, waiting: Mapping[str, Reason]) -> str:
        key = self._key(job)
        return self._causes.dominant(job, key, self._said(job, key, waiting)).code

    def starts(self, at_most: int) -> dict[str, Start]:
        """Return the earliest starts that are known."""
        return forecast(self._index, self.in_line(at_most), self._now_ns)

    def start(self, job: Job) -> Start | None:
        """Return the end of the job's pause, or when the room that is kept for it is free by time limits."""
        if job.held or self._index.share(job.tenant).stopped:
            return None
        if job.not_before_ns > self._now_ns:
            return Start(job.not_before_ns, "backoff")
        return Start(max(job.reserved_start_ns, self._now_ns), "limit") if job.reserved_start_ns else None

    def never(self, job: Job) -> Reason | None:
        """Return that no nodes could hold the job and none may come, or that it is larger than its tenant's ceiling.

        What has it wait after its submission alone, as an image might be put on a node, is no sign that it starts.
        """
        key = self._index.line_key(job)
        fit, draft = self._index.fit(key.shape), Draft(self._state, self._now_ns)
        if self._state.nodes and not may_hold(fit) and self._now_ns >= may_change_until_ns(draft):
            return missing(fit)
        share = self._index.share(job.tenant)
        return larger_than_ceiling(share, job.tenant, amounts(key.shape.need, key.shape.gang_size))

    def verdicts(self, job: Job) -> tuple[Verdict, ...]:
        """Return what every node means for the job, by name."""
        return verdicts(Draft(self._state, self._now_ns), self._index, job)
