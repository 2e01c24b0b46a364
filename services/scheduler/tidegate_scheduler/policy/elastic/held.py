"""What is held on each row by jobs of one priority, and by simulators beyond those that are guaranteed."""

from __future__ import annotations

import numpy as np
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.table import Ints
from tidegate_scheduler.state import Member


class Held:
    """What jobs of one priority hold on each row: how much room there could be if all of them left."""

    def __init__(self) -> None:
        self.members = 0
        self._amounts: Ints = np.zeros((3, 0), np.int64)

    def count(self, need: Resources, rows: list[int], sign: int) -> None:
        """Count members in, or with `sign` -1 out."""
        self.members += sign * len(rows)
        if rows and max(rows) >= self._amounts.shape[1]:
            wider = np.zeros((3, 2 * max(rows) + 2), np.int64)
            wider[:, : self._amounts.shape[1]] = self._amounts
            self._amounts = wider
        gpus = need.gpus or (1 if need.gpu_millis else 0)
        for row in rows:
            self._amounts[:, row] += (sign * need.cpu_millis, sign * need.memory_mib, sign * gpus)

    def add_to(self, room: Ints) -> None:
        """Add what is held to `room`, as the table's amounts."""
        width = min(room.shape[1], self._amounts.shape[1])
        room[:3, :width] += self._amounts[:, :width]


def has_more(member: Member) -> bool:
    """Say whether the member has more simulators than it is guaranteed."""
    return any(quota.replicas is not None for quota in member.quotas)
