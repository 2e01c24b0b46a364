"""Which jobs are to be settled: those to which something happened, and those for which time alone has to pass."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from tidegate_scheduler.policy.elastic.at_rest import AtRest
from tidegate_scheduler.state import Job, State

DUE_SPARE = 1024


class Settling:
    """The unsettled jobs, and when others fall due."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._unsettled: dict[str, tuple[int, str]] = {}
        self._in_order: list[tuple[int, str]] = []
        """The keys of the unsettled by submission, as far as they were put in order, and of some that are settled."""

        self._unordered: list[tuple[int, str]] = []
        self._due: list[tuple[int, str]] = []
        self._due_at: dict[str, int] = {}
        self.at_rest = AtRest()
        self.rested: dict[int, int] = {}
        """Rows on which shares of CPU rise or fall by the time alone, and have come to rest, with the time by which."""

    def unsettled(self) -> Iterator[Job]:
        """Yield the jobs that something happened to since they were settled, in the order of submission."""
        keys = self._in_order = sorted([*self._in_order, *self._unordered])
        self._unordered.clear()
        try:
            for key in keys:
                if self._unsettled.get(key[1]) is key:
                    yield self._state.jobs[key[1]]
        finally:
            self._in_order = [key for key in keys if self._unsettled.get(key[1]) is key]

    def changed(self, name: str) -> None:
        """Take in that the job changed, came or went."""
        self._due_at.pop(name, None)
        if name in self._state.jobs:
            self._unsettle(name)
        else:
            self.settled(name)

    def settled(self, job: str) -> None:
        """Count a job as settled until it changes or falls due."""
        self._unsettled.pop(job, None)

    def look_again(self, job: str, at_ns: int) -> None:
        """Count a job as settled until `at_ns`."""
        if self._due_at.get(job) != at_ns:
            self._due_at[job] = at_ns
            heappush(self._due, (at_ns, job))
            if len(self._due) > DUE_SPARE + 2 * len(self._due_at):  # jobs change more often than they fall due
                self._due = [(each_ns, name) for name, each_ns in self._due_at.items()]
                heapify(self._due)

    def wake(self, now_ns: int) -> None:
        """Unsettle who is due."""
        while self._due and self._due[0][0] <= now_ns:
            at_ns, name = heappop(self._due)
            if self._due_at.get(name) == at_ns:
                del self._due_at[name]
                self._unsettle(name)

    @property
    def next_ns(self) -> int | None:
        """Return when the next one is due, None where nobody is."""
        while self._due and self._due_at.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def _unsettle(self, name: str) -> None:
        job = self._state.jobs.get(name)
        if job is not None and name not in self._unsettled:
            key = self._unsettled[name] = (job.submitted_seq, name)
            self._unordered.append(key)
