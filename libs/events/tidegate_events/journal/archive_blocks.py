"""The bytes of an archive file: sealed blocks one after the other, and the error that names the damaged one.

A block is its tag, the sizes of its head and of its body, the head (JSON), the body, and a seal: the BLAKE3 hash of all
of it. No byte of a file lies outside a seal, but for the first ones (MAGIC) and the last ones (the trailer's offset and
END_MAGIC), which can only have one value. A size is checked against what is left of the file before anything is read.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import BinaryIO

import msgspec
from blake3 import blake3

from tidegate_events.journal.base import JournalError

MAGIC = b"tidegate-journal"
END_MAGIC = b"tg-ended"
FORMAT = 1

HEADER_TAG, SNAPSHOT_TAG, SEGMENT_TAG, TRAILER_TAG = b"HEAD", b"SNAP", b"SEGM", b"TAIL"
TAGS = frozenset({HEADER_TAG, SNAPSHOT_TAG, SEGMENT_TAG, TRAILER_TAG})
HEAD_BYTES_MAX = 1 << 20
SNAPSHOT_BYTES_MAX = 1 << 30
SEGMENT_BYTES_MAX = 4 << 20
SEGMENT_FRAMES_MAX = 10_000
SEAL_BYTES = 32
FRAME_LENGTHS = Struct("<HI")  # of subject and data, which follow; the sequence is the one after the last

_PREFIX = Struct("<4sIQ")
_END = Struct("<Q8s")
END_BYTES = _END.size


class Place(msgspec.Struct, frozen=True):
    """Where an archive is damaged: the block that begins at `offset_bytes`, which should go on with sequence `seq`.

    `segment` counts from 0; it is the number of segments where the damage lies in what follows the last one, and -1
    before the first one.
    """

    segment: int
    offset_bytes: int
    seq: int


class ArchiveDamagedError(JournalError):
    """The file is no archive that this version reads whole: cut off, edited, reordered, of another format."""

    def __init__(self, path: Path, place: Place, what: str) -> None:
        part = f"segment {place.segment}" if place.segment >= 0 else "before the first segment"
        super().__init__(f"{path} is damaged: {part}, at byte {place.offset_bytes}, sequence {place.seq}: {what}")
        self.place = place


class DamagedBlockError(Exception):
    """A block cannot be read; whoever reads knows the place and says it."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of the first block."""

    format: int
    first_seq: int
    previous_digest: str
    notes: dict[str, str]
    has_snapshot: bool


class SnapshotHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of a snapshot: its size when it is not compressed."""

    raw_bytes: int


class SegmentHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of a segment: which one it is, what it holds, and the chain's digests before and after it."""

    index: int
    first_seq: int
    last_seq: int
    frames: int
    raw_bytes: int
    previous: str
    digest: str


class Totals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The head of the trailer, whose body is the index of the segments."""

    first_seq: int
    last_seq: int
    frames: int
    digest: str
    header_seal: str
    snapshot_seal: str


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A segment in the index: where it begins, its last sequence, and the chain's digest after it."""

    offset: int
    last_seq: int
    digest: str


class Block(msgspec.Struct, frozen=True):
    """One block as read; `end` is the offset of the byte after it."""

    tag: bytes
    head: bytes
    body: bytes
    seal: str
    end: int


def write_block(file: BinaryIO, tag: bytes, head: msgspec.Struct, body: bytes = b"") -> str:
    """Write a block and return its seal. Raises ValueError for a head that readers would refuse."""
    encoded = msgspec.json.encode(head)
    if len(encoded) > HEAD_BYTES_MAX:
        raise ValueError(f"a head of {len(encoded)} bytes refused: at most {HEAD_BYTES_MAX}; shorten the notes")
    begins = _PREFIX.pack(tag, len(encoded), len(body)) + encoded
    seal = blake3(begins)
    seal.update(body)
    file.write(begins)
    file.write(body)
    file.write(seal.digest())
    return seal.hexdigest()


def read_block(file: BinaryIO, size_bytes: int) -> Block:
    """Return the block at the file's position. Raises DamagedBlockError; never reads beyond `size_bytes`."""
    offset = file.tell()
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise DamagedBlockError(f"the file ends at byte {size_bytes}, before its trailer: it was cut off")
    tag, head_bytes, body_bytes = _PREFIX.unpack(prefix)
    if tag not in TAGS or head_bytes > HEAD_BYTES_MAX:
        raise DamagedBlockError("no block begins here: bytes were changed, added or taken out")
    end = offset + _PREFIX.size + head_bytes + body_bytes + SEAL_BYTES
    if end > size_bytes:
        raise DamagedBlockError(f"the block should end at byte {end}, the file does at {size_bytes}: it was cut off")
    content = file.read(head_bytes + body_bytes)
    seal = blake3(prefix)
    seal.update(content)
    if seal.digest() != file.read(SEAL_BYTES):
        raise DamagedBlockError("the block does not match its seal: bytes of it were changed")
    return Block(tag, content[:head_bytes], content[head_bytes:], seal.hexdigest(), end)


def write_end(file: BinaryIO, trailer_offset: int) -> None:
    """Write the last bytes of a file: where its trailer begins, so that a reader can start there."""
    file.write(_END.pack(trailer_offset, END_MAGIC))


def read_end(file: BinaryIO, size_bytes: int) -> int:
    """Return where the trailer begins. Raises DamagedBlockError when the file does not end as an archive does."""
    file.seek(max(0, size_bytes - END_BYTES), os.SEEK_SET)
    last = file.read(END_BYTES)
    offset, magic = _END.unpack(last) if len(last) == END_BYTES else (0, b"")
    if magic != END_MAGIC or offset > size_bytes - END_BYTES:
        raise DamagedBlockError("the file does not end as an archive does: it was cut off, or something was added")
    return int(offset)
