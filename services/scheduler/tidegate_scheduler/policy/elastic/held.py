"""What is held on each row by jobs of one priority, and by simulators beyond those that are guaranteed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.elastic.table import GPUS, SHARE, Ints
from tidegate_scheduler.state import Member

PENDING_MAX = 4096


class Held:
    """What jobs of one priority hold on each row: how much room there could be if all of them left.

    Changes are kept until somebody asks, as many more are made than are asked for.
    """

    def __init__(self) -> None:
        self.members = 0
        self._amounts: Ints = np.zeros((3, 0), np.int64)
        self._pending: list[tuple[int, int, int, int]] = []

    def count(self, need: Resources, row: int, sign: int) -> None:
        """Count a member in, or with `sign` -1 out."""
        self.members += sign
        gpus = need.gpus or (1 if need.gpu_millis else 0)
        self._pending.append((row, sign * need.cpu_millis, sign * need.memory_mib, sign * gpus))
        if len(self._pending) > PENDING_MAX:
            self._catch_up()

    def _catch_up(self) -> None:
        changes = np.array(self._pending, np.int64)
        rows = changes[:, 0]
        if (highest := int(rows.max())) >= self._amounts.shape[1]:
            wider = np.zeros((3, 2 * highest + 2), np.int64)
            wider[:, : self._amounts.shape[1]] = self._amounts
            self._amounts = wider
        for amount in range(3):
            np.add.at(self._amounts[amount], rows, changes[:, amount + 1])
        self._pending.clear()

    def add_to(self, room: Ints) -> None:
        """Add what is held to `room`, as the table's amounts."""
        if self._pending:
            self._catch_up()
        width = min(room.shape[1], self._amounts.shape[1])
        room[:3, :width] += self._amounts[:, :width]


class Lower:
    """What those below a priority hold on each row together, for as long as nobody comes or goes.

    Each sum begins with the next smaller one, so many plans at many priorities add up what is held once.
    """

    def __init__(self, held: Mapping[int, Held]) -> None:
        self._priorities = sorted(held)
        self._held = [held[priority] for priority in self._priorities]
        self._sums: dict[int, Ints] = {}

    def add_to(self, room: Ints, below: int | None) -> None:
        """Add to `room` what is held below that priority, or (None) by all, as the table's amounts."""
        count = len(self._held) if below is None else bisect_left(self._priorities, below)
        if count:
            room[:3] += self._sum(count, room.shape[1])

    def _sum(self, count: int, rows: int) -> Ints:
        """Return what the first so many hold."""
        found = self._sums.get(count)
        if found is None:
            begin = max((each for each in self._sums if each < count), default=0)
            found = self._sums[begin].copy() if begin else np.zeros((3, rows), np.int64)
            for held in self._held[begin:count]:
                held.add_to(found)
            self._sums[count] = found
        return found


def count_parts(room: Ints, later: Ints) -> None:
    """Count parts of devices as a whole one in `room`, which is `later` and more: whoever leaves may free one."""
    more = room[GPUS] > later[GPUS, : room.shape[1]]
    room[SHARE] = np.where((room[GPUS] > 0) | (more & (room[GPUS] == 0)), WHOLE_MILLIS, room[SHARE])


def has_more(member: Member) -> bool:
    """Say whether the member has more simulators than it is guaranteed."""
    return any(quota.replicas is not None for quota in member.quotas)
