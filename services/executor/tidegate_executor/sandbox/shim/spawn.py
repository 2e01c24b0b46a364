"""Start one process so that it sits in its control group before its first instruction, and say why if it cannot.

Being placed waits until every processor of the machine has taken notice, so the child makes itself ready meanwhile, and
executes the command behind a gate that the shim opens then. An error before or in exec comes back over a pipe that exec
closes. Secrets travel in the forked memory only.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Protocol

from tidegate_executor.cgroups.base import CgroupError

EXEC_SECONDS_MAX = 20.0
MESSAGE_BYTES_MAX = 4096
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

    `clones`: `fork_inside` makes a further process, the one that will run.
    """

    clones: bool

    def open(self) -> int | None:
        """Set the place up; return a descriptor that hangs up when the place is gone (None: it cannot go)."""
        ...

    def fork_inside(self) -> int:
        """In a fresh child: 0 in the process that will run, else that process's pid (only where it `clones`)."""
        ...

    def enter(self) -> None:
        """In the process that will run: go where it shall run."""
        ...

    def confine(self) -> None:
        """In the process that will run, last: give up every privilege."""
        ...

    def close(self) -> None:
        """End whatever still runs in the place."""
        ...


def spawn(launcher: Launcher, process: Process, output: int, place: Callable[[int], None]) -> int:
    """Return the host pid of the started process, a child of ours. Raises SpawnError; then nothing is left."""
    gate_read, gate_write = os.pipe()
    status_read, status_write = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.close(gate_write)
        _child(launcher, process, (output, gate_read, status_write))
    os.close(gate_read)
    os.close(status_write)
    pid = 0
    try:
        pid = _await_clone(forked, status_read) if launcher.clones else forked
        try:
            place(pid)
            os.write(gate_write, b"\1")
        except (CgroupError, OSError):
            os.kill(pid, signal.SIGKILL)
            _raise_reported(_read(status_read))  # one that ended on its own could not be placed either
            raise
        _raise_reported(_read(status_read))
    except BaseException:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
    finally:
        os.close(gate_write)
        os.close(status_read)
    return pid


def _raise_reported(problem: bytes) -> None:
    if problem:
        report = json.loads(problem)
        raise SpawnError(report["text"], job=report["job"])


def _await_clone(forked: int, status_read: int) -> int:
    """The pid of the process that the forked child cloned before it ended."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([status_read], [], [], EXEC_SECONDS_MAX)
        chunk = os.read(status_read, 1) if ready else b""
        if not chunk or len(line) > MESSAGE_BYTES_MAX:
            os.kill(forked, signal.SIGKILL)
            os.waitpid(forked, 0)
            raise SpawnError(line.decode(errors="replace") or "the child vanished before it started", job=False)
        line += chunk
    os.waitpid(forked, 0)
    message = json.loads(line)
    if "pid" not in message:
        raise SpawnError(message["text"], job=message["job"])
    return int(message["pid"])


def _read(status_read: int) -> bytes:
    """Everything until exec closes the pipe."""
    text = b""
    while True:
        ready, _, _ = select.select([status_read], [], [], EXEC_SECONDS_MAX)
        if not ready:
            raise SpawnError(f"the command was not executed within {EXEC_SECONDS_MAX} s", job=False)
        chunk = os.read(status_read, MESSAGE_BYTES_MAX)
        if not chunk:
            return text
        text += chunk


def _child(launcher: Launcher, process: Process, descriptors: tuple[int, int, int]) -> NoReturn:
    output, gate_read, status_write = descriptors
    job = False
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # Python ignores the first two; exec would keep that
        inside = launcher.fork_inside()
        if inside:
            os.write(status_write, json.dumps({"pid": inside}).encode() + b"\n")
            os._exit(0)
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for target, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, target)
        launcher.enter()
        job = True
        os.chdir(process.cwd)
        job = False
        launcher.confine()
        if os.read(gate_read, 1) != b"\1":
            os._exit(127)
        job = True
        _execute(process)
    except BaseException as error:  # noqa: BLE001 - the report is the only way out of a forked child
        report = {"text": f"{error}"[: MESSAGE_BYTES_MAX // 8], "job": job}
        os.write(status_write, json.dumps(report).encode() + b"\n")
    finally:
        os._exit(127)


def _execute(process: Process) -> NoReturn:
    """exec, searching the process's own PATH."""
    command = process.argv[0]
    if "/" in command:
        os.execve(command, process.argv, process.env)
    denied: OSError | None = None
    for directory in process.env.get("PATH", PATH_DEFAULT).split(":"):
        try:
            os.execve(f"{directory or '.'}/{command}", process.argv, process.env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
    if denied is not None:
        raise denied
    raise FileNotFoundError(2, f"no {command!r} in PATH={process.env.get('PATH', PATH_DEFAULT)}")
