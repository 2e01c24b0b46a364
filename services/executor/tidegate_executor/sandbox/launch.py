"""Start shims, each forked by this process's zygote, and hear whether their sandboxes stand."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import weakref
from typing import Any

import msgspec

from tidegate_executor.sandbox.base import InfrastructureError
from tidegate_executor.sandbox.shim import zygote as zygote_module

STANDING_SECONDS_MAX = 60.0
ANSWER_BYTES_MAX = 65536


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
        weakref.finalize(self, _end, ours, self._process, self._pid)

    @property
    def usable(self) -> bool:
        """Whether it lives and is ours: after a fork of this process the child needs one of its own."""
        return self._pid == os.getpid() and self._process.poll() is None

    def fork(self, connection: socket.socket) -> None:
        """Have a shim forked that reads its configuration from the connection's other end."""
        socket.send_fds(self._control, [b"\1"], [connection.fileno()])


class Zygotes:
    """One for each Python that shims run with, started when first needed and again if it was killed."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._known: dict[str, Zygote] = {}

    def get(self, python: str) -> Zygote:
        """Return a living one. Blocks while it is started. Raises OSError."""
        known = self._known.get(python)
        if known is not None and known.usable:
            return known
        with self._starting:
            known = self._known.get(python)
            if known is None or not known.usable:
                known = self._known[python] = Zygote(python)
            return known


zygotes = Zygotes()


async def launch_shim(python: str, config: dict[str, Any]) -> None:
    """Return when the sandbox stands. The configuration travels by socket: it may hold secrets.

    The shim has a session of its own, and outlives us; nothing of ours remains but its control socket.
    """
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs:
            await _fork(python, theirs)
        try:
            async with asyncio.timeout(STANDING_SECONDS_MAX):
                await loop.sock_sendall(ours, msgspec.json.encode(config))
                ours.shutdown(socket.SHUT_WR)
                answer = await _read_all(ours)
        except TimeoutError:
            raise InfrastructureError(f"no sandbox within {STANDING_SECONDS_MAX} s") from None
        except OSError as error:
            raise InfrastructureError(f"the sandbox's shim went away: {error}") from error
    if not answer:
        raise InfrastructureError("the sandbox's shim ended before it could say why")
    report: dict[str, Any] = msgspec.json.decode(answer)
    if "error" in report:
        raise InfrastructureError(f"the sandbox could not be set up: {report['error']}")


async def _fork(python: str, connection: socket.socket) -> None:
    try:
        zygote = await asyncio.to_thread(zygotes.get, python)
        zygote.fork(connection)
    except OSError as error:
        raise InfrastructureError(f"the sandbox's shim cannot be started: {error}") from error


async def _read_all(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    answer = b""
    while part := await loop.sock_recv(connection, ANSWER_BYTES_MAX):
        answer += part
    return answer


def _end(control: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    control.close()
    if owner == os.getpid():
        process.wait()
