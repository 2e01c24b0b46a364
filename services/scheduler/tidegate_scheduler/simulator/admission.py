"""What a node's agent would say of a decision: what is given away twice could not be had in the service either."""

from __future__ import annotations

from tidegate_events.resources import Resources

from tidegate_scheduler.leasing import share_millis
from tidegate_scheduler.policy.elastic.devices import WHOLE_MILLIS
from tidegate_scheduler.policy.sharing import quota_millis
from tidegate_scheduler.simulator.baselines.domains import bound_of, place_of
from tidegate_scheduler.state import Job, Member, Node, State


def device_millis(floor: Resources, member: Member) -> int:
    """Return how much a member has of each of its devices."""
    return share_millis(floor, member) or WHOLE_MILLIS


def overfull(state: State, node: Node) -> str:
    """Say what of the node is promised twice or was never there; empty where nothing is."""
    cpu_millis = memory_mib = 0
    for job in state.seats.on(node.name):
        floor = state.floors[job.id]
        for member in job.members:
            if member.node == node.name and member.active:
                cpu_millis += floor.cpu_millis
                memory_mib += floor.memory_mib
    if cpu_millis > node.capacity.cpu_millis:
        return f"{cpu_millis} of {node.capacity.cpu_millis} thousandths of a CPU"
    if memory_mib > node.capacity.memory_mib:
        return f"{memory_mib} of {node.capacity.memory_mib} MiB"
    return overdrawn(state, node)


def apart(state: State, job: Job) -> str:
    """Say how far the members of a gang are from each other that has to be close together; empty where they may be."""
    levels, *_ = bound_of(state.specs[job.id], job)
    where = {place_of(state.nodes[member.node], levels[-1]) for member in job.members}
    return f"in more than one {levels[-1]}: {', '.join(sorted(where))}" if len(where) > 1 else ""


def overdrawn(state: State, node: Node) -> str:
    """Say what of the node members may use that others may, too, or that was never there; empty where nothing is."""
    cpu_millis, gpu_millis = 0, dict[int, int]()
    for job in state.seats.on(node.name):
        for member in job.members:
            if member.node != node.name or not member.active:
                continue
            cpu_millis += quota_millis(state.specs[job.id], member.quotas)
            for index in member.gpu_indices:
                more = device_millis(state.floors[job.id], member)
                gpu_millis[index] = gpu_millis.get(index, 0) + more
    if cpu_millis > node.capacity.cpu_millis:
        return f"quotas of {cpu_millis} of {node.capacity.cpu_millis} thousandths of a CPU"
    there = {gpu.index for gpu in node.gpus}
    for index, millis in sorted(gpu_millis.items()):
        if index not in there or millis > WHOLE_MILLIS:
            return f"{millis} thousandths of GPU {index}, of {WHOLE_MILLIS if index in there else 0}"
    return ""
