"""What a node's agent would say of a placement: what is given away twice could not be had in the service either."""

from __future__ import annotations

from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.state import Node, State


def overfull(state: State, node: Node) -> str:
    """Say what of the node is promised twice or was never there; empty where nothing is."""
    cpu_millis = memory_mib = 0
    gpu_millis: dict[int, int] = {}
    for job in state.seats.on(node.name):
        floor = state.floors[job.id]
        for member in job.members:
            if member.node != node.name or not member.active:
                continue
            cpu_millis += floor.cpu_millis
            memory_mib += floor.memory_mib
            for index in member.gpu_indices:
                gpu_millis[index] = gpu_millis.get(index, 0) + (floor.gpu_millis or WHOLE_MILLIS)
    if cpu_millis > node.capacity.cpu_millis:
        return f"{cpu_millis} of {node.capacity.cpu_millis} thousandths of a CPU"
    if memory_mib > node.capacity.memory_mib:
        return f"{memory_mib} of {node.capacity.memory_mib} MiB"
    there = {gpu.index for gpu in node.gpus}
    for index, millis in sorted(gpu_millis.items()):
        if index not in there or millis > WHOLE_MILLIS:
            return f"{millis} thousandths of GPU {index}, of {WHOLE_MILLIS if index in there else 0}"
    return ""
