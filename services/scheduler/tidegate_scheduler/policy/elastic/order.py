"""The line of all who wait, in the order in which passes would ask them if each were placed: for explanations.

Tenants take turns as their shares grow, so the order is walked and not sorted. The walk is exact, and stops after what
is shown; a job far behind is counted: by lines of jobs that are alike, and tenants by what their jobs need on average.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tidegate_scheduler.policy.elastic.index import Index
from tidegate_scheduler.policy.elastic.queue import (
    NONE,
    Amounts,
    FairOrder,
    Line,
    Share,
    Turns,
    Waiter,
    amounts,
    plus,
)
from tidegate_scheduler.policy.parameters import SECOND_NS, Parameters

WALKED_MAX = 1000
AHEAD_MAX = 64
"""How far from the front the walk goes to say who stands before whom."""


class Order:
    """The order at one time. First those who stand in lines, then who is in back-off, stopped, held."""

    def __init__(self, index: Index, now_ns: int, parameters: Parameters) -> None:
        self._index = index
        self._now_ns = now_ns
        self._ageing_ns = parameters.ageing_seconds * SECOND_NS
        self._fair = FairOrder(index.total, [share.weight for share in index.shares.values()])
        self._lines = [line for line in index.lines.values() if not index.share(line.key.tenant).stopped]
        stopped = (line for line in index.lines.values() if index.share(line.key.tenant).stopped)
        self._stopped = sorted(stopped, key=lambda line: (-line.key.priority, line.waiters[0]))
        self._walk = self._all()
        self._walked: list[str] = []
        self._positions: dict[str, int] = {}

    @property
    def asked(self) -> int:
        """Return how many jobs would be asked if each were placed."""
        return sum(len(line.waiters) for line in self._lines)

    @property
    def total(self) -> int:
        """Return how many jobs wait."""
        return self.asked + sum(len(line.waiters) for line in self._stopped) + len(self._index.aside)

    def first(self, at_most: int) -> list[str]:
        """Return the first jobs in line."""
        while len(self._walked) < at_most and (job := next(self._walk, None)) is not None:
            self._walked.append(job)
            self._positions[job] = len(self._walked)
        return self._walked[:at_most]

    def position(self, job: str) -> int:
        """Return the job's place in line, from 1."""
        if (known := self._positions.get(job)) is not None:
            return known
        standing = self._index.standing(job)
        if standing is None or self._index.share(standing[0].key.tenant).stopped:
            return self._behind(job)
        counted = self._ahead(*standing)
        if counted > 2 * WALKED_MAX:
            return counted + 1
        self.first(WALKED_MAX)
        return self._positions.get(job) or max(len(self._walked), counted) + 1

    def is_ahead(self, one: str, other: str) -> bool:
        """Say whether one job stands before the other; who is far behind is behind all that are not."""
        self.first(AHEAD_MAX)
        place = [min(self._positions.get(job, AHEAD_MAX + 1), AHEAD_MAX + 1) for job in (one, other)]
        return place[0] < place[1]

    def _all(self) -> Iterator[str]:
        yield from self._in_turn()
        yield from self._not_asked()

    def _in_turn(self) -> Iterator[str]:
        shares = {tenant: msgspec.structs.replace(share) for tenant, share in self._index.shares.items()}
        turns = Turns(shares, self._fair, self._now_ns, self._ageing_ns)
        for line in self._lines:
            turns.enter(line)
        for turn in turns:
            yield turn.job
            share = shares[turn.line.key.tenant]
            share.used = plus(share.used, _whole(turn.line))
            turns.go_on(turn)

    def _not_asked(self) -> Iterator[str]:
        yield from self._index.aside.first(held=False)
        for line in self._stopped:
            yield from (waiter.job for waiter in line.waiters)
        yield from self._index.aside.first(held=True)

    def _behind(self, job: str) -> int:
        """Return the place of a job that is not asked."""
        aside, before = self._index.aside, self.asked + 1
        standing = self._index.standing(job)
        if standing is None:
            held, place = aside.place(job)
            return before + place + (aside.waits + sum(len(line.waiters) for line in self._stopped) if held else 0)
        line, waiter = standing
        lines = self._stopped[: self._stopped.index(line)]
        among: int = line.waiters.index(waiter)
        return before + aside.waits + sum(len(each.waiters) for each in lines) + among

    # ---- far behind ----

    def _ahead(self, line: Line, waiter: Waiter) -> int:
        """Return about how many would be asked before one who is far behind."""
        level = line.level(line.waiters.index(waiter), self._now_ns, self._ageing_ns)
        count, tenants = 0, {tenant: _Ahead(share.used) for tenant, share in self._index.shares.items()}
        own = tenants[line.key.tenant]
        for other in self._lines:
            head = other.level(0, self._now_ns, self._ageing_ns)
            if head < level:
                continue
            found, whole = tenants[other.key.tenant], _whole(other)
            above = self._until_below(other, level + 1) if head > level else 0
            count += above
            found.used = plus(found.used, _times(whole, above))
            alike = self._until_below(other, level) - above
            if found is own and other.key.work == line.key.work:
                alike = min(alike, max(0, other.waiters.bisect_left(waiter) - above))
            elif found is own and other.key.work > line.key.work:
                alike = 0
            found.count += alike
            found.more = plus(found.more, _times(whole, alike))
        share = self._index.share
        until = self._fair.of(Share(plus(own.used, own.more), share(line.key.tenant).weight))
        for tenant, found in tenants.items():
            count += found.count if found is own else self._before(found, share(tenant).weight, until)
        return count

    def _before(self, found: _Ahead, weight: int, until: int) -> int:
        """Return how many jobs of another tenant are asked until its share is as large as `until`."""
        begin, end = (
            self._fair.of(Share(found.used, weight)),
            self._fair.of(Share(plus(found.used, found.more), weight)),
        )
        if begin >= until or end <= until:
            return 0 if begin >= until else found.count
        return -(-found.count * (until - begin) // (end - begin))

    def _until_below(self, line: Line, level: int) -> int:
        """Return how many stand in the line before the first one of a class below `level`, by halving."""
        low, high = 0, len(line.waiters)
        if line.level(high - 1, self._now_ns, self._ageing_ns) >= level:
            return high
        while low < high:
            middle = (low + high) // 2
            if line.level(middle, self._now_ns, self._ageing_ns) < level:
                high = middle
            else:
                low = middle + 1
        return low


class _Ahead(msgspec.Struct):
    """What a tenant holds when the class begins, and its jobs in it."""

    used: Amounts
    count: int = 0
    more: Amounts = NONE


def _whole(line: Line) -> Amounts:
    return amounts(line.key.shape.need, line.key.shape.gang_size)


def _times(each: Amounts, count: int) -> Amounts:
    return (each[0] * count, each[1] * count, each[2] * count)
