"""Process trees without control groups: found by descent from the shim, named by pid and start time."""

from __future__ import annotations

import os
import signal
import time

ROUNDS_MAX = 200
STAT_BYTES_MAX = 4096  # some fifty numbers


def start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; with its pid this names it for good. None: gone."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def stat_fields(pid: int) -> list[str] | None:
    """/proc/<pid>/stat from the state on (proc_pid_stat(5)); the name before it may hold anything."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends just now
        return None
    try:
        return os.read(descriptor, STAT_BYTES_MAX).decode(errors="replace").rpartition(")")[2].split()
    except ProcessLookupError:
        return None
    finally:
        os.close(descriptor)


def parents() -> dict[int, int]:
    """Parent by pid, of every process we can see."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))):
            found[int(name)] = int(fields[1])
    return found


def sessions() -> dict[int, int]:
    """Session by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))):
            found[int(name)] = int(fields[3])
    return found


def descendants(top: int) -> list[int]:
    """Every process below `top`."""
    above = parents()
    children: dict[int, list[int]] = {}
    for pid, parent in above.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = list(children.get(top, []))
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def tree_of(leader: int) -> list[int]:
    """A replica's processes: below its leader, or in the session that the leader made."""
    own = os.getpid()
    member = {pid for pid, session in sessions().items() if session == leader}
    return sorted((member | set(descendants(leader)) | {leader}) - {own})


def kill_tree(leader: int) -> None:
    """SIGKILL a replica's tree until nothing of it can be found."""
    for _ in range(ROUNDS_MAX):
        alive = [pid for pid in tree_of(leader) if start_ticks(pid) is not None]
        if not alive:
            return
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.002)


def kill_descendants(top: int, spare: set[int]) -> None:
    """SIGKILL everything below `top` but `spare`."""
    for _ in range(ROUNDS_MAX):
        alive = [pid for pid in descendants(top) if pid not in spare and start_ticks(pid) is not None]
        if not alive:
            return
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.002)


def end_child(pid: int) -> None:
    """Kill and reap a process if it is a child of ours that was not reaped: its number may be another's otherwise."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
