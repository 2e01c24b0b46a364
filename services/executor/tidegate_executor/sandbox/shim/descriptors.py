"""Descriptors that come over a socket, closed on exec from the first moment: Python's own `recv_fds` leaves them open.

What is executed after a process took one would have it: a job's command could have the listener of a filter, and say
what it allows.
"""

from __future__ import annotations

import array
import socket

INT_BYTES = array.array("i").itemsize


def receive(connection: socket.socket, bytes_max: int, count: int) -> tuple[bytes, list[int]]:
    """Return one message and the descriptors that came with it, `count` of them at most."""
    room = socket.CMSG_LEN(count * INT_BYTES)
    message, ancillary, _, _ = connection.recvmsg(bytes_max, room, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % INT_BYTES])
    return message, list(found)
