"""What must be true of the scheduler's state after every event, whatever happened."""

from __future__ import annotations

from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.leasing import asks, limits_mib
from tidegate_scheduler.policy.sharing import quota_millis
from tidegate_scheduler.state import Member, Node, State


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
    cpu = quota = memory = had = 0
    gpu_millis: dict[int, int] = {}
    for job in state.jobs.values():
        for member in job.members:
            if member.active and member.node == node.name:
                spec, floor, extra = state.specs[job.id], state.floors[job.id], member.extra or Resources()
                cpu += floor.cpu_millis + extra.cpu_millis
                memory += floor.memory_mib + extra.memory_mib
                had += _has_mib(spec, floor, member)
                quota += quota_millis(spec, member.quotas)
                count = (floor.gpus or bool(floor.gpu_millis)) + extra.gpus
                count += (member.leased.gpus if member.leased else 0) - len(member.lent_gpus)
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
    if had > node.capacity.memory_mib:
        return f"{node.name}: members have {had} MiB of {node.capacity.memory_mib}"
    return _overfull_devices(node, gpu_millis)


def _has_mib(spec: JobSpec, floor: Resources, member: Member) -> int:
    """Return the memory that a member has: its floor, or, if they follow its phases, its limits in the kernel."""
    return max(limits_mib(spec, member.quotas), member.held_mib) if asks(spec) else floor.memory_mib


def _overfull_devices(node: Node, gpu_millis: dict[int, int]) -> str:
    if max(gpu_millis.values(), default=0) > 1000:
        return f"{node.name}: a GPU given more than once: {gpu_millis}"
    if not set(gpu_millis) <= {gpu.index for gpu in node.gpus}:
        return f"{node.name} has no such GPU: {gpu_millis}"
    return ""
