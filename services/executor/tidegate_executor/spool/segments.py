"""An append-only log in segment files that survives `kill -9` and power cuts at any instant.

A record is its length, its CRC-32 and its bytes. What was appended and synced is read back whole; a torn tail, which
only a crash in the middle of an unacknowledged append can leave, is cut off. Anything else unreadable is refused:
this module must never skip a record in the middle.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

SEGMENT_BYTES = 1024 * 1024  # a full segment is closed, and deleted once nothing in it is needed any more
RECORD_BYTES_MAX = 16 * 1024 * 1024

_HEADER = struct.Struct(">II")


class LogCorruptError(Exception):
    """A record that was complete once cannot be read: the disk is at fault, and going on would lose facts."""


class SegmentLog:
    """The log in one directory. One owner at a time (the agent's lock file sees to it); not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = -1
        self._size = 0
        self._current = 0
        self._closed: list[int] = []

    def open(self) -> list[tuple[int, bytes]]:
        """Read every record as (segment number, payload), cut a torn tail, and begin a new segment."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        numbers = sorted(int(path.stem) for path in self._directory.glob("*.log"))
        records: list[tuple[int, bytes]] = []
        for number in numbers:
            path = self._path(number)
            data = path.read_bytes()
            payloads, end = _read(data, path)
            records.extend((number, payload) for payload in payloads)
            if end < len(data):
                if number != numbers[-1]:
                    raise LogCorruptError(f"{path}: unreadable after byte {end}, and later segments exist")
                _truncate(path, end)
        self._closed = numbers
        self._begin((numbers[-1] if numbers else 0) + 1)
        return records

    @property
    def closed(self) -> tuple[int, ...]:
        """Return the numbers of the segments that take no more records, oldest first."""
        return tuple(self._closed)

    @property
    def is_full(self) -> bool:
        """Say whether the current segment should be followed by a new one."""
        return self._size >= SEGMENT_BYTES

    def append(self, payload: bytes) -> int:
        """Append one record and sync it; return its segment. On OSError nothing of it is left."""
        if not 0 < len(payload) <= RECORD_BYTES_MAX:
            raise ValueError(f"a record of {len(payload)} bytes refused: 1 to {RECORD_BYTES_MAX} are accepted")
        data = _HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        return self._current

    def rotate(self) -> None:
        """Close the current segment and begin the next one."""
        os.close(self._fd)
        self._closed.append(self._current)
        self._begin(self._current + 1)

    def drop(self, number: int) -> None:
        """Delete a closed segment."""
        self._closed.remove(number)
        self._path(number).unlink()

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012d}.log"

    def _begin(self, number: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path(number), flags, 0o600)
        self._size = 0
        self._current = number
        sync_directory(self._directory)


def _read(data: bytes, path: Path) -> tuple[list[bytes], int]:
    """Return the payloads of all whole records, and where a torn one begins (the end, if none is)."""
    payloads: list[bytes] = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, checksum = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if end > len(data):
            break
        payload = data[at + _HEADER.size : end]
        if length == 0 or zlib.crc32(payload) != checksum:
            if any(data[end:]):  # zeros are what a file that grew before its bytes arrived ends in
                raise LogCorruptError(f"{path}: the record at byte {at} does not match its checksum")
            break
        payloads.append(payload)
        at = end
    return payloads, at


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes, *, by: str = "") -> None:
    """Replace the file at once and durably: readers see the old bytes or the new ones, never a part.

    Where several processes may write it at the same time, `by` tells them apart.
    """
    temporary = path.with_name(f".{path.name}{by}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_directory(path.parent)
