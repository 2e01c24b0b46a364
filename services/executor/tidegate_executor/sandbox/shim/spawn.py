"""Start one process so that it sits in its control group before its first instruction, and say why if it cannot.

A child is forked, told where its sandbox is, and told what to run; what takes long (being placed waits until every
processor of the machine has taken notice) happens beside its own preparations. What it shall run, secrets included,
comes over a pipe, and an error before or in exec goes back over one that exec closes.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn, Protocol

from tidegate_executor.cgroups.base import CgroupError, Group, Quota
from tidegate_executor.sandbox.shim import starter
from tidegate_executor.sandbox.shim.descriptors import receive
from tidegate_executor.sandbox.shim.guest_trace import GuestRefusals
from tidegate_executor.sandbox.shim.processes import end_child

EXEC_SECONDS_MAX = 20.0
MESSAGE_BYTES_MAX = 4096
LENGTH = "<I"  # before each message but the last, which is one byte
PATH_DEFAULT = "/usr/local/bin:/usr/bin:/bin"


class SpawnError(Exception):
    """`job`: the command is at fault (not found, not executable), not the node."""

    def __init__(self, text: str, *, job: bool) -> None:
        super().__init__(text)
        self.job = job


class Process(NamedTuple):
    """What to run; `env` is complete and includes the secrets."""

    argv: list[str]
    env: dict[str, str]
    cwd: str


class Launcher(Protocol):
    """Where processes run: inside a sandbox, or plainly on the host.

    `clones`: `fork_inside` makes a further process, the one that will run. `holder` is the host pid of what holds the
    place together, 0 where nothing does. `program` is what the first process is while it waits (see `starter`), -1
    where it stays what it is.
    """

    clones: bool
    holder: int
    program: int

    def open(self, meanwhile: Callable[[], None]) -> int | None:
        """Set the place up; return a descriptor that hangs up when the place is gone (None: it cannot go).

        `meanwhile` is called once, when only others have something to do for it.
        """
        ...

    def ground(self) -> None: ...

    def lay_out(self) -> None: ...

    def adopt(self, late: list[list[str]], meanwhile: Callable[[], None]) -> None: ...

    def join(self, holder: int) -> None:
        """In a fresh child: know the place, which may have been set up after the fork."""
        ...

    def fork_inside(self) -> int:
        """In a fresh child: 0 in the process that will run, else that process's pid (only where it `clones`)."""
        ...

    def enter(self) -> None:
        """In the process that will run: go where it shall run."""
        ...

    def translate(self, process: Process) -> Process:
        """In the process that will run: what is really executed there."""
        ...

    def confine(self) -> int:
        """In the process that will run: give up every privilege, before it is known what that is.

        Return the listener of a filter that asks, for the shim to answer; -1: none asks.
        """
        ...

    def close(self) -> None:
        """End whatever still runs in the place."""
        ...

    # The steps of a replica's life; see `Launching`.

    def group(self, group: Group) -> Group: ...

    def prepare(self, group: Group) -> bool:
        """Make ready for the first replica, before it is known, in this group; say whether its process can wait too."""
        ...

    def prepared_for(self, name: str) -> bool: ...

    def complete(self, process: Process) -> Process: ...

    def begin(self, name: str, group: Group | None, quota: Quota) -> None: ...

    def confirm(self, name: str, pid: int) -> None: ...

    def refusals(self, name: str) -> GuestRefusals | None: ...

    def signal(self, name: str, pid: int, number: int) -> None: ...

    def unchangeable(self, before: Quota, after: Quota) -> str: ...

    def resizing(self, name: str, quota: Quota) -> None: ...

    def resized(self, name: str, quota: Quota) -> None: ...

    def ending(self, name: str, code: int) -> int: ...

    def broke(self, name: str) -> bool: ...

    def ended(self, name: str) -> None: ...


ARRIVED = b"\0"  # what a child says before it executes the command: one that ends without was not the job


class Child:
    """A process that does not know yet what it will run, and ends by itself when it is closed before."""

    def __init__(self, launcher: Launcher, output: int, program: int = -1) -> None:
        """Fork it; the descriptor `output` will be its output. While it waits it is the `program`, see `starter`."""
        self._starter = program >= 0
        self._process: Process | None = None
        self._clones = launcher.clones
        tell_read, self._tell = os.pipe()
        self._status, status_write = os.pipe()
        self._handing, handing_write = socket.socketpair()
        self.forked = os.fork()
        if self.forked == 0:
            os.close(self._tell)
            os.close(self._status)
            self._handing.close()
            _child(launcher, (output, tell_read, status_write), handing_write, program)
        os.close(tell_read)
        os.close(status_write)
        handing_write.close()
        self._said = b""
        self._inside = 0
        self._entering = False

    def enter(self, holder: int) -> None:
        """Have it go to the place. Raises SpawnError when it is gone."""
        self._say({"holder": holder})
        self._entering = True

    def inside(self) -> int:
        """Wait until it is there; return the host pid of the process that will run. Raises SpawnError."""
        if not self._inside:
            self._inside = self._await_clone() if self._clones else self.forked
        return self._inside

    def waits(self) -> bool:
        """Whether it, which is there, has not ended."""
        try:
            return os.waitid(os.P_PID, self.inside(), os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def prepare(self, process: Process) -> None:
        """Tell it what to run, when `run` is called. Raises SpawnError when it is gone."""
        self._process = process
        if not self._starter:
            self._say(process._asdict())

    def run(self) -> int:
        """Let it execute the command; return its pid. Raises SpawnError when it could not."""
        assert self._process is not None, "it is prepared"
        go = b"\1"
        if self._starter:
            go = starter.told(os.uname().machine, places(self._process), self._process)
        with suppress(BrokenPipeError):  # then it has said why
            while go:
                go = go[os.write(self._tell, go) :]
        self._judge(self._read(), self._process)
        self._release()
        return self.inside()

    def _judge(self, said: bytes, process: Process) -> None:
        """Raise SpawnError where this says that it is not the command."""
        report = said if self._starter else said.removeprefix(ARRIVED)
        if report.startswith(b"{"):
            reported = json.loads(report)
            raise SpawnError(reported["text"], job=reported["job"])
        if not said:  # it says that it has arrived before it executes anything
            raise SpawnError("what waited for the command ended before it", job=False)
        if not self._starter:
            return
        problem = starter.failure(said, process.cwd)
        if isinstance(problem, list):
            problem = worst(list(zip(problem, places(process), strict=True)), process)
        if problem is not None:
            raise SpawnError(f"{problem}"[: MESSAGE_BYTES_MAX // 8], job=True)

    def listener(self) -> int:
        """Return, once it runs, the listener of its filter, which is the caller's then; -1: it has none that asks."""
        with self._handing:
            _, descriptors = receive(self._handing, 1, 1)
        return descriptors[0] if descriptors else -1

    def close(self) -> None:
        """End it and wait for that, wherever it is, unless it runs."""
        self._handing.close()
        if self._tell < 0:
            return
        if self._entering and not self._inside:
            with suppress(SpawnError):  # gone
                self.inside()
        self._release()
        for pid in {self.forked, self._inside} - {0}:
            end_child(pid)

    def _release(self) -> None:
        for descriptor in (self._tell, self._status):
            if descriptor >= 0:
                os.close(descriptor)
        self._tell = self._status = -1

    def _say(self, message: dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        data = struct.pack(LENGTH, len(text)) + text
        try:
            while data:
                data = data[os.write(self._tell, data) :]
        except BrokenPipeError:
            raise SpawnError("the child vanished before it started", job=False) from None

    def _await_clone(self) -> int:
        """The pid of the process that the forked child cloned before it ended."""
        while b"\n" not in self._said:
            ready, _, _ = select.select([self._status], [], [], EXEC_SECONDS_MAX)
            chunk = os.read(self._status, MESSAGE_BYTES_MAX) if ready else b""
            if not chunk:
                text = self._said.decode(errors="replace")
                raise SpawnError(text or "the child vanished before it started", job=False)
            self._said += chunk
        line, _, self._said = self._said.partition(b"\n")
        with suppress(ChildProcessError):
            os.waitpid(self.forked, 0)
        message = json.loads(line)
        if "pid" not in message:
            raise SpawnError(message["text"], job=message["job"])
        return int(message["pid"])

    def _read(self) -> bytes:
        """Everything until exec, or the end, closes the pipe."""
        while True:
            ready, _, _ = select.select([self._status], [], [], EXEC_SECONDS_MAX)
            if not ready:
                raise SpawnError(f"the command was not executed within {EXEC_SECONDS_MAX} s", job=False)
            chunk = os.read(self._status, MESSAGE_BYTES_MAX)
            if not chunk:
                return self._said
            self._said += chunk


def spawn(launcher: Launcher, process: Process, output: int, place: Callable[[int], None]) -> Child:
    """Return the started process, a child of ours. Raises SpawnError; then nothing is left."""
    child = Child(launcher, output)
    try:
        child.enter(launcher.holder)
        pid = child.inside()
        child.prepare(process)
        try:
            place(pid)
        except (CgroupError, OSError):
            child.run()  # one that ended because of its command cannot be placed either, and says why
            raise
        child.run()
    except BaseException:
        child.close()
        raise
    return child


def _child(launcher: Launcher, descriptors: tuple[int, int, int], handing: socket.socket, program: int) -> NoReturn:
    output, tell, status = descriptors
    job = False
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # Python ignores the first two; exec would keep that
        launcher.join(int(_hear(tell)["holder"]))
        inside = launcher.fork_inside()
        if inside:
            os.write(status, json.dumps({"pid": inside}).encode() + b"\n")
            os._exit(0)
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for target, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, target)
        launcher.enter()
        _hand_over(launcher.confine(), handing)
        if program >= 0:
            starter.become(program, tell, status)
        process = launcher.translate(Process(**_hear(tell)))
        job = True
        os.chdir(process.cwd)
        job = False
        if os.read(tell, 1) != b"\1":
            os._exit(127)
        job = True
        os.write(status, ARRIVED)
        _execute(process)
    except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
        report = {"text": f"{error}"[: MESSAGE_BYTES_MAX // 8], "job": job}
        os.write(status, json.dumps(report).encode() + b"\n")
    finally:
        os._exit(127)


def _hand_over(listener: int, handing: socket.socket) -> None:
    """Let the shim have the listener, and nobody here: whoever holds it says what the filter allows."""
    with handing:
        if listener >= 0:
            socket.send_fds(handing, [b"\1"], [listener])
            os.close(listener)


def _hear(tell: int) -> dict[str, Any]:
    (size,) = struct.unpack(LENGTH, _hear_bytes(tell, struct.calcsize(LENGTH)))
    message: dict[str, Any] = json.loads(_hear_bytes(tell, size))
    return message


def _hear_bytes(tell: int, size: int) -> bytes:
    heard = b""
    while len(heard) < size:
        part = os.read(tell, size - len(heard))
        if not part:
            os._exit(127)  # the shim has ended, or needs us no more
        heard += part
    return heard


def _execute(process: Process) -> NoReturn:
    """exec, searching the process's own PATH."""
    tried: list[tuple[int, str]] = []
    for place in places(process):
        try:
            os.execve(place, process.argv, process.env)
        except OSError as error:
            tried.append((error.errno or errno.EINVAL, place))
    raise worst(tried, process)


def places(process: Process) -> list[str]:
    """The files that its command may be."""
    command = process.argv[0]
    if "/" in command:
        return [command]
    return [f"{directory or '.'}/{command}" for directory in process.env.get("PATH", PATH_DEFAULT).split(":")]


def worst(tried: list[tuple[int, str]], process: Process) -> OSError:
    """Of what executing each of these files failed with: what says most."""
    for absent in ((errno.ENOENT, errno.ENOTDIR, errno.EACCES), (errno.ENOENT, errno.ENOTDIR)):
        for number, place in tried:
            if number not in absent:
                return OSError(number, os.strerror(number), place)
    number, place = tried[-1]
    if "/" in process.argv[0]:
        return OSError(number, os.strerror(number), place)
    return OSError(number, f"no {process.argv[0]!r} in PATH={process.env.get('PATH', PATH_DEFAULT)}")
