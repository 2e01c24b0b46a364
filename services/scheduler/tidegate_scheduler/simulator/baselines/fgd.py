"""FGD, fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).

The fragmentation of a node is what a task that is drawn from the workload could not use of its free GPUs: all of them
where the task does not fit or asks for none, else those devices of which too little is free. Each job goes to the node
on which that grows least by it. The distribution is that of the workload, without the rarest twentieth of its tasks.

Growth is compared in steps of 40 thousandths of a GPU, as the published implementation does near 0 (hundredths of a
sigmoid); of equals the node with the least left is taken. Compared exactly, it comes to no more than best fit does:
nodes are broken up for gains that mean nothing.
"""

from __future__ import annotations

from collections import Counter

import msgspec
from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.simulator.baselines.in_turn import in_turn
from tidegate_scheduler.simulator.baselines.room import Room
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, State

STEP_MILLIS = 40
TYPICAL_PERCENT = 95
KNOWN_MAX = 1 << 20

_Free = tuple[int, tuple[int, ...]]
"""The CPU of a node and the parts of its devices that are free, in their order."""


class Task(msgspec.Struct, frozen=True, order=True):
    """What tasks of one kind need, and how many there are."""

    cpu_millis: int
    gpus: int
    gpu_millis: int
    count: int = 0


def rules(workload: Workload) -> Rules:
    """Return the rules for the tasks of this workload."""
    return Rules(name="fgd", fill=in_turn(_rank, passing=True, tightness=Growth(typical(workload)).of))


def typical(workload: Workload) -> tuple[Task, ...]:
    """Return the most frequent kinds of tasks that are so many of all."""
    counts: Counter[Task] = Counter()
    for arrival in workload.arrivals:
        need = arrival.spec.components[0].resources["default"].minimum
        counts[Task(need.cpu_millis, need.gpus, need.gpu_millis)] += arrival.spec.gang_size
    wanted, found = counts.total() * TYPICAL_PERCENT, list[Task]()
    for task, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        if sum(each.count for each in found) * 100 >= wanted:
            break
        found.append(msgspec.structs.replace(task, count=count))
    return tuple(found)


class Growth:
    """By how much the fragmentation of a node grows; what was worked out is kept, as many nodes are alike."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        self._tasks = tasks
        self._step = STEP_MILLIS * max(1, sum(task.count for task in tasks))
        self._fragments: dict[_Free, int] = {}
        self._known: dict[tuple[_Free, Resources], int] = {}

    def of(self, room: Room, need: Resources) -> tuple[int, ...]:
        """Return the growth in steps, then what is left."""
        free = (room.cpu_millis, room.free)
        found = self._known.get((free, need))
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
                self._fragments.clear()
            after = room.copy()
            after.occupy(need, after.take(need))
            growth = self._of(after.cpu_millis, after) - self._of(room.cpu_millis, room)
            found = self._known[free, need] = -(-growth // self._step)
        return (found, room.gpu_millis)

    def _of(self, cpu_millis: int, room: Room) -> int:
        """Return the expected fragmentation, times the number of tasks."""
        free = (cpu_millis, room.free)
        found = self._fragments.get(free)
        if found is None:
            found = sum(task.count * _unusable(task, cpu_millis, room.free) for task in self._tasks)
            self._fragments[free] = found
        return found


def _unusable(task: Task, cpu_millis: int, devices: tuple[int, ...]) -> int:
    """Return what the task could not use of the devices."""
    each = WHOLE_MILLIS if task.gpus else task.gpu_millis
    usable = [free for free in devices if free >= each]
    if not each or cpu_millis < task.cpu_millis or len(usable) < (task.gpus or 1):
        return sum(devices)
    return sum(devices) - sum(usable)


def _rank(_state: State, _job: Job, _now_ns: int) -> tuple[int, ...]:
    return ()
