"""Level `trusted`: a bubblewrap sandbox whose process 1 only holds it; replicas enter it from outside.

The shim forks, joins the sandbox's namespaces, gives up every privilege and executes the job's command, as a container
runtime's `exec` does. So nothing of ours runs inside as the job's user, and the image needs nothing of ours.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from typing import Any

from tidegate_executor.sandbox import seccomp
from tidegate_executor.sandbox.shim import starter, syscalls
from tidegate_executor.sandbox.shim.bubblewrap import Bubblewrap
from tidegate_executor.sandbox.shim.hands import Gathered
from tidegate_executor.sandbox.shim.joining import in_child, join
from tidegate_executor.sandbox.shim.late import Carrier, attach, enter_root
from tidegate_executor.sandbox.shim.launching import Launching, NotReadyError
from tidegate_executor.sandbox.shim.layout import INSIDE_ID, MOUNTED
from tidegate_executor.sandbox.shim.plug import Plug, join_over
from tidegate_executor.sandbox.shim.processes import stat_fields

# Joined from inside the sandbox's outer user namespace, in this order; the mount namespace last of these.
NAMESPACES = {
    "cgroup": syscalls.CLONE_NEWCGROUP,
    "ipc": syscalls.CLONE_NEWIPC,
    "uts": syscalls.CLONE_NEWUTS,
    "net": syscalls.CLONE_NEWNET,
    "mnt": syscalls.CLONE_NEWNS,
}
# The kernel knows no listener, or this node is itself in a container whose filter has one, and there may be one only.
UNTOLD = (errno.EINVAL, errno.EBUSY)


class BwrapLauncher(Launching):
    """One sandbox made by bubblewrap."""

    clones = True

    def __init__(self, config: dict[str, Any], place: Callable[[int], None], bubblewrap: Bubblewrap) -> None:
        """`place` puts a pid into the control group that holds the sandbox's own two processes."""
        self._config = config
        self._place = place
        self.program = starter.program()
        self._bubblewrap = bubblewrap
        self._bwrap = bubblewrap.pid
        self.holder = 0
        self._namespaces: dict[str, int] = {}
        self._outer_user = -1
        self._nested = False
        self._carrier: Carrier | None = None
        self._plug: Plug | None = None

    @property
    def bwrap(self) -> int:
        """Pid of bubblewrap, our child, which ends when process 1 does."""
        return self._bwrap

    def ground(self) -> None:
        syscalls.become_subreaper()
        self._place(self._bwrap)

    def lay_out(self) -> None:
        self._bubblewrap.prepare(self._config)

    def open(self, meanwhile: Callable[[], None]) -> int | None:
        self._bubblewrap.build()
        meanwhile()
        self.holder = self._bubblewrap.await_standing()
        self._open_namespaces()
        if self._config["uid"] is None:
            in_child(self._seclude, "the sandbox's mounts")
        if self._config.get("ready"):
            self._plug = Plug(self._namespaces["net"]) if self._config["plugged"] else None
            self._carrier = Carrier(self._attach, self._config["state_dir"])
        else:
            join(self._config["network"], self._namespaces["net"])
        return self._bubblewrap.alive

    def _seclude(self) -> None:
        """In a child, for who is not root and staged nothing: see `Stage.seclude`."""
        syscalls.setns(self._outer_user, syscalls.CLONE_NEWUSER)
        syscalls.setns(self._namespaces["mnt"], syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)

    def adopt(self, late: list[list[str]], meanwhile: Callable[[], None]) -> None:
        assert self._carrier is not None, "it stands ready"
        self._carrier.begin(self._config, late)
        if self.collapsing():
            raise NotReadyError("process 1 of the sandbox that stood ready has ended")
        meanwhile()
        plug, self._plug = self._plug, None
        join_over(plug, self._config["network"], self._namespaces["net"])
        self._carrier.end()

    def _attach(self, config: dict[str, Any], gathered: list[Gathered]) -> None:
        """In a child: mount all of it inside, where the root is read-only unless it is an image's."""
        if config["uid"] is None:  # who is not root may enter by the namespace that is its own
            syscalls.setns(self._outer_user, syscalls.CLONE_NEWUSER)
        for kind in ("uts", "mnt"):
            syscalls.setns(self._namespaces[kind], NAMESPACES[kind])
        syscalls.set_hostname(config["hostname"])
        flags = syscalls.MS_BIND | syscalls.MS_REMOUNT | syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("none", "/", None, flags)
        root = next((each.tree for each in gathered if each.target == "/"), None)
        rest = [each for each in gathered if each.target != "/"]
        if root is not None:
            places = {each.target: each.is_directory for each in rest}
            enter_root(root, [*MOUNTED, *config["kept"]], places, config["uid"])
        if config["uid"] is not None:
            syscalls.create_as(config["uid"])
        for kind, source, target in config["late"]:
            if kind == "link" and not (os.path.islink(target) and os.readlink(target) == source):
                os.symlink(source, target)
        for each in rest:
            attach(each, "/", each.target)
        if root is None and not any(target == "/" for _, _, target in self._config["plan"]):
            syscalls.mount("none", "/", None, flags | syscalls.MS_RDONLY)

    def _open_namespaces(self) -> None:
        """Keep the namespaces by descriptor: a pid could be another process tomorrow."""
        for kind in (*NAMESPACES, "pid", "user"):
            path = f"/proc/{self.holder}/ns/{kind}"
            self._namespaces[kind] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._outer_user = fcntl.ioctl(self._namespaces["mnt"], syscalls.NS_GET_USERNS)
        os.set_inheritable(self._outer_user, False)
        outer, inner = os.fstat(self._outer_user), os.fstat(self._namespaces["user"])
        self._nested = outer.st_ino != inner.st_ino

    def join(self, holder: int) -> None:
        if not self._namespaces:  # it did not stand yet when we were forked
            self.holder = holder
            self._open_namespaces()

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
        self._bubblewrap.close()  # else what waits for its end would end as the command begins

    def confine(self) -> int:
        os.umask(0o022)
        syscalls.drop_capabilities()
        syscalls.forbid_new_privileges()
        machine = os.uname().machine
        try:
            return syscalls.load_told_filter(seccomp.program(machine, told=True))
        except OSError as error:
            if error.errno not in UNTOLD:
                raise
            syscalls.load_filter(seccomp.program(machine))
            return -1

    def collapsing(self) -> bool:
        """Whether process 1 is on its way out (and so kills everything inside)."""
        fields = stat_fields(self.holder)
        return not fields or fields[0] in "ZX" or bool(int(fields[6]) & 0x4)  # PF_EXITING

    def close(self) -> None:
        if self._carrier is not None:
            self._carrier.close()
        if self._plug is not None:
            self._plug.close()
        self._bubblewrap.close()
        for descriptor in (*self._namespaces.values(), self._outer_user, self.program):
            if descriptor >= 0:
                os.close(descriptor)
        self._namespaces = {}
        self._outer_user = self.program = -1
        self._end_bwrap()

    def _end_bwrap(self) -> None:
        """Kill bubblewrap, then process 1, which thereby becomes our child and takes its whole namespace along."""
        if not self._bwrap:
            return
        os.kill(self._bwrap, signal.SIGKILL)
        os.waitpid(self._bwrap, 0)
        self._bwrap = 0
        if not self.holder:
            return
        try:
            os.waitid(os.P_PID, self.holder, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return  # it ended before bubblewrap did
        os.kill(self.holder, signal.SIGKILL)
        os.waitpid(self.holder, 0)
