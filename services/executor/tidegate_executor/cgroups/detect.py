"""Find out by trying which control groups this agent may use: create, write, read back, remove."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from tidegate_executor.cgroups.base import CgroupError, Driver, Quota
from tidegate_executor.cgroups.v1 import CONTROLLERS, V1Driver
from tidegate_executor.cgroups.v2 import AGENT_LEAF, V2Driver, is_real_root

PROBE_QUOTA = Quota(cpu_millis=500, memory_mib=64, pids=32)

REMEDY = (
    "No control groups can be used, so no CPU, memory or pids limit can be enforced. On a host with systemd start "
    "the agent in a delegated scope (`systemd-run --user --scope -p Delegate=yes <command>`) or as a service with "
    "`Delegate=yes` and `KillMode=process`; in a container give it a writable cgroup tree (Docker: "
    "`--privileged --cgroupns=private`); or run it as root."
)


class Detected(NamedTuple):
    """The driver that works (None: none does) and what was tried in vain."""

    driver: Driver | None
    tried: tuple[str, ...]


class Mounts(NamedTuple):
    """Where this process's control groups are: version 2 directory, and version 1 directories by controller."""

    unified_root: Path | None
    unified_own: Path | None
    legacy_own: dict[str, Path]


def read_mounts(mountinfo: str, own: str) -> Mounts:
    """Combine /proc/self/mountinfo and /proc/self/cgroup (formats: proc_pid_mountinfo(5), cgroups(7))."""
    own_paths: dict[str, str] = {}
    for line in own.splitlines():
        number, controllers, path = line.split(":", 2)
        for controller in controllers.split(",") if number != "0" else [""]:
            own_paths[controller] = path
    unified_root = unified_own = None
    legacy: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        root, mount_point = left.split()[3:5]
        kind, options = right.split()[0], right.split()[-1].split(",")
        if kind == "cgroup2":
            unified_root = Path(mount_point)
            unified_own = below(unified_root, root, own_paths.get("", "/"))
        elif kind == "cgroup":
            for controller in CONTROLLERS:
                if controller in options:
                    legacy[controller] = below(Path(mount_point), root, own_paths.get(controller, "/"))
    return Mounts(unified_root, unified_own, legacy)


def below(mount_point: Path, root: str, path: str) -> Path:
    """The directory of group `path` in a mount that shows the hierarchy from `root` down."""
    relative = os.path.relpath(path, root)
    return mount_point if relative.startswith("..") else mount_point / relative


def candidates(mounts: Mounts, name: str, parent: str | None, uid: int) -> list[Driver]:
    """What is worth trying, best first."""
    found: list[Driver] = []
    if parent is not None:
        found.append(V2Driver(Path(parent), name, own=False))
    elif mounts.unified_root is not None and mounts.unified_own is not None:
        own = mounts.unified_own
        if own.name == AGENT_LEAF:
            found.append(V2Driver(own.parent, name, own=False))
        elif uid == 0 and is_real_root(mounts.unified_root):
            found.append(V2Driver(mounts.unified_root, name, own=False))  # it may hold processes and groups
        else:
            found.append(V2Driver(own, name, own=True))
    if set(mounts.legacy_own) == set(CONTROLLERS) and uid == 0:
        found.append(V1Driver({key: path / name for key, path in mounts.legacy_own.items()}))
    return found


def prove(driver: Driver) -> None:
    """Raise CgroupError unless limits written in a fresh group read back as written."""
    driver.prepare()
    group = driver.group(f"probe-{os.getpid()}")
    group.create()
    try:
        group.bound(PROBE_QUOTA.memory_mib, PROBE_QUOTA.pids)
        leaf = group.child("leaf")
        leaf.create()
        leaf.apply(PROBE_QUOTA)
        seen = leaf.quota()
        if seen != PROBE_QUOTA:
            raise CgroupError(f"wrote {PROBE_QUOTA}, the kernel reads back {seen}")
    finally:
        group.remove()


def detect(name: str, parent: str | None = None) -> Detected:
    """The first candidate that proves itself."""
    mounts = read_mounts(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    tried = []
    for driver in candidates(mounts, name, parent, os.geteuid()):
        try:
            prove(driver)
        except (CgroupError, OSError) as error:
            tried.append(f"{driver.kind}: {error}")
        else:
            return Detected(driver, tuple(tried))
    return Detected(None, tuple(tried) or ("no cgroup file system is mounted for this user",))


def driver_from(described: dict[str, str]) -> Driver:
    """The driver that `describe` described."""
    kind = described["kind"]
    if kind == V2Driver.kind:
        return V2Driver(Path(described["parent"]), described["name"], own=described["own"] == "1")
    if kind == V1Driver.kind:
        return V1Driver({name: Path(described[name]) for name in CONTROLLERS})
    raise CgroupError(f"unknown control group driver {kind!r}; known: {V1Driver.kind}, {V2Driver.kind}")
