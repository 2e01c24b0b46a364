"""The replicas of one sandbox: start, limits, output, and what remains of each when its first process ends."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from typing import Any

from tidegate_executor.cgroups.base import CgroupError, CgroupRefusedError, Group, Quota
from tidegate_executor.sandbox.shim.output import LogFile, Redactor
from tidegate_executor.sandbox.shim.processes import kill_tree
from tidegate_executor.sandbox.shim.spawn import Launcher, Process, spawn

OUTPUT_CHUNK_BYTES = 65536
DRAIN_SECONDS_MAX = 2.0
OVERHEAD_MIB = 64  # bubblewrap and process 1, beside the sum of the replicas
OVERHEAD_PIDS = 8
HOLDER_GROUP = "_holder"
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
        self.log: LogFile | None = None
        self.redactor = Redactor([])
        self.unwritten_bytes = 0

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
        if self.group is not None:
            self.group.kill()
        else:
            kill_tree(self.pid)

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


class Replicas:
    """All running replicas and the sandbox-wide limits."""

    def __init__(self, config: dict[str, Any], group: Group | None) -> None:
        self._config = config
        self._group = group
        self._redact = [value.encode() for value in config["redact"]]
        self.running: dict[tuple[str, int], Replica] = {}

    def prepare_groups(self) -> None:
        if self._group is not None:
            self._group.create()
            self._bound(0)
            holder = self._group.child(HOLDER_GROUP)
            holder.create()
            holder.bound(OVERHEAD_MIB, OVERHEAD_PIDS)

    def hold(self, pid: int) -> None:
        if self._group is not None:
            self._group.child(HOLDER_GROUP).add(pid)

    def start(self, request: dict[str, Any], launcher: Launcher) -> Replica:
        """Start one replica. Raises Refused, SpawnError or CgroupError, leaving nothing behind."""
        component, number = str(request["component"]), int(request["replica"])
        if (component, number) in self.running:
            raise Refused(f"{component}.{number} runs already; it can start again after it exited")
        quota = Quota(*request["limits"])
        group = self._group.child(f"{component}.{number}") if self._group is not None else None
        replica = Replica(component, number, group, quota)
        secrets = [value.encode() for value in request["secret_env"].values()]
        replica.redactor = Redactor(self._redact + secrets)
        process = Process(request["argv"], {**request["env"], **request["secret_env"]}, request["cwd"])
        read, write = os.pipe()
        replica.output = read
        os.set_blocking(read, False)
        try:
            replica.log = LogFile(self._config["log_dir"], replica.name, self._config["log_bytes_max"])
            self._make_group(replica)
            replica.pid = spawn(launcher, process, write, group.add if group is not None else _nowhere)
        except BaseException:
            replica.close()
            self._drop_group(replica)
            raise
        finally:
            os.close(write)
        self.running[replica.key] = replica
        return replica

    def resize(self, key: tuple[str, int], quota: Quota) -> Quota:
        """Room first when growing, last when shrinking, so that the sum is never too small for the parts."""
        replica = self.find(key)
        if replica.group is None:
            raise Refused("limits are not enforced on this node, so there is nothing to resize")
        before = replica.quota
        self._bound(max(quota.memory_mib - before.memory_mib, 0))
        try:
            seen = replica.group.apply(quota)
            replica.quota = quota
        except CgroupRefusedError as error:
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
        oom = replica.oom_seen
        if replica.group is not None and replica.group.exists():
            oom = oom or replica.group.usage().oom_kills > 0
        replica.close()
        del self.running[replica.key]
        self._drop_group(replica)
        return oom

    def signal(self, key: tuple[str, int], number: int) -> None:
        replica = self.running.get(key)
        if replica is None:
            return
        if number == signal.SIGKILL:
            replica.kill()
        else:
            os.kill(replica.pid, number)

    def remove_groups(self) -> None:
        if self._group is not None:
            self._group.remove()

    def _make_group(self, replica: Replica) -> None:
        if replica.group is None:
            return
        self._bound(replica.quota.memory_mib)
        replica.group.create()
        replica.group.apply(replica.quota)
        replica.oom_watch = replica.group.watch_oom()

    def _drop_group(self, replica: Replica) -> None:
        if replica.group is not None:
            replica.group.remove()
            self._bound_to_sum()

    def _bound(self, more_mib: int) -> None:
        if self._group is not None:
            total = sum(replica.quota.memory_mib for replica in self.running.values()) + more_mib
            self._group.bound(total + OVERHEAD_MIB, self._config["pids_max"] + OVERHEAD_PIDS)

    def _bound_to_sum(self) -> None:
        """What an ended replica left in shared memory may not be reclaimable; then the old bound stays."""
        try:
            self._bound(0)
        except CgroupRefusedError:
            return
        except CgroupError:
            if self._group is not None and self._group.exists():
                raise


def _nowhere(pid: int) -> None:
    """Limits are not enforced: the process stays where it was born."""
