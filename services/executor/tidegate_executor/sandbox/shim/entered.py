"""What we change in a container that an engine has made: its name, and mounts that it was not made with.

An engine changes neither. The container's namespaces are kept by descriptor, for a pid could be another process
tomorrow; no command of a job may run in it yet.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from tidegate_executor.sandbox.shim import syscalls
from tidegate_executor.sandbox.shim.hands import Gathered
from tidegate_executor.sandbox.shim.joining import in_child
from tidegate_executor.sandbox.shim.late import HOSTS_PATH, attach
from tidegate_executor.sandbox.shim.processes import start_ticks

# Of statvfs(3), with the same bits as mount(2): what stays as it is when the root is made writable for a moment.
KEPT = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC
KINDS = {"uts": syscalls.CLONE_NEWUTS, "mnt": syscalls.CLONE_NEWNS}


class Container(NamedTuple):
    """One that runs: its id, its process 1 on the host and when that began."""

    id: str
    pid: int
    ticks: int | None

    @property
    def lives(self) -> bool:
        return self.ticks is not None and start_ticks(self.pid) == self.ticks


class Entered:
    """The namespaces of a container whose process 1 has this pid."""

    def __init__(self, pid: int) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._namespaces = {kind: os.open(f"/proc/{pid}/ns/{kind}", flags) for kind in KINDS}

    def rename(self, hostname: str) -> None:
        """Give it its name. Raises JoiningError."""
        in_child(lambda: self._take_name(hostname), "the container's name")

    def _take_name(self, hostname: str) -> None:
        syscalls.setns(self._namespaces["uts"], KINDS["uts"])
        syscalls.set_hostname(hostname)

    def attach(self, config: dict[str, Any], gathered: list[Gathered]) -> None:
        """In a child: give it its name and mount all of it inside, where the root is read-only before and after.

        /etc/hosts is a file of the sandbox's that it has mounted already.
        """
        self._take_name(config["hostname"])
        syscalls.setns(self._namespaces["mnt"], KINDS["mnt"])
        flags = syscalls.MS_BIND | syscalls.MS_REMOUNT | os.statvfs("/").f_flag & KEPT
        syscalls.mount("none", "/", None, flags)
        for each in gathered:
            if each.target != HOSTS_PATH:
                attach(each, "/", each.target)
        syscalls.mount("none", "/", None, flags | syscalls.MS_RDONLY)

    def close(self) -> None:
        for descriptor in self._namespaces.values():
            os.close(descriptor)
        self._namespaces = {}
