"""Control groups of version 1 (hybrid and legacy layouts), as root: the same nested tree in each hierarchy."""

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

CONTROLLERS = ("cpu", "cpuacct", "memory", "pids", "freezer")
UNLIMITED = 1 << 60  # above it the kernel means "no limit"


class V1Group:
    """The directories of one group, by controller (two controllers may share one)."""

    def __init__(self, directories: dict[str, Path]) -> None:
        self._at = directories
        self._distinct = tuple(dict.fromkeys(directories.values()))

    def create(self) -> None:
        for directory in self._distinct:
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CgroupError(f"cannot create {directory}: {error.strerror}") from error

    def child(self, name: str) -> V1Group:
        return V1Group({controller: directory / name for controller, directory in self._at.items()})

    def add(self, pid: int) -> None:
        for directory in self._distinct:
            write(directory / "cgroup.procs", str(pid))

    def apply(self, quota: Quota) -> None:
        self._set_memory(quota.memory_mib)
        write(self._at["cpu"] / "cpu.cfs_period_us", str(CPU_PERIOD_USEC))
        write(self._at["cpu"] / "cpu.cfs_quota_us", str(quota.cpu_millis * CPU_PERIOD_USEC // 1000))
        write(self._at["pids"] / "pids.max", str(quota.pids))

    def bound(self, memory_mib: int, pids: int) -> None:
        self._set_memory(memory_mib)
        write(self._at["pids"] / "pids.max", str(pids))

    def _set_memory(self, memory_mib: int) -> None:
        """Memory and memory+swap move together; the kernel wants memory <= memory+swap at every moment."""
        memory = self._at["memory"]
        files = [memory / "memory.limit_in_bytes"]
        swap = memory / "memory.memsw.limit_in_bytes"
        if swap.exists():
            rising = memory_mib * MIB > int(read(files[0]))
            files = [swap, *files] if rising else [*files, swap]
        for path in files:
            try:
                write(path, str(memory_mib * MIB))
            except CgroupError as error:
                cause = error.__cause__
                if isinstance(cause, OSError) and cause.errno == errno.EBUSY:
                    in_use = int(read(memory / "memory.usage_in_bytes")) // MIB
                    raise CgroupRefusedError(
                        f"{memory_mib} MiB refused: {in_use} MiB are in use and not reclaimable"
                    ) from error
                raise

    def quota(self) -> Quota:
        cpu_quota = int(read(self._at["cpu"] / "cpu.cfs_quota_us"))
        period = int(read(self._at["cpu"] / "cpu.cfs_period_us"))
        memory = int(read(self._at["memory"] / "memory.limit_in_bytes"))
        pids = read(self._at["pids"] / "pids.max").strip()
        return Quota(
            cpu_millis=cpu_quota * 1000 // period if cpu_quota >= 0 else -1,
            memory_mib=memory // MIB if memory < UNLIMITED else -1,
            pids=int(pids) if pids != "max" else -1,
        )

    def usage(self) -> Usage:
        memory = self._at["memory"]
        throttling = keyed(read(self._at["cpu"] / "cpu.stat"))
        return Usage(
            cpu_usec=int(read(self._at["cpuacct"] / "cpuacct.usage")) // 1000,
            memory_bytes=int(read(memory / "memory.usage_in_bytes")),
            memory_peak_bytes=int(read(memory / "memory.max_usage_in_bytes")),
            processes=int(read(self._at["pids"] / "pids.current")),
            oom_kills=keyed(read(memory / "memory.oom_control")).get("oom_kill", 0),
            cpu_periods=throttling.get("nr_periods", 0),
            cpu_throttled_periods=throttling.get("nr_throttled", 0),
            cpu_throttled_usec=throttling.get("throttled_time", 0) // 1000,  # nanoseconds in version 1
            memory_limit_hits=int(read(memory / "memory.failcnt")),
        )

    def pids(self) -> list[int]:
        found: set[int] = set()
        for directory in subtree(self._at["pids"]):
            try:
                found.update(int(pid) for pid in (directory / "cgroup.procs").read_text().split())
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):  # the group went while we looked
                    raise CgroupError(f"cannot list {directory}: {error.strerror}") from error
        return sorted(found)

    def kill(self) -> None:
        """Freeze, signal, thaw: a frozen process cannot fork away, and dies when it is thawed."""
        if not self._at["pids"].is_dir():
            return
        for _ in range(KILL_ROUNDS_MAX):
            pids = self.pids()
            if not pids:
                return
            write(self._at["freezer"] / "freezer.state", "FROZEN")  # need not be complete: we come round again
            try:
                for pid in self.pids():
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
            finally:
                self.thaw()
            time.sleep(0.002)
        raise CgroupError(f"processes {self.pids()} survive SIGKILL in {self._at['pids']}")

    def freeze(self) -> None:
        """Ask until the kernel says FROZEN: on version 1 a fork in flight can leave it at FREEZING."""
        state = self._at["freezer"] / "freezer.state"
        deadline = time.monotonic() + FREEZE_SECONDS_MAX
        while True:
            write(state, "FROZEN")
            if read(state).strip() == "FROZEN":
                return
            if time.monotonic() > deadline:
                write(state, "THAWED")
                raise CgroupError(f"{state} did not reach FROZEN in {FREEZE_SECONDS_MAX} s")
            time.sleep(0.001)

    def thaw(self) -> None:
        write(self._at["freezer"] / "freezer.state", "THAWED")

    def frozen(self) -> bool:
        return read(self._at["freezer"] / "freezer.state").strip() != "THAWED"

    def watch_oom(self) -> int | None:
        """Version 1 kills one process only; whoever watches this kills the rest of the group."""
        event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        control = os.open(self._at["memory"] / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
        try:
            write(self._at["memory"] / "cgroup.event_control", f"{event} {control}")
        except CgroupError:
            os.close(event)
            raise
        finally:
            os.close(control)
        return event

    def exists(self) -> bool:
        return any(directory.is_dir() for directory in self._distinct)

    def remove(self) -> None:
        self.kill()
        give_up_memory(self._at["memory"], "memory.usage_in_bytes", "memory.force_empty", "0")
        for directory in self._distinct:
            remove_directories(directory)


class V1Driver:
    """Groups below one directory per hierarchy."""

    kind = "cgroup-v1"

    def __init__(self, bases: dict[str, Path]) -> None:
        missing = [name for name in CONTROLLERS if name not in bases]
        if missing:
            raise CgroupError(f"no hierarchy mounted for: {', '.join(missing)}")
        self._bases = {name: bases[name] for name in CONTROLLERS}

    def prepare(self) -> None:
        V1Group(self._bases).create()

    def group(self, name: str) -> V1Group:
        return V1Group(self._bases).child(name)

    def names(self) -> list[str]:
        found: set[str] = set()
        for base in self._bases.values():
            if base.is_dir():
                found.update(entry.name for entry in os.scandir(base) if entry.is_dir(follow_symlinks=False))
        return sorted(found)

    def release(self) -> None:
        for base in dict.fromkeys(self._bases.values()):
            remove_empty(base)

    def describe(self) -> dict[str, str]:
        return {"kind": self.kind, **{name: str(path) for name, path in self._bases.items()}}
