"""One client of the control socket: JSON lines in both directions, bounded, never blocking the shim."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

REQUEST_BYTES_MAX = 1024 * 1024
UNSENT_BYTES_MAX = 8 * 1024 * 1024
RECEIVE_BYTES = 65536


class Connection:
    """Buffers of one client. A client that breaks a bound is cut off."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.socket.setblocking(False)
        self.following = False
        self._received = b""
        self._unsent = b""

    @property
    def pending(self) -> bool:
        return bool(self._unsent)

    def peer_uid(self) -> int:
        """The client's uid, from the kernel (SO_PEERCRED: pid, uid, gid)."""
        packed = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", packed)[1])

    def receive(self) -> list[dict[str, Any]] | None:
        """Complete requests that arrived; None when the client is gone or misbehaves."""
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > REQUEST_BYTES_MAX:
            return None
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            return None

    def send(self, message: dict[str, Any]) -> bool:
        """Queue a message and send what the socket takes; False when the client must be cut off."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        return self.flush()

    def flush(self) -> bool:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return len(self._unsent) <= UNSENT_BYTES_MAX
        except OSError:
            return False
        return True
