"""The replicas of one sandbox: start, limits, output, and what remains of each when its first process ends."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from tidegate_executor.cgroups.base import CgroupError, CgroupRefusedError, Group, Quota
from tidegate_executor.sandbox.shim.guest_trace import GuestRefusals
from tidegate_executor.sandbox.shim.output import LogFile, Redactor, segment_name
from tidegate_executor.sandbox.shim.processes import kill_tree
from tidegate_executor.sandbox.shim.refusals import Pace, Refusals
from tidegate_executor.sandbox.shim.spawn import Child, Launcher, Process, spawn

OUTPUT_CHUNK_BYTES = 65536
DRAIN_SECONDS_MAX = 2.0
OVERHEAD_MIB = 64  # bubblewrap and process 1, beside the sum of the replicas
OVERHEAD_PIDS = 8
HOLDER_GROUP = "_holder"
FIRST_GROUP = "_first"
REHEARSAL = "rehearsal"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Refused(Exception):
    """The request cannot be; nothing was changed."""


class Stopping(Refused):
    """The sandbox is being stopped; nothing starts in it any more."""


class Replica:
    """One running replica."""

    def __init__(self, component: str, number: int, group: Group | None, quota: Quota) -> None:
        self.component = component
        self.number = number
        self.group = group
        self.quota = quota
        self.pid = 0
        self.output = -1
        self.oom_watch: int | None = None
        self.oom_seen = False
        self.killed = False
        self.log: LogFile | None = None
        self.redactor = Redactor([])
        self.unwritten_bytes = 0
        self.refusals: Refusals | GuestRefusals | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.component, self.number

    @property
    def name(self) -> str:
        return f"{self.component}.{self.number}"

    def pump(self) -> bool:
        """Move one chunk of output to the log; False at the end of the stream."""
        try:
            data = os.read(self.output, OUTPUT_CHUNK_BYTES)
        except BlockingIOError:
            return True
        self.write(data, end=not data)
        return bool(data)

    def write(self, data: bytes, *, end: bool) -> None:
        clean = self.redactor.feed(data, end=end)
        if self.log is None or not clean:
            return
        try:
            if self.unwritten_bytes:
                text = f"\n[tidegate: {self.unwritten_bytes} bytes of output were not kept: the disk was full]\n"
                self.log.write(text.encode())
                self.unwritten_bytes = 0
            self.log.write(clean)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            # What one job wrote must not end another: its output goes on when there is room again.
            self.unwritten_bytes += len(clean)

    def kill(self) -> None:
        """End the whole tree."""
        self.killed = True
        if self.group is not None:
            self.group.kill()
        else:
            kill_tree(self.pid)

    def out_of_memory(self) -> bool:
        """Whether the kernel killed something of it for its memory."""
        if self.oom_seen or self.group is None or not self.group.exists():
            return self.oom_seen
        return self.group.usage().oom_kills > 0

    def drain(self) -> None:
        """Take the output that is left after the tree was killed; whoever still holds the pipe is not waited for."""
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        poller = select.poll()
        poller.register(self.output, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if poller.poll(left * 1000) and not self.pump():
                return
        self.write(b"", end=True)

    def close(self) -> None:
        for descriptor in (self.output, self.oom_watch):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        if self.log is not None:
            self.log.close()
        if self.refusals is not None:
            self.refusals.close()


class Ahead:
    """The first replica's process, in its group and inside before it is known what it will run: that takes longest."""

    def __init__(self, launcher: Launcher, group: Group) -> None:
        group.create()
        self.group = group
        self.oom_watch = group.watch_oom()
        self.output, write = os.pipe()
        try:
            self.child = Child(launcher, write, launcher.program)
        finally:
            os.close(write)
        group.add(self.child.forked)  # the one that it will clone is born there

    def prepare(self, process: Process) -> None:
        """Tell it what to run, when `run` is called. Raises SpawnError."""
        self.child.inside()
        self.child.prepare(process)

    def close(self) -> None:
        self.child.close()
        for descriptor in (self.output, self.oom_watch):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self.output, self.oom_watch = -1, None


class Replicas:
    """All running replicas and the sandbox-wide limits."""

    def __init__(self, config: dict[str, Any], group: Group | None) -> None:
        self._config = config
        self._group = group
        self.running: dict[tuple[str, int], Replica] = {}
        self.leaves: Callable[[Replica], None] = _unwatched  # called before what one has open is closed
        self._ahead: Ahead | None = None
        self._pace = Pace()

    def prepare_groups(self) -> None:
        if self._group is not None:
            self._group.create()
            self._bound(0)
            holder = self._group.child(HOLDER_GROUP)
            holder.create()
            holder.bound(
                self._config.get("overhead_mib", OVERHEAD_MIB), self._config.get("overhead_pids", OVERHEAD_PIDS)
            )

    def bound_anew(self) -> None:
        """The sandbox is known now, and so how many processes it may have."""
        self._bound(0)

    def hold(self, pid: int) -> None:
        if self._group is not None:
            self._group.child(HOLDER_GROUP).add(pid)

    def fork_ahead(self, launcher: Launcher) -> None:
        """Have a process for the first start, while the sandbox is built."""
        if self._group is None:
            return
        first = launcher.group(self._group.child(FIRST_GROUP))
        if launcher.prepare(first):
            self._ahead = Ahead(launcher, first)

    def enter_ahead(self, holder: int) -> None:
        """The sandbox stands: let that process go inside, before anything else is there."""
        if self._ahead is not None:
            self._ahead.child.enter(holder)

    def await_ahead(self) -> None:
        """Return when that process is there."""
        if self._ahead is not None:
            self._ahead.child.inside()

    def waits_ahead(self) -> bool:
        """Whether that process, if there is to be one, waits still."""
        return self._ahead is None or self._ahead.child.waits()

    def rehearse(self) -> None:
        """Go the way of a start where nothing comes of it: it copies memory that is the zygote's too until then."""
        directory = self._config["state_dir"]
        replica = Replica("", 0, self._ahead.group if self._ahead is not None else None, Quota(0, 0, 0))
        replica.log = LogFile(directory, REHEARSAL, 1)
        os.unlink(os.path.join(directory, segment_name(REHEARSAL, 0)))
        if replica.group is not None:
            replica.group.quota()
            replica.group.usage()
        replica.close()
        self._bound(0)

    def drop_ahead(self) -> None:
        """End that process if nothing was started in it: the sandbox cannot end while it lives."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def start(self, request: dict[str, Any], launcher: Launcher) -> Replica:
        """Start one replica. Raises Refused, SpawnError or CgroupError, leaving nothing behind."""
        component, number = str(request["component"]), int(request["replica"])
        if (component, number) in self.running:
            raise Refused(f"{component}.{number} runs already; it can start again after it exited")
        quota = Quota(*request["limits"])
        ahead, self._ahead = self._ahead, None
        group = launcher.group(self._group.child(f"{component}.{number}")) if self._group is not None else None
        replica = Replica(component, number, ahead.group if ahead is not None else group, quota)
        secrets = [value.encode() for value in request["secret_env"].values()]
        redact = [value.encode() for value in self._config["redact"]]
        replica.redactor = Redactor(redact + secrets)
        env = {**request["env"], **request["secret_env"]}
        process = launcher.complete(Process(request["argv"], env, request["cwd"]))
        try:
            early = ahead is not None and launcher.clones
            if ahead is not None and early:
                ahead.prepare(process)  # it gets ready beside what is done here
            replica.log = LogFile(self._config["log_dir"], replica.name, self._config["log_bytes_max"])
            self._limit(replica, ahead)
            launcher.begin(replica.name, replica.group, quota)
            if ahead is not None and not launcher.prepared_for(replica.name):
                ahead.close()
                ahead = None
            if ahead is not None and not early:
                ahead.prepare(process)
            child = self._run(replica, process, launcher) if ahead is None else _run_ahead(replica, ahead)
            replica.pid = child.inside()
            listener = child.listener()
            replica.refusals = Refusals(listener, self._pace) if listener >= 0 else launcher.refusals(replica.name)
            launcher.confirm(replica.name, replica.pid)
        except BaseException:
            if ahead is not None:
                ahead.close()
            replica.close()
            self._drop_group(replica)
            launcher.ended(replica.name)
            raise
        self.running[replica.key] = replica
        return replica

    def _run(self, replica: Replica, process: Process, launcher: Launcher) -> Child:
        replica.output, write = os.pipe()
        os.set_blocking(replica.output, False)
        try:
            return spawn(launcher, process, write, replica.group.add if replica.group is not None else _nowhere)
        finally:
            os.close(write)

    def resize(self, key: tuple[str, int], quota: Quota, launcher: Launcher) -> Quota:
        """Room first when growing, last when shrinking, so that the sum is never too small for the parts."""
        replica = self.find(key)
        if replica.group is None:
            raise Refused("limits are not enforced on this node, so there is nothing to resize")
        before = replica.quota
        if why := launcher.unchangeable(before, quota):
            raise Refused(why)
        self._bound(max(quota.memory_mib - before.memory_mib, 0))
        try:
            if quota.cpu_millis < before.cpu_millis:
                launcher.resizing(replica.name, before._replace(cpu_millis=quota.cpu_millis))
            replica.group.apply(quota)
            seen = replica.group.quota()
            replica.quota = quota
            launcher.resized(replica.name, quota)
        except CgroupRefusedError as error:
            launcher.resizing(replica.name, before)
            raise Refused(str(error)) from error
        finally:
            self._bound_to_sum()
        return seen

    def find(self, key: tuple[str, int]) -> Replica:
        if key not in self.running:
            names = ", ".join(sorted(replica.name for replica in self.running.values())) or "nothing"
            raise Refused(f"{key[0]}.{key[1]} does not run; running: {names}")
        return self.running[key]

    def end(self, replica: Replica) -> bool:
        """After the first process was reaped: end the rest, keep the output; return whether memory was the cause."""
        if replica.group is not None:
            replica.kill()  # without a group the tree is ended before the reaping, while its pid is still its own
        replica.drain()
        oom = replica.out_of_memory()
        self.leaves(replica)
        replica.close()
        del self.running[replica.key]
        self._drop_group(replica)
        return oom

    def signal(self, key: tuple[str, int], number: int, launcher: Launcher) -> None:
        replica = self.running.get(key)
        if replica is None:
            return
        if number == signal.SIGKILL:
            replica.kill()
        else:
            launcher.signal(replica.name, replica.pid, number)

    def remove_groups(self) -> None:
        if self._group is not None:
            self._group.remove()

    def _limit(self, replica: Replica, ahead: Ahead | None) -> None:
        """Have its group, which is there already if somebody waits in it, and in the group its limits."""
        if replica.group is None:
            return
        self._bound(replica.quota.memory_mib)
        if ahead is None:
            replica.group.create()
            replica.oom_watch = replica.group.watch_oom()
        else:
            replica.oom_watch, ahead.oom_watch = ahead.oom_watch, None
        replica.group.apply(replica.quota)

    def _drop_group(self, replica: Replica) -> None:
        if replica.group is not None:
            replica.group.remove()
            self._bound_to_sum()

    def _bound(self, more_mib: int) -> None:
        if self._group is not None:
            each = self._config.get("overhead_each_mib", 0)
            total = sum(replica.quota.memory_mib + each for replica in self.running.values()) + more_mib + each
            overhead_mib = self._config.get("overhead_mib", OVERHEAD_MIB)
            overhead_pids = self._config.get("overhead_pids", OVERHEAD_PIDS)
            self._group.bound(total + overhead_mib, self._config["pids_max"] + overhead_pids)

    def _bound_to_sum(self) -> None:
        """What an ended replica left in shared memory may not be reclaimable; then the old bound stays."""
        try:
            self._bound(0)
        except CgroupRefusedError:
            return
        except CgroupError:
            if self._group is not None and self._group.exists():
                raise


def _run_ahead(replica: Replica, ahead: Ahead) -> Child:
    replica.output, ahead.output = ahead.output, -1
    os.set_blocking(replica.output, False)
    ahead.child.run()
    return ahead.child


def _unwatched(replica: Replica) -> None:
    """Until somebody listens to what they have open."""


def _nowhere(pid: int) -> None:
    """Limits are not enforced: the process stays where it was born."""
