"""Sandboxes through a container engine: a container per replica, in a control group of ours, sharing files and network.

A further container holds the network that they share. Process 1 of each is ours; the job's command enters by the
engine's `exec`, so that its environment, secrets included, is in the engine's memory only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from tidegate_executor.cgroups.base import CPU_PERIOD_USEC, MIB, Group, Quota
from tidegate_executor.sandbox.shim import engine_exec, runtime, syscalls
from tidegate_executor.sandbox.shim.container_files import NAME_PATH, SIGNAL_PATH, ContainerFiles
from tidegate_executor.sandbox.shim.engine import LABEL, Engine, EngineError
from tidegate_executor.sandbox.shim.entered import Container, Entered
from tidegate_executor.sandbox.shim.joining import JoiningError, join
from tidegate_executor.sandbox.shim.late import Carrier
from tidegate_executor.sandbox.shim.launching import Launching, NotReadyError
from tidegate_executor.sandbox.shim.layout import HOLD_PATH
from tidegate_executor.sandbox.shim.memory import memory_file
from tidegate_executor.sandbox.shim.padded import PaddedGroup
from tidegate_executor.sandbox.shim.plug import Plug, join_over
from tidegate_executor.sandbox.shim.processes import start_ticks
from tidegate_executor.sandbox.shim.replicas import FIRST_GROUP
from tidegate_executor.sandbox.shim.spawn import Process, SpawnError

START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.005


class ContainerLauncher(Launching):
    """The containers of one sandbox."""

    def __init__(self, config: dict[str, Any], place: Callable[[int], None]) -> None:
        self._config = config
        self._place = place
        self._docker: dict[str, Any] = config["docker"]
        self._engine = Engine(self._docker["socket"])
        self._group: str = self._docker["group"].strip("/")
        self._uid: int = config["uid"]
        self._files = ContainerFiles(config, self._engine)
        self._holder = Container("", 0, None)
        self._hostname_path = ""  # the engine's file, which is /etc/hostname in each container
        self._network = self._notes = -1
        self._containers: dict[str, str] = {}
        self._started = 0
        self._entering = ""
        # Of one that is built ahead:
        self._first: Container | None = None
        self._used_first = False
        self._untold: Quota | None = None
        self._entered: Entered | None = None
        self._carrier: Carrier | None = None
        self._plug: Plug | None = None
        self._adopted = False

    def open(self, meanwhile: Callable[[], None]) -> int | None:
        syscalls.become_subreaper()
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        self._notes = os.open(self._config["state_dir"], flags)  # which gets another name when it is adopted
        self._files.make()
        holding = {
            "NetworkMode": "none",
            "IpcMode": "shareable",
            "CgroupParent": self._docker["holder_group"],
            "Runtime": self._docker["holder_runtime"],
        }
        self._know_holder(self._start("holder", holding))
        if not self._config.get("ready"):
            join(self._config["network"], self._network)
        meanwhile()
        if self._config.get("ready"):
            self._plug = Plug(self._network) if self._config["plugged"] else None
            if self._entered is not None:
                self._carrier = Carrier(self._entered.attach, self._config["state_dir"])
        return None

    def _know_holder(self, container: str) -> None:
        found = self._engine.call("GET", f"/containers/{container}/json")
        self._holder = _running(found)
        self._hostname_path = found["HostnamePath"]
        self._network = os.open(f"/proc/{self._holder.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def adopt(self, late: list[list[str]], meanwhile: Callable[[], None]) -> None:
        first = self._first
        if not self._holder.lives or (first is not None and not first.lives):
            raise NotReadyError("a container that stood ready has ended")
        self._adopted = True
        self._docker = self._config["docker"]
        if self._carrier is not None:
            self._carrier.begin(self._config, late)
        else:
            self._files.give()
        self._files.know(self._hostname_path)
        meanwhile()
        plug, self._plug = self._plug, None
        join_over(plug, self._config["network"], self._network)
        if self._carrier is not None:
            self._carrier.end()
        if self._entered is not None:
            self._entered.close()

    def _start(self, name: str, host: dict[str, Any]) -> str:
        """Make and start a container whose process 1 holds; return its id. Raises EngineError."""
        body = {
            "Image": self._docker["image"],
            "Entrypoint": [HOLD_PATH],
            "Cmd": [],
            "User": "65534:65534",
            "Labels": {LABEL: self._group, "tidegate.part": name},
            "NetworkDisabled": False,
            "StopTimeout": 0,
            "HostConfig": {
                "Binds": self._files.binds(),
                "ReadonlyRootfs": True,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
                "Runtime": self._docker["runtime"],
                "LogConfig": {"Type": "none", "Config": {}},
                "OomKillDisable": False,
                "Init": False,
                **host,
            },
        }
        if "NetworkMode" not in host or host["NetworkMode"] == "none":
            body["Hostname"] = self._config["hostname"]
        made: str = self._engine.call("POST", "/containers/create", body)["Id"]
        try:
            self._engine.call("POST", f"/containers/{made}/start")
        except EngineError:
            self._engine.remove_container(made)
            raise
        return made

    # --- a replica's life -----------------------------------------------------------------------------------

    def group(self, group: Group) -> Group:
        each, more = self._docker["threads"]
        return PaddedGroup(group, self._docker["overhead_each_mib"], (each, more))

    def prepare(self, group: Group) -> bool:
        """Have the first replica's container stand before that is known: its devices and a guest's limits are not."""
        if not self._config.get("ready") or self._config["devices"] or self._docker["own_kernel"]:
            return False
        group.create()
        made = self._start("first", self._sharing(FIRST_GROUP))
        self._first = _running(self._engine.call("GET", f"/containers/{made}/json"))
        self._entered = Entered(self._first.pid)
        return True

    def prepared_for(self, name: str) -> bool:
        return self._used_first

    def begin(self, name: str, group: Group | None, quota: Quota) -> None:
        """Have the replica's container, in its group: the one that stands ready, or a new one."""
        assert group is not None
        first, self._first = self._first, None
        self._used_first = first is not None and first.lives and not any(self._docker["devices"].values())
        try:
            if first is not None and self._used_first:
                self._containers[name] = first.id
                self._untold = quota
            else:
                if first is not None:
                    self._engine.remove_container(first.id)
                self._containers[name] = self._start_replica(name, FIRST_GROUP if first is not None else name, quota)
        except (EngineError, JoiningError) as error:
            raise SpawnError(f"no container: {error}", job=False) from error
        self._entering = name

    def _start_replica(self, name: str, place: str, quota: Quota) -> str:
        """A new container for it, in the group `place` of the sandbox."""
        nproc = [{"Name": "nproc", "Soft": quota.pids, "Hard": quota.pids}] if self._docker["own_kernel"] else []
        more = {"Ulimits": nproc, **self._docker["devices"], **self._limits(quota)}
        self._started += 1
        made = self._start(name, self._sharing(place) | more)
        if self._adopted:  # the engine has given it the name that the holder had when it was made
            self._rename(made)
        return made

    def _rename(self, container: str) -> None:
        hostname = self._config["hostname"]
        if self._docker["own_kernel"]:
            self._run_inside(container, [NAME_PATH, hostname])
            return
        entered = Entered(self._engine.call("GET", f"/containers/{container}/json")["State"]["Pid"])
        try:
            entered.rename(hostname)
        finally:
            entered.close()

    def _run_inside(self, container: str, command: list[str]) -> None:
        """Run a program of ours, with rights that no command of a job's has, to its end. Raises EngineError."""
        asked = {"User": "0:0", "Privileged": True, "Cmd": command}
        made = self._engine.call("POST", f"/containers/{container}/exec", asked)["Id"]
        self._engine.call("POST", f"/exec/{made}/start", {"Detach": True, "Tty": False})
        deadline = time.monotonic() + START_SECONDS_MAX
        while (found := self._engine.call("GET", f"/exec/{made}/json"))["ExitCode"] is None:
            if time.monotonic() > deadline:
                raise EngineError(f"{command[0]} did not end within {START_SECONDS_MAX} s")
            time.sleep(POLL_SECONDS)
        if found["ExitCode"] != 0:
            raise EngineError(f"{command[0]} ended with {found['ExitCode']}")

    def _sharing(self, place: str) -> dict[str, Any]:
        """What a container of the sandbox's shares with the one that holds, and its group."""
        return {
            "NetworkMode": f"container:{self._holder.id}",
            "IpcMode": f"container:{self._holder.id}",
            "CgroupParent": f"{self._docker['group']}/{place}",
        }

    def complete(self, process: Process) -> Process:
        """With the name that a command finds in its environment, which is the container's unless we say another."""
        return process._replace(env={"HOSTNAME": self._config["hostname"], **process.env})

    def translate(self, process: Process) -> Process:
        """Our program that asks the engine for it. In the child that becomes it, whose memory holds the secrets."""
        environment = [f"{name}={value}" for name, value in process.env.items()]
        # One that was forked before the first replica was known knows the container that stood ready by then.
        container = self._containers[self._entering] if self._entering or self._first is None else self._first.id
        os.set_inheritable(self._notes, True)
        notes = f"/proc/self/fd/{self._notes}"
        order = {
            "engine": self._engine.path,
            "container": container,
            "started": f"{notes}/{self._note('started')}",
            "refused": f"{notes}/{self._note('refused')}",
            "exec": {
                "AttachStdout": True,
                "AttachStderr": True,
                "User": f"{self._uid}:{self._uid}",
                "Env": environment,
                "WorkingDir": process.cwd,
                "Cmd": process.argv,
            },
        }
        described = memory_file("order", json.dumps(order).encode())
        os.set_inheritable(described, True)
        return Process(
            [self._docker["python"], "-I", "-S", engine_exec.__file__, f"/proc/self/fd/{described}"], {}, "/"
        )

    def _note(self, what: str) -> str:
        """The file in the state directory where our program leaves what came of the newest command."""
        return f"{what}.{self._started}"

    def confirm(self, name: str, pid: int) -> None:
        untold, self._untold = self._untold, None
        if untold is not None:  # its group has these limits; the engine is told while our program begins
            self._update(name, untold)
        started, refused = (
            os.path.join(self._config["state_dir"], self._note(each)) for each in ("started", "refused")
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if os.path.exists(started):
                os.rename(started, self._pid_file(name))
                return
            if os.path.exists(refused):
                with open(refused, encoding="utf-8") as reading:
                    text = reading.read()
                raise SpawnError(text, job=runtime.is_the_jobs(text))
            if ended is not None:
                raise SpawnError(f"what asks the engine ended with {ended.si_status}", job=False)
            time.sleep(POLL_SECONDS)
        raise SpawnError(f"the command was not executed within {START_SECONDS_MAX} s", job=False)

    def _pid_file(self, name: str) -> str:
        return os.path.join(self._config["state_dir"], f"pid.{name}")

    def signal(self, name: str, pid: int, number: int) -> None:
        if self._docker["own_kernel"]:
            self._signal_inside(name, number)
            return
        with open(self._pid_file(name), encoding="utf-8") as reading:
            inner = int(reading.read())
        try:
            os.kill(inner, number)
        except ProcessLookupError:
            return  # it ended meanwhile

    def _signal_inside(self, name: str, number: int) -> None:
        """A guest's processes are none of this kernel's: one of ours inside signals all of the job's."""
        asked = {"User": f"{self._uid}:{self._uid}", "Cmd": [SIGNAL_PATH, f"{number:02d}"]}
        try:
            made = self._engine.call("POST", f"/containers/{self._containers[name]}/exec", asked)["Id"]
            self._engine.call("POST", f"/exec/{made}/start", {"Detach": True, "Tty": False})
        except EngineError as error:
            raise SpawnError(f"the engine sent no signal: {error}", job=False) from error

    def unchangeable(self, before: Quota, after: Quota) -> str:
        if self._docker["own_kernel"] and before.pids != after.pids:
            return f"a guest behind an engine keeps its {before.pids} processes; CPU and memory can change"
        return ""

    def resized(self, name: str, quota: Quota) -> None:
        """Its group has the new limits; the engine shall know them too, where it set them."""
        self._update(name, quota)

    def resizing(self, name: str, quota: Quota) -> None:
        self._update(name, quota)

    def _update(self, name: str, quota: Quota) -> None:
        if self._docker["own_kernel"]:
            return
        try:
            self._engine.call("POST", f"/containers/{self._containers[name]}/update", self._limits(quota))
        except EngineError as error:
            raise SpawnError(f"the engine did not take the new limits: {error}", job=False) from error

    def _limits(self, quota: Quota) -> dict[str, Any]:
        if self._docker["own_kernel"]:  # its runtime cannot change them, so they are our group's alone
            return {}
        memory_bytes = (quota.memory_mib + int(self._docker["overhead_each_mib"])) * MIB
        each, more = self._docker["threads"]
        return {
            "Memory": memory_bytes,
            "MemorySwap": memory_bytes,
            "CpuPeriod": CPU_PERIOD_USEC,
            "CpuQuota": quota.cpu_millis * CPU_PERIOD_USEC // 1000,
            "PidsLimit": quota.pids * each + more - 1,  # what asks the engine is in our group, not in the engine's
        }

    def ending(self, name: str, code: int) -> int:
        return runtime.ending(code) if code >= 0 else code

    def broke(self, name: str) -> bool:
        """Whether its container is gone, or the engine."""
        if name not in self._containers:
            return False
        try:
            found = self._engine.call("GET", f"/containers/{self._containers[name]}/json")
        except EngineError:
            return True
        return not found["State"]["Running"]

    def ended(self, name: str) -> None:
        container = self._containers.pop(name, None)
        if container is not None:
            self._remove(lambda: self._engine.remove_container(container))

    def close(self) -> None:
        for each in (self._carrier, self._plug, self._entered):
            if each is not None:
                each.close()
        for descriptor in (self._network, self._notes):
            if descriptor >= 0:
                os.close(descriptor)
        self._network = self._notes = -1
        self._containers.clear()
        self._remove(lambda: self._engine.remove_all(self._group))

    def _remove(self, removing: Callable[[], None]) -> None:
        """What cannot be removed now, `destroy` removes, or says why it cannot."""
        try:
            removing()
        except EngineError as error:
            print(f"left to be removed: {error}", file=sys.stderr, flush=True)


def _running(found: dict[str, Any]) -> Container:
    """From what the engine says of a container that runs."""
    pid = int(found["State"]["Pid"])
    return Container(found["Id"], pid, start_ticks(pid))
