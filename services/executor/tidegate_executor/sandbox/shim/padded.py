"""The control group of a replica whose place needs something of its own: its limits are the replica's and that."""

from __future__ import annotations

from tidegate_executor.cgroups.base import Group, Quota, Usage


class PaddedGroup:
    """See `Group`. What is asked for and read back is the replica's part alone."""

    def __init__(self, group: Group, memory_mib: int, threads: tuple[int, int]) -> None:
        """`threads`: of the host, for each process of the replica, and beside those."""
        self._group = group
        self._memory_mib = memory_mib
        self._each, self._more = threads

    def apply(self, quota: Quota) -> None:
        threads = self._each * quota.pids + self._more
        self._group.apply(Quota(quota.cpu_millis, quota.memory_mib + self._memory_mib, threads))

    def quota(self) -> Quota:
        quota = self._group.quota()
        return Quota(quota.cpu_millis, quota.memory_mib - self._memory_mib, (quota.pids - self._more) // self._each)

    def create(self) -> None:
        self._group.create()

    def child(self, name: str) -> Group:
        return self._group.child(name)

    def add(self, pid: int) -> None:
        self._group.add(pid)

    def bound(self, memory_mib: int, pids: int) -> None:
        self._group.bound(memory_mib, pids)

    def usage(self) -> Usage:
        return self._group.usage()

    def pids(self) -> list[int]:
        return self._group.pids()

    def kill(self) -> None:
        self._group.kill()

    def freeze(self) -> None:
        self._group.freeze()

    def thaw(self) -> None:
        self._group.thaw()

    def frozen(self) -> bool:
        return self._group.frozen()

    def watch_oom(self) -> int | None:
        return self._group.watch_oom()

    def exists(self) -> bool:
        return self._group.exists()

    def remove(self) -> None:
        self._group.remove()
