"""Where nodes stand in the network, as numbers of what they are in: a switch, and the rack that the switch is in.

A switch is told by its name and its rack, so each is in one rack: nodes that name the same switch and other racks stand
at two switches. What names no rack is in one of its own: a switch with its nodes, or else the node alone.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from tidegate_scheduler.policy.elastic.numbering import Numbering

Level = Literal["node", "switch", "rack", "cluster"]
"""How close together things are, the narrowest first."""

Domain = Literal["switch", "rack"]
"""What nodes share that tell where they stand."""

NUMBERS_SPARE = 64
"""How many values that no node has any more may be known, beside as many as there are nodes."""


class Sites:
    """The switch and the rack of each row; `moved` counts how often rows got others, or other numbers."""

    def __init__(self, rows: int) -> None:
        self.moved = 0
        self.named: dict[int, None] = {}
        """The rows whose nodes say where they stand."""

        self._columns = np.zeros((2, rows), np.int64)
        self._known: tuple[Numbering[str], Numbering[str]] = (Numbering(), Numbering())

    def numbers(self, level: Domain) -> npt.NDArray[np.int64]:
        """Return by row the number of what it is in."""
        column: npt.NDArray[np.int64] = self._columns[0 if level == "switch" else 1]
        return column

    def names(self, level: Domain) -> list[str]:
        """Return what the numbers stand for; some may be of nodes that are gone."""
        return self._known[0 if level == "switch" else 1].values

    def grow(self) -> None:
        """Make room for as many rows again."""
        self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)

    def put(self, row: int, node: str, *, rack: str, switch: str) -> None:
        """Enter where a row's node stands."""
        if rack or switch:
            self.named[row] = None
        else:
            self.named.pop(row, None)
        alone = f"node {node}"
        below = (f"{switch} in {rack}" if rack else switch) if switch else alone
        self._number(row, below, f"rack {rack}" if rack else f"switch {switch}" if switch else alone)

    def drop(self, row: int) -> None:
        """Take out a row that no node has."""
        self.named.pop(row, None)
        self._number(row, "", "")

    def forget(self, rows: int, nodes: int) -> None:
        """Forget the names that no row has, if there are many more than nodes."""
        for column, known in zip(self._columns, self._known, strict=True):
            if len(known) > 2 * nodes + NUMBERS_SPARE:
                column[:rows] = known.renumber(column[:rows].tolist())
                self.moved += 1

    def _number(self, row: int, *names: str) -> None:
        numbers = [known.number(name) for known, name in zip(self._known, names, strict=True)]
        if self._columns[:, row].tolist() != numbers:
            self._columns[:, row] = numbers
            self.moved += 1
