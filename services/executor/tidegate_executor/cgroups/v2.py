"""Control groups of version 2, in a subtree that is delegated to this agent (systemd) or owned by root."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

from tidegate_executor.cgroups.base import (
    CPU_PERIOD_USEC,
    FREEZE_SECONDS_MAX,
    KILL_ROUNDS_MAX,
    MIB,
    CgroupError,
    CgroupRefusedError,
    Quota,
    Usage,
    give_up_memory,
    keyed,
    read,
    remove_directories,
    remove_empty,
    subtree,
    write,
)

CONTROLLERS = ("cpu", "memory", "pids")
AGENT_LEAF = "agent"  # processes may not sit in a group that gives controllers to its children


def require_controllers(directory: Path) -> None:
    offered = read(directory / "cgroup.controllers").split()
    missing = [name for name in CONTROLLERS if name not in offered]
    if missing:
        raise CgroupError(f"{directory} is not offered the controllers {', '.join(missing)} (has: {offered})")


def enable_controllers(directory: Path) -> None:
    """Give the children of `directory` our controllers."""
    require_controllers(directory)
    given = read(directory / "cgroup.subtree_control").split()
    wanted = [f"+{name}" for name in CONTROLLERS if name not in given]
    if wanted:
        write(directory / "cgroup.subtree_control", " ".join(wanted))


def is_real_root(directory: Path) -> bool:
    """Whether this is the machine's root group (which alone lacks cgroup.type), not a container's."""
    return not (directory / "cgroup.type").exists()


def parent_of(pid: int) -> int:
    """The parent process id, 0 if there is none or the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def ancestors(pid: int) -> list[int]:
    found = []
    while (pid := parent_of(pid)) > 0:
        found.append(pid)
    return found


def strangers(pids: list[int], own: int) -> list[int]:
    """Those of `pids` that are neither ancestors of `own` nor started by its parent (the supervisor)."""
    above = ancestors(own)
    supervisor = above[0] if above else own
    kin = {own, *above}
    return [pid for pid in pids if pid not in kin and supervisor not in ancestors(pid)]


def move_own_processes(directory: Path) -> None:
    """Move the processes that sit in `directory` itself into its leaf, so that it may hold groups.

    Refuses, before anything is touched, where the group is not this agent's own: other people's processes are not
    ours to move, and the machine's root group never is.
    """
    if is_real_root(directory):
        raise CgroupError(f"{directory} is the machine's root group; its processes are not moved")
    pids = [int(pid) for pid in read(directory / "cgroup.procs").split()]
    others = strangers(pids, os.getpid())
    if others:
        raise CgroupError(f"{directory} also holds processes {others[:8]} that this agent did not bring")
    leaf = directory / AGENT_LEAF
    try:
        leaf.mkdir(exist_ok=True)
    except OSError as error:
        raise CgroupError(f"cannot create {leaf}: {error.strerror}") from error
    for pid in pids:
        try:
            write(leaf / "cgroup.procs", str(pid))
        except CgroupError as error:
            if not (isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ESRCH):
                raise


class V2Group:
    """One directory of the unified hierarchy."""

    def __init__(self, directory: Path, *, inner: bool) -> None:
        self._at = directory
        self._inner = inner

    def create(self) -> None:
        try:
            self._at.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CgroupError(f"cannot create {self._at}: {error.strerror}") from error
        if self._inner:
            enable_controllers(self._at)

    def child(self, name: str) -> V2Group:
        return V2Group(self._at / name, inner=False)

    def add(self, pid: int) -> None:
        write(self._at / "cgroup.procs", str(pid))

    def apply(self, quota: Quota) -> None:
        self._set_memory(quota.memory_mib)
        write(self._at / "cpu.max", f"{quota.cpu_millis * CPU_PERIOD_USEC // 1000} {CPU_PERIOD_USEC}")
        write(self._at / "pids.max", str(quota.pids))
        if (self._at / "memory.oom.group").exists():
            write(self._at / "memory.oom.group", "1")

    def bound(self, memory_mib: int, pids: int) -> None:
        self._set_memory(memory_mib)
        write(self._at / "pids.max", str(pids))

    def _set_memory(self, memory_mib: int) -> None:
        """Lowering `memory.max` below the usage would kill, so reclaim first and refuse if that fails."""
        limit = memory_mib * MIB
        excess = int(read(self._at / "memory.current")) - limit
        if excess > 0 and (self._at / "memory.reclaim").exists():
            try:
                write(self._at / "memory.reclaim", str(excess))
            except CgroupError as error:
                cause = error.__cause__
                if not (isinstance(cause, OSError) and cause.errno in (errno.EAGAIN, errno.EINTR)):
                    raise
        in_use = int(read(self._at / "memory.current"))
        if in_use > limit:
            raise CgroupRefusedError(f"{memory_mib} MiB refused: {in_use // MIB} MiB are in use and not reclaimable")
        write(self._at / "memory.max", str(limit))
        if (self._at / "memory.swap.max").exists():
            write(self._at / "memory.swap.max", "0")

    def quota(self) -> Quota:
        cpu_quota, period = read(self._at / "cpu.max").split()
        memory = read(self._at / "memory.max").strip()
        pids = read(self._at / "pids.max").strip()
        return Quota(
            cpu_millis=int(cpu_quota) * 1000 // int(period) if cpu_quota != "max" else -1,
            memory_mib=int(memory) // MIB if memory != "max" else -1,
            pids=int(pids) if pids != "max" else -1,
        )

    def usage(self) -> Usage:
        current = int(read(self._at / "memory.current"))
        peak = self._at / "memory.peak"  # Linux 5.19
        cpu = keyed(read(self._at / "cpu.stat"))
        memory = keyed(read(self._at / "memory.events"))
        return Usage(
            cpu_usec=cpu.get("usage_usec", 0),
            memory_bytes=current,
            memory_peak_bytes=int(read(peak)) if peak.exists() else current,
            processes=int(read(self._at / "pids.current")),
            oom_kills=memory.get("oom_kill", 0),
            cpu_periods=cpu.get("nr_periods", 0),
            cpu_throttled_periods=cpu.get("nr_throttled", 0),
            cpu_throttled_usec=cpu.get("throttled_usec", 0),
            memory_limit_hits=memory.get("max", 0),
        )

    def pids(self) -> list[int]:
        found: set[int] = set()
        for directory in subtree(self._at):
            try:
                found.update(int(pid) for pid in (directory / "cgroup.procs").read_text().split())
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):  # the group went while we looked
                    raise CgroupError(f"cannot list {directory}: {error.strerror}") from error
        return sorted(found)

    def kill(self) -> None:
        if not self._at.is_dir():
            return
        if (self._at / "cgroup.kill").exists():  # Linux 5.14; also catches what forks meanwhile
            write(self._at / "cgroup.kill", "1")
            return
        for _ in range(KILL_ROUNDS_MAX):
            pids = self.pids()
            if not pids:
                return
            write(self._at / "cgroup.freeze", "1")  # need not be complete: we come round again
            try:
                for pid in self.pids():
                    try:
                        os.kill(pid, signal.SIGKILL)  # on version 2 it also ends a frozen process
                    except ProcessLookupError:
                        continue
            finally:
                self.thaw()
            time.sleep(0.002)
        raise CgroupError(f"processes {self.pids()} survive SIGKILL in {self._at}")

    def freeze(self) -> None:
        write(self._at / "cgroup.freeze", "1")
        deadline = time.monotonic() + FREEZE_SECONDS_MAX
        while not keyed(read(self._at / "cgroup.events")).get("frozen", 0):
            if time.monotonic() > deadline:
                write(self._at / "cgroup.freeze", "0")
                raise CgroupError(f"{self._at} did not freeze in {FREEZE_SECONDS_MAX} s")
            time.sleep(0.001)

    def thaw(self) -> None:
        write(self._at / "cgroup.freeze", "0")

    def frozen(self) -> bool:
        return read(self._at / "cgroup.freeze").strip() == "1"

    def watch_oom(self) -> int | None:
        return None  # memory.oom.group makes the kernel kill the whole group

    def exists(self) -> bool:
        return self._at.is_dir()

    def remove(self) -> None:
        self.kill()
        give_up_memory(self._at, "memory.current", "memory.reclaim", "{}")
        remove_directories(self._at)


class V2Driver:
    """Groups below `<parent>/<name>`; `own` says that the agent itself sits in `parent` and must move first."""

    kind = "cgroup-v2"

    def __init__(self, parent: Path, name: str, *, own: bool) -> None:
        self._parent = parent
        self._base = parent / name
        self._own = own

    def prepare(self) -> None:
        require_controllers(self._parent)  # before anything is moved
        if self._own:
            move_own_processes(self._parent)
        enable_controllers(self._parent)
        V2Group(self._base, inner=True).create()

    def group(self, name: str) -> V2Group:
        return V2Group(self._base / name, inner=True)

    def names(self) -> list[str]:
        if not self._base.is_dir():
            return []
        return sorted(entry.name for entry in os.scandir(self._base) if entry.is_dir(follow_symlinks=False))

    def release(self) -> None:
        remove_empty(self._base)

    def describe(self) -> dict[str, str]:
        return {
            "kind": self.kind,
            "parent": str(self._parent),
            "name": self._base.name,
            "own": str(int(self._own)),
        }
