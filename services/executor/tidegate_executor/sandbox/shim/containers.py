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
from tidegate_executor.sandbox.shim import engine_exec, runtime, staging, syscalls
from tidegate_executor.sandbox.shim.engine import LABEL, Engine, EngineError
from tidegate_executor.sandbox.shim.hold import executable
from tidegate_executor.sandbox.shim.joining import join
from tidegate_executor.sandbox.shim.launching import Launching
from tidegate_executor.sandbox.shim.layout import FILES_NAME, HOLD_PATH, hosts_text
from tidegate_executor.sandbox.shim.memory import memory_file
from tidegate_executor.sandbox.shim.own_programs import send_signal
from tidegate_executor.sandbox.shim.padded import PaddedGroup
from tidegate_executor.sandbox.shim.spawn import Process, SpawnError

START_SECONDS_MAX = 60.0
SIGNAL_PATH = f"{os.path.dirname(HOLD_PATH)}/signal"
POLL_SECONDS = 0.005
OWN = ("home", "cache", "workspace")  # directories that belong to the sandbox


class ContainerLauncher(Launching):
    """The containers of one sandbox."""

    def __init__(self, config: dict[str, Any], place: Callable[[int], None]) -> None:
        self._config = config
        self._place = place
        self._docker: dict[str, Any] = config["docker"]
        self._engine = Engine(self._docker["socket"])
        self._group: str = self._docker["group"].strip("/")
        self._uid: int = config["uid"]
        self._files = os.path.join(config["state_dir"], FILES_NAME)
        self._binds: list[str] = []
        self._holder = ""
        self._containers: dict[str, str] = {}
        self._started = 0
        self._entering = ""

    def open(self, meanwhile: Callable[[], None]) -> int | None:
        syscalls.become_subreaper()
        self._make_files()
        self._make_binds()
        meanwhile()
        holding = {"NetworkMode": "none", "IpcMode": "shareable", "CgroupParent": self._docker["holder_group"]}
        self._holder = self._start("holder", holding)
        if self._config["network"] is not None:
            self._join_network()
        return None

    def _join_network(self) -> None:
        found = self._engine.call("GET", f"/containers/{self._holder}/json")
        inside = os.open(f"/proc/{found['State']['Pid']}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            join(self._config["network"], inside)
        finally:
            os.close(inside)

    def _make_files(self) -> None:
        os.makedirs(self._files, mode=0o755)
        for name in OWN:
            path = os.path.join(self._files, name)
            if name == "workspace" and self._docker["workdir"] is not None:
                staging.copy_owned(self._docker["workdir"], path, self._uid)
            else:
                os.mkdir(path, 0o755)
                staging.own(path, self._uid)
        account = f"job:x:{self._uid}:{self._uid}:job:/home/job:/bin/sh\nroot:x:0:0:root:/root:/usr/sbin/nologin\n"
        group = f"job:x:{self._uid}:\nroot:x:0:\n"
        contents = {
            "hold": executable(os.uname().machine),
            "signal": send_signal(os.uname().machine),
            "hosts": hosts_text(self._config["hostname"], self._config["network"]),
            "passwd": account.encode(),
            "group": group.encode(),
        }
        for name, content in contents.items():
            path = os.path.join(self._files, name)
            with open(path, "wb") as writing:
                writing.write(content)
            os.chmod(path, 0o555)
        for kind, source, _ in self._config["plan"]:
            if kind == "take":
                staging.take_ownership(source, self._uid)

    def _make_binds(self) -> None:
        files = self._files
        lowers: list[str] = []
        for index, (kind, source, target) in enumerate(self._config["plan"]):
            if kind in ("lower", "layer"):
                lowers.insert(0, source)
            if kind == "layer":
                self._binds.append(f"{self._overlay(index, lowers)}:{target}:nocopy")
                lowers = []
            elif kind not in ("lower", "link"):
                self._binds.append(f"{source}:{target}" + ("" if kind in ("write", "take") else ":ro"))
        self._binds += [f"{self._memory('tmp', '1777')}:/tmp:nocopy", f"{files}/workspace:/workspace"]
        self._binds += [f"{files}/home:/home/job", f"{files}/cache:/var/cache/job", f"{files}/hold:{HOLD_PATH}:ro"]
        self._binds.append(f"{files}/signal:{SIGNAL_PATH}:ro")
        self._binds += [f"{files}/{name}:/etc/{name}:ro" for name in ("hosts", "passwd", "group")]

    def _overlay(self, index: int, lowers: list[str]) -> str:
        """A volume that shows stacked layers, the topmost first, below a throw-away upper."""
        upper, work = (os.path.join(self._files, f"{name}.{index}") for name in ("upper", "work"))
        os.mkdir(upper, 0o755)
        os.mkdir(work, 0o755)
        options = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work}"
        return self._volume(f"layer{index}", {"type": "overlay", "device": "overlay", "o": options})

    def _memory(self, name: str, mode: str) -> str:
        return self._volume(name, {"type": "tmpfs", "device": "tmpfs", "o": f"mode={mode},nosuid,nodev"})

    def _volume(self, name: str, options: dict[str, str]) -> str:
        full = f"{self._group.replace('/', '-')}-{name}"
        labels = {LABEL: self._group}
        self._engine.call(
            "POST", "/volumes/create", {"Name": full, "Driver": "local", "DriverOpts": options, "Labels": labels}
        )
        return full

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
                "Binds": self._binds,
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

    def begin(self, name: str, group: Group | None, quota: Quota) -> None:
        assert group is not None
        host = {
            "NetworkMode": f"container:{self._holder}",
            "IpcMode": f"container:{self._holder}",
            "CgroupParent": f"{self._docker['group']}/{name}",
            "Ulimits": [{"Name": "nproc", "Soft": quota.pids, "Hard": quota.pids}]
            if self._docker["own_kernel"]
            else [],
            **self._docker["devices"],
            **self._limits(quota),
        }
        self._started += 1
        try:
            self._containers[name] = self._start(name, host)
        except EngineError as error:
            raise SpawnError(f"no container: {error}", job=False) from error
        self._entering = name

    def translate(self, process: Process) -> Process:
        """Our program that asks the engine for it. In the child that becomes it, whose memory holds the secrets."""
        environment = [f"{name}={value}" for name, value in process.env.items()]
        order = {
            "engine": self._engine.path,
            "container": self._containers[self._entering],
            "started": self._note("started"),
            "refused": self._note("refused"),
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
        """Where our program leaves what came of the newest command."""
        return os.path.join(self._config["state_dir"], f"{what}.{self._started}")

    def confirm(self, name: str, pid: int) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if os.path.exists(self._note("started")):
                os.rename(self._note("started"), self._pid_file(name))
                return
            if os.path.exists(self._note("refused")):
                with open(self._note("refused"), encoding="utf-8") as reading:
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
        self._containers.clear()
        self._remove(lambda: self._engine.remove_all(self._group))

    def _remove(self, removing: Callable[[], None]) -> None:
        """What cannot be removed now, `destroy` removes, or says why it cannot."""
        try:
            removing()
        except EngineError as error:
            print(f"left to be removed: {error}", file=sys.stderr, flush=True)
