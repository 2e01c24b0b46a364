"""One connection to the agent: non-blocking, so that neither end can wait for the other to read."""

from __future__ import annotations

import os
import select
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Optional, Type

from tidegate import protocol

CONNECT_SECONDS_MAX = 5.0
PATH_BYTES_MAX = 100
"""A unix socket's address holds 107 bytes; a longer path is reached through its directory's descriptor."""


class Wake:
    """Lets other threads end the link thread's wait at once."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)

    def set(self) -> None:
        """End the present or next wait."""
        with suppress(BlockingIOError):  # full of wake-ups already
            os.write(self._writer, b"x")

    def wait(self, seconds: float) -> None:
        """Wait for `set`, at most `seconds`."""
        select.select([self.reader], [], [], seconds)
        self.clear()

    def clear(self) -> None:
        """Forget earlier wake-ups."""
        with suppress(BlockingIOError):
            os.read(self.reader, 65536)


class Connection:
    """A connected socket with an output buffer."""

    def __init__(self, path: Path, wake: Wake) -> None:
        self._wake = wake
        self._reader = protocol.FrameReader()
        self._out = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(CONNECT_SECONDS_MAX)
            _connect(self._socket, path)
            self._socket.setblocking(False)
            self._poll = select.poll()
            self._poll.register(wake.reader, select.POLLIN)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._socket.close()

    @property
    def unsent_bytes(self) -> int:
        """Return how much waits for the agent to read."""
        return len(self._out)

    def send(self, message: Dict[str, Any]) -> None:
        """Queue a message."""
        self._out += protocol.encode_frame(message)

    def send_frame(self, frame: bytes) -> None:
        """Queue a frame."""
        self._out += frame

    def exchange(self, seconds: float) -> List[Dict[str, Any]]:
        """Send what can be sent, and return what came within `seconds`; returns early when woken.

        Raises OSError when the agent is gone and FrameError when what came is not a frame.
        """
        self._flush()
        interest = select.POLLIN | (select.POLLOUT if self._out else 0)
        self._poll.register(self._socket, interest)
        ready = dict(self._poll.poll(int(seconds * 1000)))
        if self._wake.reader in ready:
            self._wake.clear()
        self._flush()
        if not ready.get(self._socket.fileno(), 0) & ~select.POLLOUT:
            return []
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("the connection was closed")
        return list(self._reader.feed(data))

    def _flush(self) -> None:
        while self._out:
            try:
                sent = self._socket.send(self._out)
            except BlockingIOError:
                return
            del self._out[:sent]

    def finish(self, seconds: float) -> None:
        """Send what is queued, for at most `seconds`."""
        limit = time.monotonic() + seconds
        while self._out and time.monotonic() < limit:
            self.exchange(max(0.0, limit - time.monotonic()))


def _connect(sock: socket.socket, path: Path) -> None:
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        sock.connect(str(path))
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
