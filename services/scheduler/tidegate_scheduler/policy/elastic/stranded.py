"""How many GPUs of a node are stranded: free, with no CPU left beside them that those who need GPUs could use.

Who is placed on the tightest node fills one resource and leaves the other: CPU goes to those who need no GPU, or little
of one, and whole GPUs stay free that nobody can use. So a job goes first where it strands least, or frees what was
stranded; where that is the same, to the tightest node as ever. `cpu_beside_gpu_millis` is the CPU that counts as needed
beside each free GPU: about what those jobs need that ask for one. Of parts of devices the largest counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.elastic.table import CPU, GPUS, SHARE, Ints, NodeTable

if TYPE_CHECKING:
    from tidegate_scheduler.policy.elastic.shapes import Shape

MORE_BITS, DEVICES_BITS, CPU_BITS = 17, 6, 19
"""What a score packs, from the highest bits down: what is stranded more, whether a whole device is broken up, devices
left, CPU left. With the place of a row that is as much as an integer holds."""

CPU_UNIT_BITS = 4
MORE_NONE = 1 << (MORE_BITS - 1)
MORE_MOST = (1 << MORE_BITS) - 2


def count_beside(table: NodeTable, cpu_millis: int) -> None:
    """Have the scores of the table count GPUs as stranded with less CPU than that beside each; 0: not at all."""
    if cpu_millis != table.beside_millis:
        table.beside_millis = cpu_millis
        table.renamed += 1  # all scores are worked out anew


def tightness(shape: Shape, room: list[int], broken: int, beside_millis: int) -> int:
    """Return how well a member lies on a row with that room, on which it fits; smaller is better."""
    need = shape.need
    cpu_left, gpus_left = max(0, room[CPU] - need.cpu_millis), max(0, room[GPUS] - need.gpus)
    free = max(0, room[GPUS]) * WHOLE_MILLIS + room[SHARE]
    taken = need.gpus * WHOLE_MILLIS + need.gpu_millis
    before = max(0, free - max(0, room[CPU]) * WHOLE_MILLIS // beside_millis)
    more = max(0, free - taken - cpu_left * WHOLE_MILLIS // beside_millis) - before
    packed = (min(max(0, more + MORE_NONE), MORE_MOST) << 1) | broken
    packed = (packed << DEVICES_BITS) | min(gpus_left, (1 << DEVICES_BITS) - 1)
    return (packed << CPU_BITS) | min(cpu_left >> CPU_UNIT_BITS, (1 << CPU_BITS) - 1)


def tightnesses(shape: Shape, room: Ints, broken: Ints, beside_millis: int) -> Ints:
    """Return the same for many rows."""
    need = shape.need
    cpu_left, gpus_left = np.maximum(room[CPU] - need.cpu_millis, 0), np.maximum(room[GPUS] - need.gpus, 0)
    free = np.maximum(room[GPUS], 0) * WHOLE_MILLIS + room[SHARE]
    taken = need.gpus * WHOLE_MILLIS + need.gpu_millis
    before = np.maximum(free - np.maximum(room[CPU], 0) * WHOLE_MILLIS // beside_millis, 0)
    more = np.maximum(free - taken - cpu_left * WHOLE_MILLIS // beside_millis, 0) - before
    packed = (np.minimum(np.maximum(more + MORE_NONE, 0), MORE_MOST) << 1) | broken
    packed = (packed << DEVICES_BITS) | np.minimum(gpus_left, (1 << DEVICES_BITS) - 1)
    found: Ints = (packed << CPU_BITS) | np.minimum(cpu_left >> CPU_UNIT_BITS, (1 << CPU_BITS) - 1)
    return found
