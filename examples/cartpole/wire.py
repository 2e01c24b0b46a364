"""The messages between the learner and one simulator: a fixed header, then raw little-endian arrays.

Every request gets exactly one reply of the same kind, or `Kind.ERROR` with the reason as text.
"""

import enum
import os
import socket
import struct
import tempfile
from pathlib import Path

VERSION = 1
HEADER = struct.Struct("<BBHI")  # version, kind, reserved (0), payload bytes
RESET = struct.Struct("<II")  # environments, seed stream
STATE_HEADER = struct.Struct("<II")  # layout version, environments
PAYLOAD_BYTES_MAX = 1 << 20
ENVIRONMENTS_MAX = 4096
SOCKET_PATH_BYTES_MAX = 107  # the kernel's limit on the name of a unix socket

OBSERVATION_SIZE = 4
TERMINATED = 1
TRUNCATED = 2


class Kind(enum.IntEnum):
    """What a message asks for; its reply carries the same kind."""

    RESET = 1
    STEP = 2
    GET_STATE = 3
    SET_STATE = 4
    ERROR = 127


class WireError(Exception):
    """The byte stream cannot be understood any further; the connection has to be closed."""


class Closed(WireError):
    """The other side is gone."""


def send(connection: socket.socket, kind: Kind, payload: bytes = b"") -> None:
    """Send one message."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise WireError(f"message of {len(payload)} bytes refused: at most {PAYLOAD_BYTES_MAX} are accepted")
    try:
        connection.sendall(HEADER.pack(VERSION, kind, 0, len(payload)) + payload)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed(f"the other side is gone: {error}") from error


def receive(connection: socket.socket) -> tuple[Kind, bytes]:
    """Receive one message; raises `Closed` at the end of the stream and `WireError` on a malformed header."""
    version, kind, reserved, payload_bytes = HEADER.unpack(_exactly(connection, HEADER.size))
    if version != VERSION or reserved != 0:
        raise WireError(f"protocol version {version} (reserved {reserved}) refused: only {VERSION} (0) is spoken")
    if payload_bytes > PAYLOAD_BYTES_MAX:
        raise WireError(f"message of {payload_bytes} bytes refused: at most {PAYLOAD_BYTES_MAX} are accepted")
    try:
        known = Kind(kind)
    except ValueError:
        raise WireError(f"message kind {kind} refused: accepted are {[int(k) for k in Kind]}") from None
    return known, _exactly(connection, payload_bytes)


def _exactly(connection: socket.socket, size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        try:
            chunk = connection.recv(size - len(chunks))
        except ConnectionResetError as error:
            raise Closed(f"the other side is gone: {error}") from error
        if not chunk:
            raise Closed(f"the other side closed the connection after {len(chunks)} of {size} bytes")
        chunks += chunk
    return bytes(chunks)


def socket_path(replica: int) -> Path:
    """Where simulator `replica` of this attempt listens; learner and simulator derive the same path.

    The job and attempt are in the name because at isolation level `unisolated` jobs may share one temporary folder.
    """
    job = os.environ.get("TIDEGATE_JOB_ID", "laptop")
    attempt = os.environ.get("TIDEGATE_ATTEMPT", "1")
    rank = os.environ.get("TIDEGATE_RANK", "0")
    base = os.environ.get("CARTPOLE_RUNTIME_DIR") or tempfile.gettempdir()
    path = Path(base) / f"cartpole-{job}-{attempt}-{rank}" / f"sim-{replica}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        path = Path(os.path.relpath(path))  # both sides have the same working directory, which is usually near
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise WireError(
            f"socket path {path} refused: longer than {SOCKET_PATH_BYTES_MAX} bytes; "
            "set CARTPOLE_RUNTIME_DIR to a folder with a shorter name"
        )
    return path
