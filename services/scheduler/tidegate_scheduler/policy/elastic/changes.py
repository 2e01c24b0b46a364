"""Which rows of the table changed, for those who keep what they worked out, and which of them have more room now.

What a pass places only takes room. So whoever found none needs to look again at the rows that changed since, as they
were when that began, and at those that grew: what is found out once is of use for all shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tidegate_scheduler.policy.elastic.table import NodeTable

Recent = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[int]]
"""Rows, what could be taken on each of them, and the most of each amount that could be on any."""

LOG_ROWS_MAX = 1 << 17
ROUNDS_REMEMBERED = 64


class Changes:
    """The log of one table; a round lies between two changes of the state."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._log: list[int] = []
        self._trimmed = 0
        self._began: list[int] = []
        self._first_round = 0
        self.grown: dict[int, list[int]] = {}
        """The rows that have more room than at some time in this round, and how much they had then."""

        self.this_round = -1
        self._recent: dict[int, Recent] = {}

    def note(self, row: int, before: list[int], now: list[int]) -> None:
        """Note that what may be taken on a row is `now` other than `before`."""
        earlier = self.grown.get(row)
        if _exceeds(now, before):
            self.grown[row] = before if earlier is None else [min(pair) for pair in zip(before, earlier, strict=True)]
        elif earlier is not None and not _exceeds(now, earlier):
            del self.grown[row]
        if len(self._log) >= LOG_ROWS_MAX:
            self._trimmed += len(self._log)
            self._log.clear()
        self._log.append(row)

    @property
    def position(self) -> int:
        """Return the end of the log, as a number that only grows."""
        return self._trimmed + len(self._log)

    def since(self, position: int) -> set[int] | None:
        """Return the rows that changed since then, None where that is not known any more."""
        return set(self._log[position - self._trimmed :]) if position >= self._trimmed else None

    # ---- what grew ----

    def begin_round(self) -> None:
        """Begin another round, as the state has changed."""
        self._began.append(self.position)
        self.gather_anew()
        if len(self._began) > ROUNDS_REMEMBERED:
            self._began.pop(0)
            self._first_round += 1
        self.this_round += 1

    def recent(self, since: int) -> Recent | None:
        """Return the rows that changed since that round began, and what could be taken there; None: not known.

        What was placed meanwhile is not counted, and what rows `grown` have more than then neither.
        """
        known = self._recent.get(since)
        if known is None:
            number = since - self._first_round
            if number < 0 or self._began[number] < self._trimmed:
                return None
            rows = np.unique(np.array(self._log[self._began[number] - self._trimmed :], np.int64))
            room = self._table.now[:3, rows]
            most = room.max(axis=1).tolist() if len(rows) else [0, 0, 0]
            known = self._recent[since] = (rows, room, most)
        return known

    def gather_anew(self) -> None:
        """Forget what `recent` and `grown` told: what is taken since is not there any more."""
        self._recent.clear()
        self.grown.clear()


def _exceeds(amounts: list[int], others: list[int]) -> bool:
    return amounts[0] > others[0] or amounts[1] > others[1] or amounts[2] > others[2] or amounts[3] > others[3]
