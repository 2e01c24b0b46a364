"""What must be true of the scheduler's state after every event, whatever happened."""

from __future__ import annotations

from tidegate_events.resources import Resources
from tidegate_events.spec import JobSpec
from tidegate_scheduler.leasing import asks, limits_mib
from tidegate_scheduler.leasing import share_millis as share_of
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
    held, has = dict[int, int](), dict[int, int]()
    for job in state.jobs.values():
        for member in job.members:
            if member.active and member.node == node.name:
                spec, floor, extra = state.specs[job.id], state.floors[job.id], member.extra or Resources()
                cpu += floor.cpu_millis + extra.cpu_millis
                memory += floor.memory_mib + extra.memory_mib
                had += _has_mib(spec, floor, member)
                quota += quota_millis(spec, member.quotas)
                if broken := _devices(floor, member, held, has):
                    return f"{node.name}: {job.id} {broken}"
    if cpu > node.capacity.cpu_millis:
        return f"{node.name}: {cpu} millis promised of {node.capacity.cpu_millis}"
    if quota > node.capacity.cpu_millis:
        return f"{node.name}: quotas of {quota} of {node.capacity.cpu_millis}"
    if memory > node.capacity.memory_mib:
        return f"{node.name}: {memory} MiB of {node.capacity.memory_mib}"
    if had > node.capacity.memory_mib:
        return f"{node.name}: members have {had} MiB of {node.capacity.memory_mib}"
    return _overfull_devices(node, held) or _overfull_devices(node, has)


def _has_mib(spec: JobSpec, floor: Resources, member: Member) -> int:
    """Return the memory that a member has: its floor, or, if they follow its phases, its limits in the kernel."""
    return max(limits_mib(spec, member.quotas), member.held_mib) if asks(spec) else floor.memory_mib


def _devices(floor: Resources, member: Member, held: dict[int, int], has: dict[int, int]) -> str:
    """Count what the member holds of devices, and what it has of them now; say what of it cannot be."""
    extra, leased = member.extra or Resources(), member.leased or Resources()
    holds_millis, share_millis = floor.gpu_millis + extra.gpu_millis, share_of(floor, member)
    if holds_millis or leased.gpu_millis:
        if not 0 <= member.lent_millis <= floor.gpu_millis or share_millis > 1000:
            return f"has {share_millis} of a device and lends {member.lent_millis} of {floor.gpu_millis}"
        lends_all = bool(holds_millis and not share_millis)
        if len(member.gpu_indices) != bool(share_millis) or len(member.lent_gpus) != lends_all:
            return f"has {share_millis} of a device: {member.gpu_indices}, {member.lent_gpus}"
        for index in (*member.gpu_indices, *member.lent_gpus):
            held[index] = held.get(index, 0) + holds_millis
            has[index] = has.get(index, 0) + share_millis
        return ""
    count = floor.gpus + extra.gpus + leased.gpus - len(member.lent_gpus)
    if len(set(member.gpu_indices)) != count:
        return f"needs {count} GPUs and has {member.gpu_indices}"
    own = member.gpu_indices[: count - leased.gpus]
    held |= {index: held.get(index, 0) + 1000 for index in (*own, *member.lent_gpus)}
    has |= {index: has.get(index, 0) + 1000 for index in member.gpu_indices}
    return ""


def _overfull_devices(node: Node, gpu_millis: dict[int, int]) -> str:
    if max(gpu_millis.values(), default=0) > 1000:
        return f"{node.name}: a GPU given more than once: {gpu_millis}"
    if not set(gpu_millis) <= {gpu.index for gpu in node.gpus}:
        return f"{node.name} has no such GPU: {gpu_millis}"
    return ""
