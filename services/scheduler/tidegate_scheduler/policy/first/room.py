"""The room of the cluster in one pass: what is free, what is being left, and what belongs to whom.

A member holds its floor (its largest need over phases), so that no phase change can need room that is not there. Room
that a leaving job still holds is not free, but it may be promised; promised room is for nobody else, but for jobs of
higher priority, who could take it from its owner anyway: a promise that held them up would wait for them in turn.
"""

from __future__ import annotations

import msgspec
from tidegate_events.resources import GpuDevice, Resources

from tidegate_scheduler.state import LEAVING_STAGES, Job, Node, State


class Space(msgspec.Struct):
    """Room for members on one node: `gpus` are the devices to choose from, of which `gpu_count` may be taken."""

    cpu_millis: int
    memory_mib: int
    gpus: list[GpuDevice]
    gpu_count: int

    def takes(self, need: Resources) -> bool:
        """Say whether one more member with `need` fits."""
        if need.cpu_millis > self.cpu_millis or need.memory_mib > self.memory_mib or need.gpus > self.gpu_count:
            return False
        return not need.gpus or need.gpus <= len(self._fitting(need))

    def copied(self) -> Space:
        """Return a copy, to take from."""
        return Space(self.cpu_millis, self.memory_mib, self.gpus, self.gpu_count)

    def take(self, need: Resources) -> tuple[int, ...]:
        """Take room for one member; return the indices of its GPUs (smallest sufficient memory first)."""
        self.cpu_millis -= need.cpu_millis
        self.memory_mib -= need.memory_mib
        if not need.gpus:
            return ()
        chosen = self._fitting(need)[: need.gpus]
        self.gpu_count -= need.gpus
        self.gpus = [gpu for gpu in self.gpus if gpu not in chosen]
        return tuple(gpu.index for gpu in chosen)

    def _fitting(self, need: Resources) -> list[GpuDevice]:
        fitting = [gpu for gpu in self.gpus if gpu.memory_mib >= need.gpu_memory_mib]
        return sorted(fitting, key=lambda gpu: (gpu.memory_mib, gpu.index))


class _Ledger(msgspec.Struct):
    """One node's accounts. `freed` is what will be free once the leaving ones left, `now` what may be taken at once.

    Both are without promises, and kept until somebody comes (then they are None) or more are asked to leave.
    """

    devices: dict[int, GpuDevice]
    free: Space
    held: list[tuple[str, Resources, tuple[int, ...]]]
    promised: dict[str, Resources]
    freed: Space | None = None
    now: Space | None = None
    leaving: int = 0


class Room:
    """The accounts of all nodes, changed while a pass places jobs, thrown away after it."""

    def __init__(self, state: State, leaving: set[str]) -> None:
        """Open the accounts; `leaving` grows while the pass asks more jobs to leave."""
        self._state = state
        self._leaving = leaving
        self._promised_on: dict[str, set[str]] = {}
        self._ledgers = {name: self._open(node) for name, node in sorted(state.nodes.items())}
        for job in state.jobs.values():
            for member in job.members:
                if member.active:
                    self._occupy(job, member.node, member.gpu_indices)
            if job.waiting:
                for name in job.reserved_nodes:
                    self.promise(job, name)

    def now_for(self, job: Job, name: str) -> Space:
        """Return what `job` may take on the node at once: free room less what is promised to others.

        To be looked at only: take from a copy.
        """
        ledger = self._ledgers[name]
        if not ledger.promised:
            self._freed(ledger)
            assert ledger.now is not None
            return ledger.now
        return _smaller(ledger.free, self._later(ledger, job, victims=frozenset()))

    def all_now_for(self, job: Job, nodes: list[Node]) -> dict[str, Space]:
        """Return `now_for` each of the nodes, by name: most have nothing promised and have not changed since."""
        leaving = len(self._leaving)
        spaces: dict[str, Space] = {}
        for node in nodes:
            name = node.name
            ledger = self._ledgers[name]
            now = ledger.now
            if ledger.promised or now is None or ledger.freed is None or ledger.leaving != leaving:
                now = self.now_for(job, name)
            spaces[name] = now
        return spaces

    def later_for(self, job: Job, name: str, victims: frozenset[str]) -> Space:
        """Return what `job` could take once the leaving jobs and `victims` have left."""
        return self._later(self._ledgers[name], job, victims)

    def overfull(self) -> list[str]:
        """Return the nodes on which members hold more than there is."""
        return [
            name
            for name, ledger in self._ledgers.items()
            if min(ledger.free.cpu_millis, ledger.free.memory_mib) < 0
            or any(index not in ledger.devices for _, _, indices in ledger.held for index in indices)
        ]

    def place(self, job: Job, name: str, gpu_indices: tuple[int, ...]) -> None:
        """Take the room of one member of `job` on the node."""
        self._occupy(job, name, gpu_indices)
        self._ledgers[name].promised.pop(job.id, None)

    def promise(self, job: Job, name: str) -> None:
        """Promise room for one member of `job` on the node."""
        if name in self._ledgers:
            promised = self._ledgers[name].promised
            promised[job.id] = promised.get(job.id, Resources()).plus(self._state.floors[job.id])
            self._promised_on.setdefault(job.id, set()).add(name)

    def withdraw(self, job: Job) -> None:
        """Take back every promise to `job`."""
        for name in self._promised_on.pop(job.id, ()):
            self._ledgers[name].promised.pop(job.id, None)

    def _open(self, node: Node) -> _Ledger:
        free = Space(node.capacity.cpu_millis, node.capacity.memory_mib, list(node.gpus), len(node.gpus))
        return _Ledger({gpu.index: gpu for gpu in node.gpus}, free, [], {})

    def _occupy(self, job: Job, name: str, gpu_indices: tuple[int, ...]) -> None:
        ledger = self._ledgers.get(name)
        if ledger is None:
            return
        need = self._state.floors[job.id]
        free = ledger.free
        free.cpu_millis -= need.cpu_millis
        free.memory_mib -= need.memory_mib
        if gpu_indices:
            free.gpu_count -= len(gpu_indices)
            free.gpus = [gpu for gpu in free.gpus if gpu.index not in gpu_indices]
        ledger.held.append((job.id, need, gpu_indices))
        ledger.freed = None

    def _later(self, ledger: _Ledger, job: Job, victims: frozenset[str]) -> Space:
        space = self._freed(ledger).copied()
        for job_id, need, gpu_indices in ledger.held if victims else ():
            if job_id in victims and not self._leaves(job_id):
                _give_back(space, need, gpu_indices, ledger.devices)
        for owner, need in ledger.promised.items():
            if owner != job.id and self._state.jobs[owner].priority >= job.priority:
                space.cpu_millis -= need.cpu_millis
                space.memory_mib -= need.memory_mib
                space.gpu_count -= need.gpus
        return space

    def _freed(self, ledger: _Ledger) -> Space:
        """Return what will be free once the leaving ones left; `self._leaving` only grows, so its size tells."""
        if ledger.freed is None or ledger.leaving != len(self._leaving):
            space = ledger.free.copied()
            for job_id, need, gpu_indices in ledger.held:
                if self._leaves(job_id):
                    _give_back(space, need, gpu_indices, ledger.devices)
            ledger.freed, ledger.now, ledger.leaving = space, _smaller(ledger.free, space), len(self._leaving)
        return ledger.freed

    def _leaves(self, job_id: str) -> bool:
        return job_id in self._leaving or self._state.jobs[job_id].stage in LEAVING_STAGES


def _smaller(free: Space, later: Space) -> Space:
    """Return what is free now and is not needed later by others."""
    return Space(
        min(free.cpu_millis, later.cpu_millis),
        min(free.memory_mib, later.memory_mib),
        free.gpus,
        min(free.gpu_count, later.gpu_count),
    )


def _give_back(space: Space, need: Resources, gpu_indices: tuple[int, ...], devices: dict[int, GpuDevice]) -> None:
    space.cpu_millis += need.cpu_millis
    space.memory_mib += need.memory_mib
    if gpu_indices:
        space.gpu_count += len(gpu_indices)
        space.gpus = [*space.gpus, *(devices[index] for index in gpu_indices if index in devices)]
