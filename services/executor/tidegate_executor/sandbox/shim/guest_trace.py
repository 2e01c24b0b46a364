"""What a guest's kernel refuses, as gVisor tells it: one message per call of a chosen few that ended there.

Its runtime monitoring ("remote" sink): a listening socket of packets; who connects says its version, and is answered
with it; then each packet is a header (its size, the kind, how many were dropped; little endian) and a protobuf message.
Only calls that no job needs are asked for, so what a job does otherwise costs nothing. A guest never waits for us.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
from collections.abc import Iterator

from tidegate_executor.sandbox import seccomp
from tidegate_executor.sandbox.shim.refusals import AT_ONCE_MAX, Refusal, Tally

PACKET_BYTES_MAX = 65536
HEADER = "<HHI"
SYSCALL = 6  # the kind of message for a call that is known by its number: pkg/sentry/seccheck/points/common.proto
FIELD_EXIT, FIELD_NUMBER, FIELD_ERRNO = 2, 4, 2
VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5  # wire types
REFUSED = (errno.EPERM, errno.EACCES, errno.ENOSYS)
HANDSHAKE_SECONDS_MAX = 5.0
REST_ROUNDS_MAX = 64
LOST = "(not told)"  # in place of a name: calls of any kind that there was no room to tell of


def session(machine: str, endpoint: str) -> bytes:
    """What a guest is to be booted with, so that it tells over the socket at `endpoint`."""
    denied = seccomp.ARCHITECTURES[machine].denied
    points = [{"name": f"syscall/sysno/{number}/exit"} for name, number in denied.items() if name not in seccomp.QUIET]
    sink = {"name": "remote", "config": {"endpoint": endpoint, "retries": 0}}
    named = {"name": "Default", "ignore_missing": True, "points": points, "sinks": [sink]}
    return json.dumps({"trace_session": named}).encode()


class Traces:
    """Where guests connect. `place` is an open directory."""

    def __init__(self, place: int, name: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"/proc/self/fd/{place}/{name}")
        self._listener.listen(4)
        self.newest: socket.socket | None = None

    def fileno(self) -> int:
        return self._listener.fileno()

    def greet(self) -> None:
        """Somebody connects: be told by it from now on."""
        connected, _ = self._listener.accept()
        try:
            connected.settimeout(HANDSHAKE_SECONDS_MAX)
            connected.sendall(connected.recv(PACKET_BYTES_MAX))
            connected.setblocking(False)
        except OSError:
            connected.close()  # the guest does not boot then, and the runtime says why
            return
        self.close_newest()
        self.newest = connected

    def take(self) -> socket.socket | None:
        """Return the connection of the guest that booted last; it is the caller's."""
        newest, self.newest = self.newest, None
        return newest

    def close_newest(self) -> None:
        if self.newest is not None:
            self.newest.close()
            self.newest = None

    def close(self) -> None:
        self.close_newest()
        self._listener.close()


class GuestRefusals:
    """Those of one guest; see `Refusals`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.listener = connection.fileno()
        self._machine = os.uname().machine
        self._asked_for = set(seccomp.ARCHITECTURES[self._machine].denied.values())
        self.tally = Tally()
        self._lost = 0

    def pause_seconds(self, now: float) -> float:
        return 0.0  # nobody waits: what does not get through is dropped

    def answer(self, now: float) -> list[Refusal]:
        """Hear what there is; return what is to be told of it."""
        found = []
        for _ in range(AT_ONCE_MAX):
            packet = self._receive()
            if not packet:
                break
            if len(packet) < struct.calcsize(HEADER):
                continue  # a guest whose kernel is taken over may send anything
            self._lost = max(self._lost, struct.unpack_from(HEADER, packet)[2])
            number, code = _call_of(packet)
            if code not in REFUSED or number not in self._asked_for:
                continue
            refusal = self.tally.count(seccomp.name_of(self._machine, number, (0,)), now, (0, ""))
            if refusal is not None:
                found.append(refusal)
        return found

    def rest(self) -> list[Refusal]:
        found: list[Refusal] = []
        for _ in range(REST_ROUNDS_MAX):
            before = self.tally.total
            found += self.answer(0.0)
            if self.tally.total == before:
                break
        lost = [Refusal(LOST, self._lost, 0, "")] if self._lost else []
        return [*found, *self.tally.rest(), *lost]

    def close(self) -> None:
        self._connection.close()

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(PACKET_BYTES_MAX)
        except (BlockingIOError, ConnectionResetError):
            return b""


def _call_of(packet: bytes) -> tuple[int, int]:
    """The number of the call that a packet is about, and what it failed with; 0 for what it is not."""
    size, kind, _ = struct.unpack_from(HEADER, packet)
    number = code = 0
    if kind == SYSCALL:
        for field, value in _fields(packet[size:]):
            if field == FIELD_NUMBER and isinstance(value, int):
                number = value
            elif field == FIELD_EXIT and isinstance(value, bytes):
                code = next((each for name, each in _fields(value) if name == FIELD_ERRNO and isinstance(each, int)), 0)
    return number, code


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = {EIGHT_BYTES: 8, FOUR_BYTES: 4}.get(kind)
        if size is None and kind == LENGTH:
            size, at = _varint(message, at)
        if size is None:
            return
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at


def await_end(pid: int, traces: Traces | None, seconds_max: float) -> bool:
    """Wait in bounds for a child, greeting guests meanwhile; say whether it ended."""
    watching = os.pidfd_open(pid)
    waited = [watching, *([traces.fileno()] if traces is not None else [])]
    try:
        while True:
            ready, _, _ = select.select(waited, [], [], seconds_max)
            if watching in ready or not ready:
                return bool(ready)
            assert traces is not None, "it is all that else is waited for"
            traces.greet()
    finally:
        os.close(watching)
