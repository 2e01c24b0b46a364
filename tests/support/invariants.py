"""What must be true of the scheduler's state after every event, whatever happened."""

from __future__ import annotations

from tidegate_scheduler.policy.resize import quota_millis
from tidegate_scheduler.state import State


def check(state: State) -> None:
    """Raise AssertionError naming the job or node that breaks an invariant."""
    for job in state.jobs.values():
        ranks = [member.rank for member in job.members]
        if job.waiting:
            assert not ranks, f"{job.id} waits and yet has members"
        else:
            gang = state.specs[job.id].gang_size
            assert sorted(ranks) == list(range(gang)), f"{job.id}: a partial gang, {ranks} of {gang}"
        assert job.id not in state.finished, f"{job.id} is live and finished"
    for node in state.nodes.values():
        if node.status == "lost":
            continue
        cpu = quota = memory = 0
        gpus: list[int] = []
        for job in state.jobs.values():
            for member in job.members:
                if member.active and member.node == node.name:
                    cpu += state.floors[job.id].cpu_millis
                    memory += state.floors[job.id].memory_mib
                    quota += quota_millis(state.specs[job.id], member.quotas)
                    gpus.extend(member.gpu_indices)
        assert cpu <= node.capacity.cpu_millis, f"{node.name}: {cpu} millis promised of {node.capacity.cpu_millis}"
        assert quota <= node.capacity.cpu_millis, f"{node.name}: quotas of {quota} of {node.capacity.cpu_millis}"
        assert memory <= node.capacity.memory_mib, f"{node.name}: {memory} MiB of {node.capacity.memory_mib}"
        assert len(gpus) == len(set(gpus)), f"{node.name}: a GPU given twice: {gpus}"
        assert set(gpus) <= {gpu.index for gpu in node.gpus}, f"{node.name} has no such GPU: {gpus}"
