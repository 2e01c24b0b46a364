"""Talk to a sandbox's shim over its control socket."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tidegate_executor.sandbox.base import (
    CommandNotStartableError,
    InfrastructureError,
    RequestRefusedError,
    SandboxLostError,
    SandboxStoppingError,
)
from tidegate_executor.sandbox.shim.server import SOCKET_NAME
from tidegate_executor.sandbox.state import StateDirectory

ANSWER_SECONDS_MAX = 60.0
LINE_BYTES_MAX = 1024 * 1024
READ_BYTES = 65536  # a larger buffer would be mapped anew for each answer

ERRORS: dict[str, type[Exception]] = {
    "refused": RequestRefusedError,
    "stopping": SandboxStoppingError,
    "job": CommandNotStartableError,
    "infrastructure": InfrastructureError,
}


class ShimGoneError(SandboxLostError):
    """Nobody answers on the control socket."""


def open_socket(state: StateDirectory) -> socket.socket:
    """Connect through a directory descriptor: a socket address holds 107 bytes, a state directory may be longer."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connecting.setblocking(False)
    try:
        directory = os.open(state.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connecting.connect(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
        finally:
            os.close(directory)
    except OSError as error:
        connecting.close()
        raise ShimGoneError(f"sandbox {state.id}: its shim does not answer ({error.strerror})") from error
    return connecting


@asynccontextmanager
async def connected(state: StateDirectory) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_unix_connection(sock=open_socket(state), limit=LINE_BYTES_MAX)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(state: StateDirectory, request: dict[str, Any], seconds_max: float = ANSWER_SECONDS_MAX) -> Any:
    """Send one request; return the answer or raise what it says."""
    loop = asyncio.get_running_loop()
    try:
        with open_socket(state) as asking:
            async with asyncio.timeout(seconds_max):
                await loop.sock_sendall(asking, msgspec.json.encode(request) + b"\n")
                line = await read_line(asking)
    except TimeoutError:
        raise InfrastructureError(
            f"sandbox {state.id}: no answer to {request['op']!r} within {seconds_max} s"
        ) from None
    except OSError as error:
        raise ShimGoneError(f"sandbox {state.id}: its shim went away ({error.strerror})") from error
    if not line.endswith(b"\n"):
        raise ShimGoneError(f"sandbox {state.id}: its shim went away while it handled {request['op']!r}")
    answer: dict[str, Any] = msgspec.json.decode(line)
    if "error" in answer:
        raise ERRORS[answer["error"]](f"sandbox {state.id}: {answer['text']}")
    return answer["ok"]


async def read_line(connection: socket.socket) -> bytes:
    """Return what there is up to the end of a line, or of the connection, which children of the shim may hold open.

    By bare calls: streams would cost more than the shim takes to answer.
    """
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n") and (part := await loop.sock_recv(connection, READ_BYTES)):
        line += part
    return line
