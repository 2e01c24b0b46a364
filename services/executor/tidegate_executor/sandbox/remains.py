"""Remove what a sandbox left: processes by control group, else by pid and start time; never by name."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tidegate_executor.cgroups.base import CgroupError
from tidegate_executor.cgroups.detect import driver_from
from tidegate_executor.cgroups.engine import engine_path, remove_elsewhere
from tidegate_executor.sandbox import disk, networks
from tidegate_executor.sandbox.base import InfrastructureError
from tidegate_executor.sandbox.shim import processes
from tidegate_executor.sandbox.shim.engine import Engine, EngineError
from tidegate_executor.sandbox.shim.layout import FILES_NAME
from tidegate_executor.sandbox.state import ID_PATTERN, StateDirectory

SHIM_SECONDS_MAX = 5.0


def clear_remains(state: StateDirectory) -> None:
    """End the shim if it still lives, then its processes, then remove groups and the directory. Idempotent."""
    record = state.record()
    end_remains(state)
    disk.release(state.path / FILES_NAME)
    state.remove()
    if record is not None and record.network and record.network not in _networks_in_use(state.path.parent):
        networks.remove(state.path.parent, record.network)


def _networks_in_use(sandboxes_dir: Path) -> set[str]:
    states = [
        StateDirectory(str(sandboxes_dir), entry.name)
        for entry in sandboxes_dir.iterdir()
        if ID_PATTERN.fullmatch(entry.name)
    ]
    records = [state.record() for state in states]
    return {record.network for record in records if record is not None}


def end_remains(state: StateDirectory) -> None:
    """End all that runs and remove its groups; the directory, and so the history, stays. Idempotent."""
    end_shim(state)
    record = state.record()
    if record is not None and record.cgroup is not None:
        try:
            driver_from(record.cgroup).group(record.group_name).remove()
        except CgroupError as error:
            raise InfrastructureError(f"sandbox {state.id}: {error}") from error
    if record is not None and record.engine and record.cgroup is not None:
        _end_in_engine(record.group_name, record.engine, record.cgroup)
    for pid, start_ticks in state.unfinished():
        if processes.start_ticks(pid) == start_ticks:
            processes.kill_tree(pid)


def _end_in_engine(group: str, engine: str, cgroup: dict[str, str]) -> None:
    try:
        place = engine_path(driver_from(cgroup))
        Engine(engine).remove_all(f"{place}/{group}")
        remove_elsewhere(place, group)
    except (CgroupError, EngineError) as error:
        raise InfrastructureError(f"control group {group}: {error}") from error


def end_shim(state: StateDirectory) -> None:
    """SIGKILL the shim; bubblewrap and its process 1 asked the kernel to die with it."""
    identity = state.shim()
    if identity is None:
        return
    with suppress(ProcessLookupError):  # it ended just now
        os.kill(identity.pid, signal.SIGKILL)
    deadline = time.monotonic() + SHIM_SECONDS_MAX
    while state.shim() is not None:
        if time.monotonic() > deadline:
            raise InfrastructureError(f"sandbox {state.id}: shim {identity.pid} survives SIGKILL")
        time.sleep(0.002)
