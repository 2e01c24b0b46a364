"""Start shims, each forked by this process's zygote, and hear whether their sandboxes stand."""

from __future__ import annotations

import asyncio
import collections
import os
import socket
import subprocess
import threading
import weakref
from typing import Any

import msgspec
import structlog

from tidegate_executor.sandbox.base import InfrastructureError
from tidegate_executor.sandbox.shim import zygote as zygote_module
from tidegate_executor.sandbox.shim.main import ISOLATED, PLAIN

STANDING_SECONDS_MAX = 60.0
WAITING_MAX = 2  # shims that wait for a configuration, forked ahead: as many as a start at a time can use
ANSWER_BYTES_MAX = 65536

log = structlog.get_logger()


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
        self._waiting: dict[bytes, collections.deque[socket.socket]] = {}
        weakref.finalize(self, _end, (ours, self._waiting), self._process, self._pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it lives and is ours: after a fork of this process the child needs one of its own."""
        return self._pid == os.getpid() and self._process.poll() is None

    def take(self, kind: bytes) -> socket.socket:
        """Return the connection to a shim of that kind, which waits for its configuration. Raises OSError."""
        waiting = self._waiting.setdefault(kind, collections.deque())
        while waiting:
            connection = waiting.popleft()
            if _is_open(connection):
                self.prepared += 1
                return connection
            connection.close()
        self.unprepared += 1
        return self._fork(kind)

    def refill(self, kind: bytes) -> None:
        """Have as many shims of that kind wait as there may be. Raises OSError."""
        waiting = self._waiting.setdefault(kind, collections.deque())
        while len(waiting) < WAITING_MAX:
            waiting.append(self._fork(kind))

    def _fork(self, kind: bytes) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [kind], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)
        return ours


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


zygotes = Zygotes()


async def launch_shim(python: str, config: dict[str, Any]) -> None:
    """Return when the sandbox stands. The configuration travels by socket: it may hold secrets.

    The shim has a session of its own, and outlives us; nothing of ours remains but its control socket.
    """
    loop = asyncio.get_running_loop()
    kind = ISOLATED if config["backend"] == "bwrap" else PLAIN
    zygote, ours = await _take(python, kind)
    with ours:
        try:
            async with asyncio.timeout(STANDING_SECONDS_MAX):
                await loop.sock_sendall(ours, msgspec.json.encode(config))
                ours.shutdown(socket.SHUT_WR)
                answer = await _read_line(ours)
        except TimeoutError:
            raise InfrastructureError(f"no sandbox within {STANDING_SECONDS_MAX} s") from None
        except OSError as error:
            raise InfrastructureError(f"the sandbox's shim went away: {error}") from error
    if not answer:
        raise InfrastructureError("the sandbox's shim ended before it could say why")
    report: dict[str, Any] = msgspec.json.decode(answer)
    if "error" in report:
        raise InfrastructureError(f"the sandbox could not be set up: {report['error']}")
    _refill(zygote, kind)


async def _take(python: str, kind: bytes) -> tuple[Zygote, socket.socket]:
    try:
        zygote = zygotes.living(python)
        if zygote is None:
            zygote = await asyncio.to_thread(zygotes.get, python)
        return zygote, zygote.take(kind)
    except OSError as error:
        raise InfrastructureError(f"the sandbox's shim cannot be started: {error}") from error


def _refill(zygote: Zygote, kind: bytes) -> None:
    try:
        zygote.refill(kind)
    except OSError as error:  # short of descriptors, or it was killed: the next start tries, and says so
        log.warning("shims_not_prepared", why=str(error))


def _is_open(connection: socket.socket) -> bool:
    """Say whether the shim that waits at its other end, and says nothing yet, is alive."""
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    return False


async def _read_line(connection: socket.socket) -> bytes:
    """Return what there is up to the end of a line: children of the shim may hold the connection open."""
    loop = asyncio.get_running_loop()
    answer = b""
    while not answer.endswith(b"\n") and (part := await loop.sock_recv(connection, ANSWER_BYTES_MAX)):
        answer += part
    return answer


def _end(
    sockets: tuple[socket.socket, dict[bytes, collections.deque[socket.socket]]],
    process: subprocess.Popen[bytes],
    owner: int,
) -> None:
    control, waiting = sockets
    for connection in (control, *(each for kind in waiting.values() for each in kind)):
        connection.close()
    if owner == os.getpid():
        process.wait()
