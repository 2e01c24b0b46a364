"""Read a replica's output back from its bounded files (written by `shim/output.py`).

The shim may drop a file between our look at the directory and our look into the file: whoever reads gets what is left.
"""

from __future__ import annotations

import os

import msgspec

from tidegate_executor.sandbox.base import LogChunk
from tidegate_executor.sandbox.shim.output import existing_segments, segment_name


class KeptPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a log from `offset` on: behind `wanted` where that was dropped. `size` is the whole stream's."""

    wanted: int
    offset: int
    size: int
    data: bytes


def read_log(log_dir: str, component: str, replica: int, offset: int, bytes_max: int) -> LogChunk:
    """Up to `bytes_max` bytes from `offset` on (negative: from the end), with a line where bytes were dropped."""
    name = f"{component}.{replica}"
    try:
        starts = sorted(existing_segments(log_dir, name))
    except FileNotFoundError:
        starts = []
    if not starts:
        return LogChunk(offset=max(offset, 0), next_offset=max(offset, 0), data=b"")
    sizes = {start: _size(os.path.join(log_dir, segment_name(name, start))) for start in starts}
    end = starts[-1] + sizes[starts[-1]]
    first = offset = max(offset if offset >= 0 else end + offset, 0)
    parts: list[bytes] = []
    room = bytes_max
    for start in starts:
        if start + sizes[start] <= offset or room <= 0:
            continue
        if offset < start:
            parts.append(f"\n[tidegate: {start - offset} bytes of output were not kept]\n".encode())
            offset = start
        data = _read(os.path.join(log_dir, segment_name(name, start)), offset - start, room)
        parts.append(data)
        offset += len(data)
        room -= len(data)
    return LogChunk(offset=first, next_offset=max(offset, first), data=b"".join(parts))


def read_kept(log_dir: str, component: str, replica: int, offset: int, bytes_max: int) -> KeptPiece:
    """Return what is kept from `offset` on (negative: from the end), up to the next gap: only the job's bytes."""
    name = f"{component}.{replica}"
    try:
        starts = sorted(existing_segments(log_dir, name))
    except FileNotFoundError:
        starts = []
    sizes = {start: _size(os.path.join(log_dir, segment_name(name, start))) for start in starts}
    size = max((start + length for start, length in sizes.items()), default=0)
    wanted = position = max(offset if offset >= 0 else size + offset, 0)
    parts: list[bytes] = []
    room = bytes_max
    for start in starts:
        if start + sizes[start] <= position or room <= 0:
            continue
        if start > position and parts:
            break
        position = max(position, start)
        data = _read(os.path.join(log_dir, segment_name(name, start)), position - start, room)
        parts += [data] if data else []
        position += len(data)
        room -= len(data)
    data = b"".join(parts)
    return KeptPiece(wanted=wanted, offset=position - len(data), size=size, data=data)


def _size(path: str) -> int:
    """0 for a file that the shim dropped meanwhile."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _read(path: str, position: int, bytes_max: int) -> bytes:
    try:
        with open(path, "rb") as reading:
            reading.seek(position)
            return reading.read(bytes_max)
    except FileNotFoundError:
        return b""
