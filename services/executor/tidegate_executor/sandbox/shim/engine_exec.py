"""Run one command in a container and be, to whoever started us, that command: its output, its end.

`python -I -S engine_exec.py DESCRIPTION`: a file with what to run, whose memory may hold secrets. It writes what came
of it beside: `started` when the command runs, `refused` with why it does not. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

HEADER = ">BxxxL"  # of each piece of a stream that is not a terminal: 1 is output, 2 is errors; then its length
HEADER_BYTES = 8
HEAD_BYTES_MAX = 65536
ANSWER_BYTES_MAX = 1024 * 1024
EXIT_LOST = 125
CALL_SECONDS_MAX = 60.0
POLL_SECONDS = 0.005


class EngineRefusedError(Exception):
    """The engine said no, with this."""


def main() -> int:
    with open(sys.argv[1], encoding="utf-8") as reading:
        order = json.load(reading)
    try:
        made = ask(order["engine"], "POST", f"/containers/{order['container']}/exec", order["exec"])
        return _run(order, made["Id"])
    except EngineRefusedError as error:
        _leave(order["refused"], str(error))
        return EXIT_LOST


def _run(order: dict[str, Any], made: str) -> int:
    with _connect(order["engine"]) as connected:
        _send(connected, "POST", f"/exec/{made}/start", {"Detach": False, "Tty": False}, upgrade=True)
        status, head, rest = _head(connected)
        if status >= 400:
            raise EngineRefusedError(_body(connected, head, rest).decode(errors="replace"))
        pid = _await_start(order["engine"], made)
        if not pid:
            raise EngineRefusedError(b"".join(_pieces(connected, rest)).decode(errors="replace").strip())
        _leave(order["started"], str(pid))
        for piece in _pieces(connected, rest):
            _write(piece)
    found = ask(order["engine"], "GET", f"/exec/{made}/json", None)
    return EXIT_LOST if found["ExitCode"] is None else int(found["ExitCode"])


def _await_start(engine: str, made: str) -> int:
    """The host pid of the command; 0 when it could not be executed."""
    deadline = time.monotonic() + CALL_SECONDS_MAX
    while time.monotonic() < deadline:
        found = ask(engine, "GET", f"/exec/{made}/json", None)
        if found["Pid"] or (not found["Running"] and found["ExitCode"] is not None):
            return int(found["Pid"])
        time.sleep(POLL_SECONDS)
    raise EngineRefusedError(f"the command was not executed within {CALL_SECONDS_MAX} s")


def _leave(path: str, text: str) -> None:
    with open(f"{path}.tmp", "w", encoding="utf-8") as writing:
        writing.write(text)
    os.rename(f"{path}.tmp", path)


def _pieces(connected: socket.socket, rest: bytes) -> Iterator[bytes]:
    """Both streams, in the order they come, until the engine closes."""
    buffer = rest
    connected.settimeout(None)
    while True:
        while len(buffer) >= HEADER_BYTES:
            _, size = struct.unpack(HEADER, buffer[:HEADER_BYTES])
            if len(buffer) < HEADER_BYTES + size:
                break
            yield buffer[HEADER_BYTES : HEADER_BYTES + size]
            buffer = buffer[HEADER_BYTES + size :]
        part = connected.recv(65536)
        if not part:
            return
        buffer += part


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _connect(path: str) -> socket.socket:
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connecting.settimeout(CALL_SECONDS_MAX)
    connecting.connect(path)
    return connecting


def _send(connected: socket.socket, method: str, path: str, body: Any, *, upgrade: bool = False) -> None:
    data = json.dumps(body).encode() if body is not None else b""
    more = "Connection: Upgrade\r\nUpgrade: tcp\r\n" if upgrade else "Connection: close\r\n"
    head = f"{method} /v1.41{path} HTTP/1.1\r\nHost: engine\r\n{more}Content-Type: application/json\r\n"
    connected.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)


def _head(connected: socket.socket) -> tuple[int, str, bytes]:
    """The status, the header, and what came behind it."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connected.recv(4096)
        if not part or len(data) > HEAD_BYTES_MAX:
            raise EngineRefusedError("the engine hung up")
        data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    text = head.decode(errors="replace")
    return int(text.split(" ", 2)[1]), text, rest


def _body(connected: socket.socket, head: str, rest: bytes) -> bytes:
    """What follows the header: as much as that says, else all until the engine closes."""
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    expected = int(fields.get("content-length", ANSWER_BYTES_MAX))
    data = rest
    while len(data) < expected:
        part = connected.recv(65536)
        if not part:
            break
        data += part
    return _unchunked(data) if fields.get("transfer-encoding") == "chunked" else data


def _unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size or b"0", 16)
        if not count:
            break
        found += data[:count]
        data = data[count + 2 :]
    return found


def ask(engine: str, method: str, path: str, body: Any) -> Any:
    """One request with a decoded answer. Raises EngineRefusedError."""
    with _connect(engine) as connected:
        _send(connected, method, path, body)
        status, head, rest = _head(connected)
        data = _body(connected, head, rest)
    found = json.loads(data) if data.strip() else None
    if status >= 400:
        raise EngineRefusedError(str((found or {}).get("message", f"status {status}")))
    return found


if __name__ == "__main__":
    sys.exit(main())
