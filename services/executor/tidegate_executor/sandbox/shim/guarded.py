"""Level `guarded`: gVisor. Each replica has a guest kernel of its own, under its own limits; files are shared.

The guest holds (its process 1 is ours); the job's command enters it by the runtime's `exec`, which is our child, has
the replica's output and ends as the command does. So a guest can be started before it is known what will run in it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from tidegate_executor.cgroups.base import Group, Quota
from tidegate_executor.sandbox.shim import keeper, own_programs, runtime, syscalls
from tidegate_executor.sandbox.shim.guest_trace import GuestRefusals, Traces, await_end, session
from tidegate_executor.sandbox.shim.keeper import LIMITER_PATH, STATE, Keeper
from tidegate_executor.sandbox.shim.launching import Launching, NotReadyError
from tidegate_executor.sandbox.shim.memory import memory_file
from tidegate_executor.sandbox.shim.padded import PaddedGroup
from tidegate_executor.sandbox.shim.processes import start_ticks
from tidegate_executor.sandbox.shim.spawn import Process, SpawnError
from tidegate_executor.sandbox.shim.told import DONE, instructions

COMMAND_SECONDS_MAX = 20.0
POLL_SECONDS = 0.002
TRACE_NAME, SESSION_NAME = "trace.sock", "session.json"
COMPLAINT_BYTES_MAX = 65536
HOST_THREADS = 512  # of a guest's kernel, beside those that stand for its processes
THREADS_PER_PROCESS = 4
PIDS_AHEAD = 1024  # of a guest that is booted before its replica is known: what the agent asks for
OVERHEAD_MIB = 48  # of a guest's kernel and the runtime's commands, beside what runs in it


class Guest:
    """One guest kernel that stands. `pid` is its process on the host, `trace` what it tells of its refusals over."""

    def __init__(self, name: str, pid: int, trace: socket.socket | None) -> None:
        self.name = name
        self.pid = pid
        self._trace = trace
        self._ticks = start_ticks(pid)

    @property
    def lives(self) -> bool:
        return self._ticks is not None and start_ticks(self.pid) == self._ticks

    def take_trace(self) -> socket.socket | None:
        """Return what it tells over, which is the caller's then."""
        trace, self._trace = self._trace, None
        return trace

    def forget(self) -> None:
        """Keep nothing of it open."""
        if self._trace is not None:
            self._trace.close()
            self._trace = None


class GuardedLauncher(Launching):
    """The guests of one sandbox."""

    clones = False

    def __init__(self, config: dict[str, Any], place: Callable[[int], None]) -> None:
        self._config = config
        self._place = place
        self._keeper = Keeper(config, place)
        self._binary = os.open(config["guarded"]["binary"], os.O_RDONLY | os.O_CLOEXEC)
        self._guests: dict[str, Guest] = {}
        self._started = 0
        self._entering = ""
        self._ready: Guest | None = None
        self._used_ready = False
        self._tell = self._answer = -1
        self._traces: Traces | None = None

    def open(self, meanwhile: Callable[[], None]) -> int | None:
        syscalls.become_subreaper()
        self._keeper.open()
        self._traces = Traces(self._keeper.state, TRACE_NAME)
        self._write(SESSION_NAME, session(os.uname().machine, f"{STATE}/{TRACE_NAME}"))
        meanwhile()
        if self._config.get("ready") and self._config["plugged"]:
            self._keeper.plug()  # a guest looks at its interfaces whenever it is asked for them
        return None

    def join(self, holder: int) -> None:
        self._close_talk()  # a guest is told to the end of that, which comes when nobody else could say more

    # --- a replica's life -----------------------------------------------------------------------------------

    def group(self, group: Group) -> Group:
        return PaddedGroup(group, OVERHEAD_MIB, (THREADS_PER_PROCESS, HOST_THREADS))

    def prepare(self, group: Group) -> bool:
        group.create()
        self._ready = self._boot_ahead(group) if self._config.get("ready") else self._boot(group, PIDS_AHEAD)
        return True

    def begin(self, name: str, group: Group | None, quota: Quota) -> None:
        """Have the replica's guest, in its group: the one that stands ready, or a new one."""
        assert group is not None
        ready, self._ready = self._ready, None
        self._used_ready = ready is not None and ready.lives and quota.pids == PIDS_AHEAD
        if ready is not None and self._used_ready:
            self._guests[name] = ready
        else:
            if ready is not None:
                group.kill()  # how many processes it lets in was settled as it booted
                ready.forget()
            self._guests[name] = self._boot(group, quota.pids)
        self._entering = name

    def adopt(self, late: list[list[str]], meanwhile: Callable[[], None]) -> None:
        if self._ready is None or not self._ready.lives:
            raise NotReadyError("the guest that stood ready has ended")
        self._keeper.adopt(self._config, late, meanwhile)
        hostname = self._config["hostname"]
        told = instructions(os.uname().machine, hostname, self._keeper.late, keeper.LATE_PATH)
        with open(self._tell, "wb", buffering=0) as telling:
            self._tell = -1
            telling.write(told)
        answered, _, _ = select.select([self._answer], [], [], COMMAND_SECONDS_MAX)
        if not answered or os.read(self._answer, len(DONE)) != DONE:
            raise NotReadyError("the guest that stood ready did not do what it was told")

    def prepared_for(self, name: str) -> bool:
        return self._used_ready

    def refusals(self, name: str) -> GuestRefusals | None:
        trace = self._guests[name].take_trace()
        return GuestRefusals(trace) if trace is not None else None

    def _boot_ahead(self, group: Group) -> Guest:
        """Boot a guest of which the image alone is known; its process 1 waits to be told the rest."""
        told, self._tell = os.pipe()
        self._answer, answer_write = os.pipe()
        try:
            mounts = [*self._keeper.mounts, keeper.bind(keeper.LATE, keeper.LATE_PATH)]
            spec = runtime.specification_ahead(
                keeper.ROOTFS, mounts, (self._config["uid"], PIDS_AHEAD), keeper.TOLD_PATH
            )
            return self._boot_as(spec, group, (told, answer_write))
        finally:
            os.close(told)
            os.close(answer_write)

    def _boot(self, group: Group, pids: int) -> Guest:
        ids = (self._config["uid"], pids)
        hostname = self._config["hostname"]
        spec = runtime.specification(keeper.ROOTFS, hostname, self._keeper.mounts, ids)
        return self._boot_as(spec, group, (-1, -1))

    def _boot_as(self, spec: dict[str, Any], group: Group, files: tuple[int, int]) -> Guest:
        """`files` are the input and the output of its process 1, -1 for none."""
        self._started += 1
        guest_name = f"g{self._started}"
        os.mkdir(guest_name, 0o700, dir_fd=self._keeper.state)
        self._write(f"{guest_name}/config.json", json.dumps(spec).encode())
        bundle = f"{STATE}/{guest_name}"
        run = [f"--pod-init-config={STATE}/{SESSION_NAME}", "run", "--detach"]
        self._command(guest_name, [*run, f"--bundle={bundle}", f"--pid-file={bundle}/pid"], group.add, files=files)
        assert self._traces is not None, "it is open"
        return Guest(guest_name, int(self._read(f"{guest_name}/pid")), self._traces.take())

    def enter(self) -> None:
        self._keeper.enter()

    def translate(self, process: Process) -> Process:
        """The runtime's command that runs it inside. In the child that becomes it, whose memory holds the secrets."""
        # One that was forked before the first replica was known knows the guest that stood ready by then.
        guest = self._guests[self._entering] if self._entering else self._ready
        assert guest is not None, "it was booted"
        described = memory_file("process", runtime.process(process.argv, process.env, process.cwd))
        os.set_inheritable(described, True)
        os.set_inheritable(self._binary, True)
        argv = [
            f"/proc/self/fd/{self._binary}", *runtime.options(f"{STATE}/root", f"{STATE}/{guest.name}/exec.log"),
            "exec", f"--process=/proc/self/fd/{described}",
            f"--internal-pid-file={STATE}/{guest.name}/inner", guest.name,
        ]  # fmt: skip
        return Process(argv, {}, "/")

    def confirm(self, name: str, pid: int) -> None:
        """Return when the command runs inside. Raises SpawnError when it cannot."""
        guest = self._guests[name]
        deadline = time.monotonic() + COMMAND_SECONDS_MAX
        while time.monotonic() < deadline:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if self._read(f"{guest.name}/inner"):
                return
            if ended is not None:
                text = runtime.complaint(self._read(f"{guest.name}/exec.log"))
                raise SpawnError(text or f"the runtime ended with {ended.si_status}", job=runtime.is_the_jobs(text))
            time.sleep(POLL_SECONDS)
        raise SpawnError(f"the command was not executed within {COMMAND_SECONDS_MAX} s", job=False)

    def signal(self, name: str, pid: int, number: int) -> None:
        guest = self._guests[name]
        inner = self._read(f"{guest.name}/inner").strip()
        try:
            self._command(guest.name, ["kill", f"--pid={inner}"], self._place, after=[str(number)])
        except SpawnError:
            if start_ticks(pid) is not None:  # else it ended meanwhile
                raise

    def resized(self, name: str, quota: Quota) -> None:
        """Tell the guest how many processes it may have; the rest is its control group's."""
        guest = self._guests[name]
        described = memory_file("process", runtime.privileged([LIMITER_PATH], "CAP_SYS_RESOURCE"))
        told = memory_file("limit", own_programs.process_limit(quota.pids))
        os.set_inheritable(described, True)
        try:
            self._command(guest.name, ["exec", f"--process=/proc/self/fd/{described}"], self._place, files=(told, -1))
        finally:
            os.close(described)
            os.close(told)

    def ending(self, name: str, code: int) -> int:
        return runtime.ending(code) if code >= 0 else code

    def broke(self, name: str) -> bool:
        """Whether its kernel is gone, which never happens by itself."""
        return name in self._guests and not self._guests[name].lives

    def ended(self, name: str) -> None:
        """Its group is empty; what the runtime remembers of it is in memory that goes with the sandbox."""
        guest = self._guests.pop(name, None)
        if guest is not None:
            guest.forget()

    def close(self) -> None:
        for guest in (*self._guests.values(), *([self._ready] if self._ready is not None else [])):
            guest.forget()
        self._guests.clear()
        if self._traces is not None:
            self._traces.close()
        self._close_talk()
        self._keeper.close()

    def _close_talk(self) -> None:
        """What a guest that stands ready is told over, and answers over."""
        for descriptor in (self._tell, self._answer):
            if descriptor >= 0:
                os.close(descriptor)
        self._tell = self._answer = -1

    # --- the runtime ----------------------------------------------------------------------------------------

    def _command(
        self,
        guest: str,
        arguments: list[str],
        place: Callable[[int], None],
        *,
        files: tuple[int, int] = (-1, -1),
        after: list[str] | None = None,
    ) -> None:
        """Run one command of the runtime to its end. Raises SpawnError with what it complained of."""
        verb = next(each for each in arguments if not each.startswith("--"))
        log = f"{guest}/{verb}.log"
        options = runtime.options(f"{STATE}/root", f"{STATE}/{log}")
        argv = [f"/proc/self/fd/{self._binary}", *options, *arguments, guest, *(after or [])]
        gate_read, gate_write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(gate_write)
                self._become(argv, files, gate_read)
            finally:
                os._exit(127)
        os.close(gate_read)
        try:
            place(child)
            os.write(gate_write, b"\1")
        finally:
            os.close(gate_write)
            code = self._await_end(child)
        if code != 0:
            text = runtime.complaint(self._read(log))
            raise SpawnError(f"the runtime's `{verb}` failed: {text or code}", job=False)

    def _await_end(self, pid: int) -> int:
        """Wait in bounds for a child; return its exit code."""
        if not await_end(pid, self._traces, COMMAND_SECONDS_MAX):
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)

    def _become(self, argv: list[str], files: tuple[int, int], gate: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if os.read(gate, 1) != b"\1":
            return
        null = os.open("/dev/null", os.O_RDWR)
        told, answer = (null if each < 0 else each for each in files)
        for target, source in ((0, told), (1, answer), (2, null)):
            os.dup2(source, target)
        self._keeper.enter()
        os.set_inheritable(self._binary, True)
        os.execve(argv[0], argv, {})

    def _write(self, path: str, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600, dir_fd=self._keeper.state)
        with open(descriptor, "wb") as writing:
            writing.write(content)

    def _read(self, path: str) -> str:
        """What the runtime wrote; empty where it has not."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._keeper.state)
        except FileNotFoundError:
            return ""
        with open(descriptor, "rb") as reading:
            return reading.read(COMPLAINT_BYTES_MAX).decode(errors="replace")
