"""What must be true of the scheduler's state after every event, whatever happened."""

from __future__ import annotations

from tidegate_scheduler.policy.sharing import quota_millis
from tidegate_scheduler.state import Node, State


def check(state: State, shrunk: frozenset[str] = frozenset()) -> None:
    """Raise AssertionError naming the job or node that breaks an invariant.

    Nodes in `shrunk` came back smaller than what they hold, which nobody can help but by asking jobs to leave.
    """
    for job in state.jobs.values():
        ranks = [member.rank for member in job.members]
        if job.waiting:
            assert not ranks, f"{job.id} waits and yet has members"
        else:
            gang = state.specs[job.id].gang_size
            assert sorted(ranks) == list(range(gang)), f"{job.id}: a partial gang, {ranks} of {gang}"
        assert job.id not in state.finished, f"{job.id} is live and finished"
    for node in state.nodes.values():
        if node.status != "lost" and node.name not in shrunk:
            assert not (broken := overfull(state, node)), broken


def overfull(state: State, node: Node) -> str:
    """Say what of the node is given twice or was never there; empty where nothing is."""
    cpu = quota = memory = 0
    gpu_millis: dict[int, int] = {}
    for job in state.jobs.values():
        for member in job.members:
            if member.active and member.node == node.name:
                floor = state.floors[job.id]
                cpu += floor.cpu_millis
                memory += floor.memory_mib
                quota += quota_millis(state.specs[job.id], member.quotas)
                count = floor.gpus or bool(floor.gpu_millis)
                if len(set(member.gpu_indices)) != count:
                    return f"{node.name}: {job.id} needs {count} GPUs and has {member.gpu_indices}"
                for index in member.gpu_indices:
                    gpu_millis[index] = gpu_millis.get(index, 0) + (floor.gpu_millis or 1000)
    if cpu > node.capacity.cpu_millis:
        return f"{node.name}: {cpu} millis promised of {node.capacity.cpu_millis}"
    if quota > node.capacity.cpu_millis:
        return f"{node.name}: quotas of {quota} of {node.capacity.cpu_millis}"
    if memory > node.capacity.memory_mib:
        return f"{node.name}: {memory} MiB of {node.capacity.memory_mib}"
    return _overfull_devices(node, gpu_millis)


def _overfull_devices(node: Node, gpu_millis: dict[int, int]) -> str:
    if max(gpu_millis.values(), default=0) > 1000:
        return f"{node.name}: a GPU given more than once: {gpu_millis}"
    if not set(gpu_millis) <= {gpu.index for gpu in node.gpus}:
        return f"{node.name} has no such GPU: {gpu_millis}"
    return ""
