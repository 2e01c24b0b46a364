"""Level `trusted`: a bubblewrap sandbox whose process 1 only holds it; replicas enter it from outside.

The shim forks, joins the sandbox's namespaces, gives up every privilege and executes the job's command, as a container
runtime's `exec` does. So nothing of ours runs inside as the job's user, and the image needs nothing of ours.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
from collections.abc import Callable
from typing import Any

from tidegate_executor.sandbox import seccomp
from tidegate_executor.sandbox.shim import syscalls
from tidegate_executor.sandbox.shim.hold import executable
from tidegate_executor.sandbox.shim.layout import INSIDE_ID, Layout, hosts_text

SETUP_SECONDS_MAX = 20.0
INFO_BYTES_MAX = 65536
COMPLAINT_BYTES_MAX = 2000

# Joined from inside the sandbox's outer user namespace, in this order; the mount namespace last of these.
NAMESPACES = {
    "cgroup": syscalls.CLONE_NEWCGROUP,
    "ipc": syscalls.CLONE_NEWIPC,
    "uts": syscalls.CLONE_NEWUTS,
    "net": syscalls.CLONE_NEWNET,
    "mnt": syscalls.CLONE_NEWNS,
}


class SetupError(Exception):
    """The sandbox could not be built; the text holds bubblewrap's complaint."""


class BwrapLauncher:
    """One sandbox made by bubblewrap."""

    clones = True

    def __init__(self, config: dict[str, Any], place: Callable[[int], None]) -> None:
        """`place` puts a pid into the control group that holds the sandbox's own two processes."""
        self._config = config
        self._place = place
        self._filter = seccomp.program(os.uname().machine)
        self._bwrap = 0
        self._holder = 0
        self._alive = -1
        self._namespaces: dict[str, int] = {}
        self._outer_user = -1
        self._nested = False

    @property
    def bwrap(self) -> int:
        """Pid of bubblewrap, our child, which ends when process 1 does."""
        return self._bwrap

    def open(self) -> int | None:
        syscalls.become_subreaper()
        layout = Layout(self._config)
        layout.prepare()
        alive_read, alive_write = os.pipe()
        info_read, info_write = os.pipe()
        complaint = os.memfd_create("bwrap-stderr", os.MFD_CLOEXEC)
        try:
            self._start_bwrap(layout, (alive_write, info_write, complaint))
            os.close(alive_write)
            os.close(info_write)
            self._holder = self._await_standing(alive_read, info_read, complaint)
            self._open_namespaces()
        finally:
            os.close(info_read)
            os.close(complaint)
        self._alive = alive_read
        return alive_read

    def _start_bwrap(self, layout: Layout, descriptors: tuple[int, int, int]) -> None:
        alive_write, info_write, complaint = descriptors
        files = {
            "hold": memory_file("hold", executable(os.uname().machine)),
            "seccomp": memory_file("seccomp", self._filter),
            "hosts": memory_file("hosts", hosts_text(self._config["bwrap"]["hostname"])),
        }
        gate_read, gate_write = os.pipe()
        self._bwrap = os.fork()
        if self._bwrap == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(gate_write)
                os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
                os.dup2(alive_write, 1)
                os.dup2(complaint, 2)
                for descriptor in (info_write, *files.values()):
                    os.set_inheritable(descriptor, True)
                layout.stage()
                layout.drop_to_sandbox_uid()
                arguments = layout.arguments(info_write, files)
                if os.read(gate_read, 1) != b"\1":  # last: moving us takes as long as all of this
                    os._exit(127)
                os.execve(arguments[0], arguments, {})
            except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
                os.write(complaint, f"before bubblewrap: {error}".encode())
            finally:
                os._exit(127)
        os.close(gate_read)
        try:
            self._place(self._bwrap)
            os.write(gate_write, b"\1")
        finally:
            os.close(gate_write)
            for descriptor in files.values():
                os.close(descriptor)

    def _await_standing(self, alive_read: int, info_read: int, complaint: int) -> int:
        """Wait for process 1's byte; return its host pid."""
        ready, _, _ = select.select([alive_read], [], [], SETUP_SECONDS_MAX)
        if not ready or os.read(alive_read, 1) != b"\1":
            self._end_bwrap()
            os.lseek(complaint, 0, os.SEEK_SET)
            text = os.read(complaint, COMPLAINT_BYTES_MAX).decode(errors="replace").strip()
            raise SetupError(text or f"bubblewrap did not finish in {SETUP_SECONDS_MAX} s")
        return int(json.loads(os.read(info_read, INFO_BYTES_MAX))["child-pid"])

    def _open_namespaces(self) -> None:
        """Keep the namespaces by descriptor: a pid could be another process tomorrow."""
        for kind in (*NAMESPACES, "pid", "user"):
            path = f"/proc/{self._holder}/ns/{kind}"
            self._namespaces[kind] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._outer_user = fcntl.ioctl(self._namespaces["mnt"], syscalls.NS_GET_USERNS)
        os.set_inheritable(self._outer_user, False)
        outer, inner = os.fstat(self._outer_user), os.fstat(self._namespaces["user"])
        self._nested = outer.st_ino != inner.st_ino

    def fork_inside(self) -> int:
        if os.geteuid() == 0:
            os.setgroups([])  # the sandbox's user namespace forbids it, so before
        syscalls.setns(self._outer_user, syscalls.CLONE_NEWUSER)
        syscalls.setns(self._namespaces["pid"], syscalls.CLONE_NEWPID)
        return syscalls.clone_sibling()

    def enter(self) -> None:
        for kind, flag in NAMESPACES.items():
            syscalls.setns(self._namespaces[kind], flag)
        if self._nested:
            syscalls.setns(self._namespaces["user"], syscalls.CLONE_NEWUSER)
        os.setresgid(INSIDE_ID, INSIDE_ID, INSIDE_ID)
        os.setresuid(INSIDE_ID, INSIDE_ID, INSIDE_ID)

    def confine(self) -> None:
        os.umask(0o022)
        syscalls.drop_capabilities()
        syscalls.forbid_new_privileges()
        syscalls.load_filter(self._filter)

    def collapsing(self) -> bool:
        """Whether process 1 is on its way out (and so kills everything inside)."""
        try:
            with open(f"/proc/{self._holder}/stat") as reading:
                fields = reading.read().rpartition(")")[2].split()
        except FileNotFoundError:
            return True
        return fields[0] in "ZX" or bool(int(fields[6]) & 0x4)  # PF_EXITING

    def close(self) -> None:
        for descriptor in (*self._namespaces.values(), self._outer_user, self._alive):
            if descriptor >= 0:
                os.close(descriptor)
        self._namespaces = {}
        self._outer_user = self._alive = -1
        self._end_bwrap()

    def _end_bwrap(self) -> None:
        """Kill bubblewrap, then process 1, which thereby becomes our child and takes its whole namespace along."""
        if not self._bwrap:
            return
        os.kill(self._bwrap, signal.SIGKILL)
        os.waitpid(self._bwrap, 0)
        self._bwrap = 0
        if not self._holder:
            return
        try:
            os.waitid(os.P_PID, self._holder, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return  # it ended before bubblewrap did
        os.kill(self._holder, signal.SIGKILL)
        os.waitpid(self._holder, 0)


def memory_file(name: str, content: bytes) -> int:
    """A descriptor to read `content` from."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
