"""Who is on which node, who waits in which order, and how many jobs are in each state: kept as jobs change.

So a fact about one node, a page of jobs and a page of the line cost what is in them, and not a look at all jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import merge

from sortedcontainers import SortedList
from tidegate_events.seating import Seating

from tidegate_gateway.view.model import WAITING_STATES, Forgotten, Job, JobState

_Place = tuple[int, int, str]
"""Where a job waits while the scheduler has not said: by priority, then by submission."""

_Noted = tuple[JobState, int, bool, int]
"""State, priority, whether it is held, and the attempt of a job as it was noted last."""


class Census:
    """The counts and orders. To be told of each job that came, changed or was forgotten."""

    def __init__(self) -> None:
        self.seating = Seating()
        """The jobs whose current attempt has a member on a node, whether that is active still or not."""

        self.states: Counter[tuple[str, JobState]] = Counter()
        """How many jobs there are by tenant and state, those that are forgotten apart."""

        self.held: Counter[str] = Counter()
        """How many of each tenant's jobs wait and are held."""

        self.forgotten: Counter[tuple[str, JobState]] = Counter()
        self.waiting: SortedList[_Place] = SortedList()
        self._waiting_of: dict[str, SortedList[_Place]] = {}
        self._in_state: dict[tuple[str, JobState], SortedList[tuple[int, str]]] = {}
        self._noted: dict[str, _Noted] = {}

    def note(self, job: Job) -> None:
        """Take note of a job as it is now."""
        now = (job.state, job.priority, job.held, job.attempt)
        before = self._noted.get(job.id)
        if before == now:
            return
        if before is not None:
            self._take_out(job, before)
        self._noted[job.id] = now
        self.states[job.tenant, job.state] += 1
        self._in_state.setdefault((job.tenant, job.state), SortedList()).add((job.submitted_seq, job.id))
        if job.state in WAITING_STATES:
            place = place_of(job)
            self.waiting.add(place)
            self._waiting_of.setdefault(job.tenant, SortedList()).add(place)
            self.held[job.tenant] += job.held
        if before is None or before[0] != job.state or before[3] != job.attempt:
            self.seating.seat(job.id, _nodes_of(job))

    def forget(self, job: Job) -> None:
        """Drop a job that ended long ago."""
        self._take_out(job, self._noted.pop(job.id))
        self.note_forgotten(Forgotten(job.tenant, job.state, job.spec_digest))

    def note_forgotten(self, job: Forgotten) -> None:
        """Count a job of which no more than that is kept."""
        self.forgotten[job.tenant, job.state] += 1

    def waiting_of(self, tenant: str | None) -> SortedList[_Place]:
        """Return who waits, of one tenant or of all, by priority and submission."""
        return self.waiting if tenant is None else self._waiting_of.get(tenant, SortedList())

    def tenants(self) -> set[str]:
        """Return the tenants that have a job that is not forgotten."""
        return {tenant for tenant, _ in self.states}

    def newest(self, tenant: str | None, states: Iterable[str], before: int) -> Iterator[str]:
        """Yield the jobs of these states (of any, where none is named) that were submitted before, newest first."""
        wanted = frozenset(states)
        found = [
            each.irange(None, (before,), reverse=True)
            for (owner, state), each in self._in_state.items()
            if (tenant is None or owner == tenant) and (not wanted or state in wanted)
        ]
        return (name for _, name in merge(*found, reverse=True))

    def _take_out(self, job: Job, before: _Noted) -> None:
        state, priority, held, _ = before
        kept = self._in_state[job.tenant, state]
        kept.remove((job.submitted_seq, job.id))
        self.states[job.tenant, state] -= 1
        if not kept:
            del self._in_state[job.tenant, state], self.states[job.tenant, state]
        if state in WAITING_STATES:
            place = (-priority, job.submitted_seq, job.id)
            self.waiting.remove(place)
            of_tenant = self._waiting_of[job.tenant]
            of_tenant.remove(place)
            if not of_tenant:
                del self._waiting_of[job.tenant]
            self.held[job.tenant] -= held


def place_of(job: Job) -> _Place:
    """Return where a job waits by priority and submission."""
    return (-job.priority, job.submitted_seq, job.id)


def matching(counts: Counter[tuple[str, JobState]], tenant: str | None, states: Iterable[str]) -> int:
    """Return how many are counted of a tenant (None: of all) in these states, in any where none is named."""
    wanted = frozenset(states)
    return sum(
        count
        for (owner, state), count in counts.items()
        if (tenant is None or owner == tenant) and (not wanted or state in wanted)
    )


def by_state(counts: Counter[tuple[str, JobState]]) -> Counter[JobState]:
    """Return the counts of all tenants together."""
    found: Counter[JobState] = Counter()
    for (_, state), count in counts.items():
        found[state] += count
    return found


def _nodes_of(job: Job) -> tuple[str, ...]:
    """Return the nodes of the current attempt, none while the job waits or when it ended."""
    if job.latest is None or job.waiting or job.ended:
        return ()
    return tuple(dict.fromkeys([member.placement.node for member in job.latest.members]))
