"""Best fit: in the order of submission, each where least is left; whoever does not fit lets others pass.

What is left on a node is the sum of its CPU and its GPUs, each as a part of the most that any node has, as in the study
of FGD (Weng et al., USENIX ATC 2023). Whole numbers: both parts over one denominator.
"""

from __future__ import annotations

from tidegate_events.resources import Resources

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.simulator.baselines.in_turn import in_turn
from tidegate_scheduler.simulator.baselines.room import Room
from tidegate_scheduler.simulator.rules import Rules
from tidegate_scheduler.simulator.workload import Workload
from tidegate_scheduler.state import Job, State


def rules(workload: Workload) -> Rules:
    """Return the rules for the nodes of this workload."""
    cpu_most = max((node.capacity.cpu_millis for node in workload.nodes), default=1)
    gpus_most = max((len(node.gpus) for node in workload.nodes), default=1) * WHOLE_MILLIS

    def tightness(room: Room, need: Resources) -> tuple[int, ...]:
        gpu_left = room.gpu_millis - need.gpus * WHOLE_MILLIS - need.gpu_millis
        return (gpu_left * cpu_most + (room.cpu_millis - need.cpu_millis) * gpus_most,)

    return Rules(name="best_fit", fill=in_turn(_rank, passing=True, tightness=tightness))


def _rank(_state: State, _job: Job, _now_ns: int) -> tuple[int, ...]:
    return ()
