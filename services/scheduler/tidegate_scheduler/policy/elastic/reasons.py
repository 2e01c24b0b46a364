"""Why each waiting job waits: said once for a line of jobs that are alike, and for a job that differs from its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

import numpy as np
from tidegate_events.events import Reason

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.elastic.domains import bounded, domains_of
from tidegate_scheduler.policy.elastic.fit import Rows, rows_in
from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import Line, LineKey
from tidegate_scheduler.policy.elastic.shapes import Fit
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, MEMORY, SHARE, Ints, NodeTable
from tidegate_scheduler.state import Job

NAMED_MAX = 3
RESERVED = "Reserved"
HELD = Reason(code="Held", detail="an operator holds it")


class Waiting(MutableMapping[str, Reason]):
    """The reasons of a pass by job, worked out when one is asked for: there are many more jobs than lines."""

    def __init__(self, index: Index, now_ns: int) -> None:
        self._index = index
        self._now_ns = now_ns
        self._jobs: dict[str, Reason] = {}
        self._kept: dict[str, Rows] = {}
        self._lines: dict[LineKey, Reason | None] = {}

    def __setitem__(self, job: str, reason: Reason) -> None:
        """Say why one job waits."""
        self._jobs[job] = reason

    def __delitem__(self, job: str) -> None:
        """Take back what was said of one job."""
        del self._jobs[job]

    def for_room(self, job: Job, rows: Rows) -> None:
        """Say that the job waits for room on the rows, which is kept for it."""
        self._kept[job.id] = rows
        self._jobs.pop(job.id, None)

    def of_line(self, line: Line, reason: Reason | None) -> None:
        """Say why all jobs of a line wait that have no reason of their own; None: what is short says so."""
        self._lines[line.key] = reason

    def over(self, earlier: Mapping[str, Reason]) -> Waiting:
        """Return these reasons, and for lines and jobs that this pass did not reach those of the one before."""
        both = Waiting(self._index, self._now_ns)
        both._lines, both._jobs, both._kept = dict(self._lines), dict(self._jobs), dict(self._kept)
        if isinstance(earlier, Waiting):
            both._lines = earlier._lines | self._lines
            both._jobs = {job: reason for job, reason in earlier._jobs.items() if self._still_waits(job)} | self._jobs
            both._kept = {job: rows for job, rows in earlier._kept.items() if self._still_waits(job)} | self._kept
        return both

    def _still_waits(self, job: str) -> bool:
        known = self._index.state.jobs.get(job)
        return known is not None and known.waiting

    def _reserved(self, job: str) -> Reason:
        """Return why a job waits that room is kept for."""
        fit = self._index.fit(self._index.line_key(self._index.state.jobs[job]).shape)
        nodes = ", ".join(sorted({self._index.table.names[row] for row in self._kept[job]}))
        numbers = shortage(self._index, fit, self._index.table.free).numbers
        return Reason(code=RESERVED, detail=f"waits for room on {nodes}", numbers=numbers)

    def of(self, key: LineKey) -> Reason | None:
        """Return why the jobs of a line wait that have no reason of their own; None: what is short says so.

        Raises KeyError where no pass has said so.
        """
        return self._lines[key]

    def only_short(self, key: LineKey) -> bool:
        """Say whether what is short is all that the pass said of a line."""
        return key in self._lines and self._lines[key] is None

    def own(self, job: str) -> Reason | None:
        """Return a reason that was said of this job alone, None where there is none."""
        found = self._jobs.get(job)
        return self._reserved(job) if found is None and job in self._kept else found

    def named(self) -> set[str]:
        """Return the jobs that have a reason of their own and still wait; few, beside those of all lines."""
        return {job for job in self._jobs.keys() | self._kept.keys() if self._still_waits(job)}

    def _line_reason(self, key: LineKey) -> Reason:
        reason = self._lines[key]
        return reason if reason is not None else shortage(self._index, self._index.fit(key.shape))

    def __getitem__(self, job: str) -> Reason:
        """Return why the job waits. Raises KeyError where no pass has said so."""
        waiting = self._index.state.jobs[job]
        if not waiting.waiting:
            raise KeyError(job)
        if waiting.held:
            return HELD
        if waiting.not_before_ns > self._now_ns:
            return Reason(code="BackOff", numbers={"wait_ms": (waiting.not_before_ns - self._now_ns) // 1_000_000})
        found = self.own(job)
        return found if found is not None else self._line_reason(self._index.line_key(waiting))

    def __iter__(self) -> Iterator[str]:
        """Yield the jobs that have a reason."""
        return (job for job in self._index.state.jobs if job in self)

    def __contains__(self, job: object) -> bool:
        """Say whether the job has a reason."""
        return isinstance(job, str) and job in self._index.state.jobs and self.get(job) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self)


def shortage(index: Index, fit: Fit, room: Ints | None = None, promises: Mapping[str, Rows] | None = None) -> Reason:
    """Say what is short on the node that comes nearest, or that there would be room, but for those in front.

    `room` is what the job may take; where it is not given, what may be taken at once beside all that is kept.
    `promises` are the rows that are kept, by job; where they are not given, those that the state tells.
    """
    table, need = index.table, fit.shape.need
    numbers = {"cpu_millis_needed": need.cpu_millis, "memory_mib_needed": need.memory_mib}
    rows = np.flatnonzero(fit.suits())
    if not len(rows):
        return Reason(code="Resources", numbers=numbers)
    room = table.now if room is None else room
    best = _nearest(table, room, rows)
    now = room[:, best].tolist()
    numbers |= {"cpu_millis_free": max(0, now[CPU]), "memory_mib_free": max(0, now[MEMORY])}
    if need.gpus:
        numbers |= {"gpus_needed": need.gpus, "gpus_free": max(0, now[GPUS])}
    if need.gpu_millis:
        free_millis = WHOLE_MILLIS if now[GPUS] > 0 else max(0, now[SHARE])
        numbers |= {"gpu_millis_needed": need.gpu_millis, "gpu_millis_free": free_millis}
    free = rows_behind(index, fit, kept_rows(index))
    if free is not None:
        front = _kept_on(index, free, promises)
        return Reason(code="Priority", detail=kept_for(front), numbers=numbers | how_much(index, front))
    if fit.shape.gang_size == 1:
        return Reason(code=_SHORT[False], numbers=numbers)
    return _gang_shortage(fit, room, numbers)


_SHORT = {True: "GangTopology", False: "Resources"}


def _gang_shortage(fit: Fit, room: Ints, numbers: dict[str, int]) -> Reason:
    """Say how many of the members there is room for: in all, and where most of them would be together."""
    rows = fit.table.rows_there()
    holds = fit.members(room, rows)
    numbers = numbers | {"members_needed": fit.shape.gang_size, "members_fit": int(holds.sum())}
    if not bounded(fit.shape):
        return Reason(code="Resources", numbers=numbers)
    domains = domains_of(fit.shape, fit.table, rows)
    sums = domains.sums(holds)
    among = np.unique(domains.numbers)
    best = min(among[sums[among] == sums.max()].tolist(), key=domains.names.__getitem__)
    name = domains.names[best]
    where = name if isinstance(name, str) else " and ".join(each for each in name if each)
    numbers |= {"members_fit_together": int(sums[best])}
    return Reason(code="GangTopology", detail=f"most of its members would fit together at {where}", numbers=numbers)


def _kept_on(index: Index, rows: Rows, promises: Mapping[str, Rows] | None) -> list[Job]:
    """Return the jobs that room on the rows is kept for, those of the highest priority first."""
    if promises is None:
        names = index.kept_on(rows)
    else:
        among = set(rows)
        names = [name for name, kept in promises.items() if not among.isdisjoint(kept)]
    return sorted(
        (index.state.jobs[name] for name in names), key=lambda job: (-job.priority, job.submitted_seq, job.id)
    )


def kept_for(front: list[Job]) -> str:
    """Return the words for whom room is kept."""
    return f"the room is kept for {named([job.id for job in front])}"


def how_much(index: Index, front: list[Job]) -> dict[str, int]:
    """Return how many jobs room is kept for, the highest priority among them, what they need, and the first start."""
    needs = [(index.state.floors[job.id], index.state.specs[job.id].gang_size) for job in front]
    numbers = {
        "jobs": len(front),
        "priority": max((job.priority for job in front), default=0),
        "cpu_millis_kept": sum(need.cpu_millis * members for need, members in needs),
        "memory_mib_kept": sum(need.memory_mib * members for need, members in needs),
    }
    gpu_millis = sum((need.gpus * WHOLE_MILLIS + need.gpu_millis) * members for need, members in needs)
    starts = [job.reserved_start_ns for job in front if job.reserved_start_ns]
    return (
        numbers
        | ({"gpu_millis_kept": gpu_millis} if gpu_millis else {})
        | ({"start_ns": min(starts)} if starts else {})
    )


def named(names: list[str]) -> str:
    """Return the first of the names, and how many more there are."""
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def short_code(index: Index, fit: Fit, kept: list[int]) -> str:
    """Return the code of `shortage` alone, given the `kept_rows`."""
    return "Priority" if _is_behind(index, fit, kept) else _SHORT[bounded(fit.shape)]


def _is_behind(index: Index, fit: Fit, kept: list[int]) -> bool:
    """Say whether there are `rows_behind`, without choosing among them."""
    table = index.table
    if bounded(fit.shape):
        return rows_behind(index, fit, kept) is not None
    if fit.shape.gang_size > 1:  # it may be spread: it fits where as many members do
        now, rows = fit.holds_now(), np.array(kept, np.int64)
        more = fit.members(table.free, rows, "free") - now[rows]
        return bool(kept) and int(now.sum() + more.sum()) >= fit.shape.gang_size
    roomy = (row for row in kept if fit.holds_one(table.free_on(row)))
    return any(fit.members(table.free, np.array([row]), "free")[0] > 0 for row in roomy)


def _nearest(table: NodeTable, room: Ints, rows: Ints) -> int:
    """Return the row that has most devices left, then most CPU, then most memory, then the first by name."""
    for amount in (GPUS, CPU, MEMORY):
        left = room[amount, rows]
        rows = rows[left == left.max()]
    return int(rows[table.place[rows].argmin()])


def rows_behind(index: Index, fit: Fit, kept: list[int]) -> Rows | None:
    """Return the rows on which the gang would fit but for what is kept, given that it does not fit beside that."""
    if not kept:
        return None
    return rows_in(fit, index.table.free, among=kept if fit.shape.gang_size == 1 else None, which="free")


def kept_rows(index: Index) -> list[int]:
    """Return the rows on which more is free than may be taken."""
    table = index.table
    differs = table.free[:3, : len(table)] != table.now[:3, : len(table)]
    return np.flatnonzero(differs.any(axis=0)).tolist()
