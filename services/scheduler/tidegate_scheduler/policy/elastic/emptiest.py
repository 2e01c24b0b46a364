"""The rows on which most will be free, without putting all of them in order."""

from __future__ import annotations

import numpy as np

from tidegate_scheduler.policy.elastic.table import CPU, GPUS, Ints, NodeTable

_PER_DEVICE = 1 << 32
"""More than any node has of CPU, in thousandths, so that one more device outweighs it."""


def emptiest(table: NodeTable, rows: Ints, most: int) -> Ints:
    """Return up to `most` (at least one) of the rows, those first that will have most devices, then most CPU.

    Ties go by name.
    """
    later, sure, left = table.later, list[Ints](), most
    if len(rows) > left:
        there = later[GPUS, rows] * _PER_DEVICE + later[CPU, rows]
        least = np.partition(there, len(rows) - left)[len(rows) - left]
        sure.append(rows[there > least])
        rows = rows[there == least]
        left -= len(sure[-1])
    if len(rows) > left:
        rows = rows[np.argpartition(table.place[rows], left)[:left]]
    found = np.concatenate([*sure, rows])
    return found[np.lexsort((table.place[found], -later[CPU, found], -later[GPUS, found]))]
