"""Who is asked first: classes of priority, raised by waiting; within one the tenant that has least of its fair share.

Jobs that are alike (of one tenant, priority and shape, with about as much work left) stand in one line, in the order of
submission, so a pass looks at lines and not at jobs. Ageing raises a line by one class for every
`ageing_seconds` that its first job has waited, without bound, so whatever is submitted later is overtaken some day.

Fair share is weighted dominant-resource fairness (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011): the tenant
whose largest share of any resource, over its weight, is smallest. Shares are compared as exact fractions over one
common denominator, never as floats.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from math import lcm

import msgspec
from sortedcontainers import SortedList
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.shapes import Fit, Shape

Amounts = tuple[int, int, int]
"""CPU in thousandths, memory in MiB, GPUs in thousandths."""

NONE: Amounts = (0, 0, 0)

_Standing = tuple[bool, int]
"""How far a tenant is below what it is due: who was guaranteed more is in front, then whose share is smaller."""

AGEING_LOOKS = 60
"""How often within one period of ageing it is looked at who has aged: where all wait, passes are due no more often."""


class LineKey(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """What the jobs of one line share; `alone` names a job that differs from all others.

    Where the first does not fit, the others do not: so jobs that end sooner, for which more room may do, and intensive
    gangs that wait less for one node, stand in lines of their own.
    """

    tenant: str
    priority: int
    shape: Shape
    work: int
    alone: str = ""
    limit_seconds: int | None = None
    locality_wait_seconds: int = 0


class Waiter(msgspec.Struct, frozen=True, gc=False, order=True):
    """One job in a line: whoever has waited longest stands in front, so that no job hides what another has aged."""

    since_ns: int
    submitted_seq: int
    job: str


class Line:
    """Jobs that are alike; `fit` is where they fit."""

    def __init__(self, key: LineKey, fit: Fit) -> None:
        self.key = key
        self.fit = fit
        self.waiters: SortedList[Waiter] = SortedList()

    def level(self, position: int, now_ns: int, ageing_ns: int) -> int:
        """Return the class of the job at a position: its priority, and one more for each period that it waited."""
        first: Waiter = self.waiters[position]
        return aged(self.key.priority, first.since_ns, now_ns, ageing_ns)


class Share(msgspec.Struct):
    """What a tenant holds, how much of that is being left, and what it is entitled to.

    `guaranteed` and `ceiling` are None where nothing is set.
    """

    used: Amounts = NONE
    weight: int = 1
    guaranteed: Amounts | None = None
    ceiling: Amounts | None = None
    stopped: bool = False
    leaving: Amounts = NONE

    def owed(self) -> bool:
        """Say whether the tenant has less than it was guaranteed, of everything that it was guaranteed."""
        if self.guaranteed is None:
            return False
        pairs = [(used, least) for used, least in zip(self.used, self.guaranteed, strict=True) if least]
        return bool(pairs) and all(used < least for used, least in pairs)

    def within(self, more: Amounts, bound: Amounts | None) -> bool:
        """Say whether `more` still lies within the bound; an amount of 0 in a bound bounds nothing."""
        if bound is None:
            return True
        return all(not most or used + add <= most for used, add, most in zip(self.used, more, bound, strict=True))


class Ageing:
    """In which class jobs are at one time: they rise at the looks only, so that a pass can be due then."""

    def __init__(self, now_ns: int, ageing_ns: int) -> None:
        self._ageing_ns = ageing_ns
        self._look_ns = max(1, ageing_ns // AGEING_LOOKS)
        self._looked_ns = now_ns // self._look_ns * self._look_ns
        self._rises_ns: int | None = None

    def level(self, priority: int, since_ns: int) -> int:
        """Return the class of a job that waits since then."""
        if not self._ageing_ns:
            return priority
        waited_ns = self._looked_ns - since_ns
        risen = waited_ns // self._ageing_ns if waited_ns > 0 else 0
        rises_ns = since_ns + (risen + 1) * self._ageing_ns
        if self._rises_ns is None or rises_ns < self._rises_ns:
            self._rises_ns = rises_ns
        return priority + risen

    @property
    def ages_ns(self) -> int | None:
        """Return when the first of those whose class was asked for is in a higher one, None where nobody ages."""
        return None if self._rises_ns is None else -(-self._rises_ns // self._look_ns) * self._look_ns


def aged(priority: int, since_ns: int, now_ns: int, ageing_ns: int) -> int:
    """Return the class of a job that waits since then."""
    if not ageing_ns or now_ns - since_ns < ageing_ns:
        return priority  # as most are who are asked about
    return Ageing(now_ns, ageing_ns).level(priority, since_ns)


def amounts(need: Resources, members: int = 1) -> Amounts:
    """Return what so many members hold, as fair share counts it."""
    return (
        need.cpu_millis * members,
        need.memory_mib * members,
        (need.gpus * 1000 + need.gpu_millis) * members,
    )


def plus(one: Amounts, other: Amounts, sign: int = 1) -> Amounts:
    """Return the sum, or with `sign` -1 the difference."""
    return (one[0] + sign * other[0], one[1] + sign * other[1], one[2] + sign * other[2])


class FairOrder:
    """Compares tenants by their weighted dominant shares of `total`, exactly."""

    def __init__(self, total: Amounts, weights: list[int]) -> None:
        sizes = [each for each in total if each]
        common = lcm(*sizes) if sizes else 1
        self._scales = [common // each if each else 0 for each in total]
        self._weights = lcm(*weights) if weights else 1

    def of(self, share: Share) -> int:
        """Return the share as an integer: smaller is further below its fair part."""
        (cpu, memory, gpus), (per_cpu, per_memory, per_gpu) = share.used, self._scales
        return max(cpu * per_cpu, memory * per_memory, gpus * per_gpu) * (self._weights // share.weight)


class Turn(msgspec.Struct, frozen=True, gc=False):
    """The job that is asked next: the first one of `line` that was not, in this class; behind it stands the `rest`.

    `share` is its tenant's.
    """

    line: Line
    rest: Iterator[Waiter]
    level: int
    job: str
    share: Share


class Turns:
    """Gives jobs in the order in which they are asked, while shares change as they are placed; lines stay as they are.

    Who takes a turn says what becomes of the line: `go_on` asks its next job when its turn comes; else it is over.
    """

    def __init__(self, shares: dict[str, Share], fair: FairOrder, now_ns: int, ageing_ns: int) -> None:
        self._shares = shares
        self._fair = fair
        self._ageing = Ageing(now_ns, ageing_ns)
        self._lines: dict[int, dict[str, list[tuple[int, int, int, str, Iterator[Waiter], Line]]]] = {}
        self._tenants: dict[int, list[tuple[_Standing, str]]] = {}
        self._levels: list[int] = []
        self._stood: dict[str, tuple[Amounts, _Standing]] = {}
        """Where each tenant stood, with what it used then."""

    @property
    def ages_ns(self) -> int | None:
        """Return when the first of those who were asked is in a higher class, None where nobody ages."""
        return self._ageing.ages_ns

    def enter(self, line: Line) -> None:
        """Let the jobs of the line be asked when their turn comes, as long as each says so."""
        self._enter(line, iter(line.waiters))

    def go_on(self, turn: Turn) -> None:
        """Ask the line's next job too."""
        self._enter(turn.line, turn.rest)

    def _enter(self, line: Line, rest: Iterator[Waiter]) -> None:
        first = next(rest, None)
        if first is None:
            return
        key = line.key
        tenant = key.tenant
        level = self._ageing.level(key.priority, first.since_ns)
        lines = self._lines.get(level)
        if lines is None:
            lines = self._lines[level] = {}
            self._tenants[level] = []
            heappush(self._levels, -level)
        heap = lines.get(tenant)
        if heap is None:
            heap = lines[tenant] = []
            heappush(self._tenants[level], (self._standing(tenant), tenant))
        heappush(heap, (key.work, first.since_ns, first.submitted_seq, first.job, rest, line))

    def __iter__(self) -> Iterator[Turn]:
        """Yield turns until no line is left."""
        while self._levels:
            level = -self._levels[0]
            tenants, lines = self._tenants[level], self._lines[level]
            if not tenants:
                heappop(self._levels)
                del self._tenants[level], self._lines[level]
                continue
            standing, tenant = tenants[0]
            if standing != (actual := self._standing(tenant)):
                heapreplace(tenants, (actual, tenant))  # it was placed in another class since
                continue
            heap = lines[tenant]
            *_, job, rest, line = heappop(heap)
            if not heap:
                heappop(tenants)
                del lines[tenant]
            yield Turn(line, rest, level, job, self._shares[tenant])

    def _standing(self, tenant: str) -> _Standing:
        share, stood = self._shares[tenant], self._stood.get(tenant)
        if stood is None or stood[0] is not share.used:
            stood = self._stood[tenant] = (share.used, (not share.owed(), self._fair.of(share)))
        return stood[1]
