"""Start shims, each forked by this process's zygote, tell them what to make and hear whether it stands."""

from __future__ import annotations

import asyncio
import collections
import json
import os
import secrets
import socket
import subprocess
import threading
import weakref
from typing import Any, NamedTuple

import msgspec
import structlog

from tidegate_executor.sandbox.base import InfrastructureError
from tidegate_executor.sandbox.client import read_line
from tidegate_executor.sandbox.shim import zygote as zygote_module
from tidegate_executor.sandbox.shim.main import ISOLATED, PLAIN

STANDING_SECONDS_MAX = 60.0
GONE_SECONDS_MAX = 5.0  # for shims that nobody needs to end
READ_BYTES = 65536
WAITING_MAX = 2  # shims that wait for a configuration, forked ahead: as many as a start at a time can use
READY_PREFIX = "ready-"  # of control groups that were made before it was known for which sandbox

log = structlog.get_logger()

Ground = tuple[bytes, str]
"""What can be made before a sandbox is known: the kind of shim, and in JSON the control groups, empty for none."""


class Waiting(NamedTuple):
    """A shim that waits for its configuration: the connection to it, and its control group (empty: it has none)."""

    connection: socket.socket
    group: str


def ground_of(backend: str, cgroup: dict[str, str] | None) -> Ground:
    """Return what can be made ahead for sandboxes of this backend in these control groups."""
    if backend != "bwrap":
        return PLAIN, ""
    return ISOLATED, json.dumps(cgroup) if cgroup is not None else ""


class Zygote:
    """One process to fork from. It ends when `control` is closed, which the end of this process does too."""

    def __init__(self, python: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [python, "-I", "-S", zygote_module.__file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        self._control = ours
        self._pid = os.getpid()
        self.prepared = self.unprepared = 0
        self._waiting: dict[Ground, collections.deque[Waiting]] = {}
        weakref.finalize(self, _end, (ours, self._waiting), self._process, self._pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it lives and is ours: after a fork of this process the child needs one of its own."""
        return self._pid == os.getpid() and self._process.poll() is None

    def take(self, ground: Ground) -> Waiting:
        """Return a shim on that ground, which waits for its configuration. Raises OSError."""
        waiting = self._waiting.setdefault(ground, collections.deque())
        while waiting:
            shim = waiting.popleft()
            if is_quiet(shim.connection):
                self.prepared += 1
                return shim
            shim.connection.close()
        self.unprepared += 1
        return self._fork(ground)

    def refill(self, ground: Ground) -> None:
        """Have as many shims on that ground wait as there may be. Raises OSError."""
        waiting = self._waiting.setdefault(ground, collections.deque())
        while len(waiting) < WAITING_MAX:
            waiting.append(self._fork(ground))

    def dismiss(self, ground: Ground) -> list[Waiting]:
        """Have none wait there, and return those that did."""
        return list(self._waiting.pop(ground, ()))

    def groups(self) -> set[str]:
        """Return the control groups of shims that wait."""
        return {shim.group for waiting in self._waiting.values() for shim in waiting if shim.group}

    def _fork(self, ground: Ground) -> Waiting:
        kind, cgroup = ground
        group = f"{READY_PREFIX}{secrets.token_hex(6)}" if cgroup else ""
        known = {"backend": "bwrap", "cgroup": json.loads(cgroup), "group": group, "pids_max": 0} if cgroup else {}
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [kind + json.dumps(known).encode()], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)
        return Waiting(ours, group)


class Zygotes:
    """One for each Python that shims run with, started when first needed and again if it was killed."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._known: dict[str, Zygote] = {}

    def living(self, python: str) -> Zygote | None:
        """Return the one that is there already."""
        known = self._known.get(python)
        return known if known is not None and known.usable else None

    def get(self, python: str) -> Zygote:
        """Return a living one. Blocks while it is started. Raises OSError."""
        with self._starting:
            known = self.living(python)
            if known is None:
                known = self._known[python] = Zygote(python)
            return known

    def counters(self) -> dict[str, float]:
        """Return how often a shim waited ready and how often none did, by the names of NODE_COUNTERS."""
        known = list(self._known.values())
        return {
            "starts_prepared": float(sum(zygote.prepared for zygote in known)),
            "starts_unprepared": float(sum(zygote.unprepared for zygote in known)),
        }

    async def dismiss(self, ground: Ground) -> None:
        """Have no shim wait on that ground; see `await_end`."""
        leaving = [shim for zygote in self._known.values() for shim in zygote.dismiss(ground)]
        await asyncio.gather(*(await_end(shim) for shim in leaving))

    def groups(self) -> set[str]:
        """Return the control groups of shims that wait."""
        return {group for zygote in self._known.values() for group in zygote.groups()}


zygotes = Zygotes()


async def take_shim(python: str, ground: Ground) -> Waiting:
    """Return a shim that waits for its configuration. Raises InfrastructureError."""
    try:
        zygote = zygotes.living(python)
        if zygote is None:
            zygote = await asyncio.to_thread(zygotes.get, python)
        return zygote.take(ground)
    except OSError as error:
        raise InfrastructureError(f"the sandbox's shim cannot be started: {error}") from error


async def tell_shim(shim: Waiting, config: dict[str, Any]) -> None:
    """Return when the shim has made what the configuration says, which may hold secrets. Raises InfrastructureError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(STANDING_SECONDS_MAX):
            await loop.sock_sendall(shim.connection, msgspec.json.encode(config) + b"\n")
            answer = await read_line(shim.connection)
    except TimeoutError:
        raise InfrastructureError(f"no sandbox within {STANDING_SECONDS_MAX} s") from None
    except OSError as error:
        raise InfrastructureError(f"the sandbox's shim went away: {error}") from error
    if not answer:
        raise InfrastructureError("the sandbox's shim ended before it could say why")
    report: dict[str, Any] = msgspec.json.decode(answer)
    if "error" in report:
        raise InfrastructureError(f"the sandbox could not be set up: {report['error']}")


async def await_end(shim: Waiting) -> None:
    """Tell a shim that nobody needs it; return when it has ended, or has made a sandbox that it was told of before.

    Only its own word tells when: a control group that is not there may be one that it is about to make.
    """
    loop = asyncio.get_running_loop()
    with shim.connection:
        try:
            shim.connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(GONE_SECONDS_MAX):
                while await loop.sock_recv(shim.connection, READ_BYTES):
                    pass
        except ConnectionError:
            return  # it has ended, and had not read all that it was told
        except TimeoutError:
            log.warning("shim_not_gone", group=shim.group, seconds=GONE_SECONDS_MAX)


def refill(python: str, ground: Ground) -> None:
    """Have shims wait for the next starts on that ground."""
    zygote = zygotes.living(python)
    try:
        if zygote is not None:
            zygote.refill(ground)
    except OSError as error:  # short of descriptors, or it was killed: the next start tries, and says so
        log.warning("shims_not_prepared", why=str(error))


def is_quiet(connection: socket.socket) -> bool:
    """Say whether the shim that waits at its other end, and says nothing yet, is alive."""
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    return False


def _end(
    sockets: tuple[socket.socket, dict[Ground, collections.deque[Waiting]]],
    process: subprocess.Popen[bytes],
    owner: int,
) -> None:
    control, waiting = sockets
    for connection in (control, *(each.connection for shims in waiting.values() for each in shims)):
        connection.close()
    if owner == os.getpid():
        process.wait()
