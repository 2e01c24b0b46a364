"""Reading an archive file: every block is checked against what came before it, before anything of it is given out."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from struct import error as StructError
from typing import BinaryIO, NoReturn, TypeVar

import msgspec
import zstandard

from tidegate_events.journal import archive_blocks as blocks
from tidegate_events.journal.archive_blocks import ArchiveDamagedError, Block, DamagedBlockError, Place
from tidegate_events.journal.base import Raw
from tidegate_events.journal.chain import ChainDigest

_T = TypeVar("_T")


class _Format(msgspec.Struct, frozen=True):
    format: int


class ArchiveReader:
    """One open file. Its header was read and checked when this exists."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size_bytes = os.fstat(file.fileno()).st_size
        self._place = Place(-1, 0, 0)
        try:
            self.header, self._header_seal = self._read_header()
            self._chain = ChainDigest(self.header.previous_digest)
        except (DamagedBlockError, ValueError) as error:
            self._damaged(error)
        self._after_header = file.tell()
        self._snapshot_seal: str | None = None
        self._entries: list[blocks.Entry] = []

    def snapshot(self) -> bytes | None:
        """Return the snapshot, None where there is none; afterwards the file stands at the first segment."""
        self._file.seek(self._after_header)
        self._place = Place(-1, self._after_header, self.header.first_seq)
        self._snapshot_seal = ""
        if not self.header.has_snapshot:
            return None
        try:
            block = self._block(blocks.SNAPSHOT_TAG)
            self._snapshot_seal = block.seal
            raw_bytes = _decode(block.head, blocks.SnapshotHead).raw_bytes
            return _unpack(block.body, raw_bytes, blocks.SNAPSHOT_BYTES_MAX)
        except DamagedBlockError as error:
            self._damaged(error)

    def totals(self) -> blocks.Totals:
        """Return what the trailer says. Where there is none, the file is read to where it is damaged."""
        try:
            offset = blocks.read_end(self._file, self._size_bytes)
            self._file.seek(offset)
            block = self._block(blocks.TRAILER_TAG)
            totals = _decode(block.head, blocks.Totals)
            self._entries = _decode(block.body, list[blocks.Entry])
            self._check_index(totals, offset)
        except DamagedBlockError as error:
            self._entries = []
            self.snapshot()
            for _ in self.segments():
                pass
            self._damaged(error)
        return totals

    def seek(self, after: int) -> None:
        """Stand at the segment that holds the sequence after `after`, by the index that `totals` has read."""
        number = bisect_right(self._entries, after, key=lambda entry: entry.last_seq)
        known = self._entries[:number]
        if number < len(self._entries):
            offset = self._entries[number].offset
        else:
            offset = blocks.read_end(self._file, self._size_bytes)
        self._entries = known
        self._chain = ChainDigest(known[-1].digest if known else self.header.previous_digest)
        seq = known[-1].last_seq + 1 if known else self.header.first_seq
        self._place = Place(number, offset, seq)
        self._file.seek(offset)

    def segments(self) -> Iterator[list[Raw]]:
        """Yield the frames of each segment from where the file stands, checked; at the end check the trailer."""
        try:
            self._place = Place(len(self._entries), self._file.tell(), self._place.seq)
            while (block := blocks.read_block(self._file, self._size_bytes)).tag == blocks.SEGMENT_TAG:
                head = _decode(block.head, blocks.SegmentHead)
                frames = self._frames(head, block.body)
                entry = blocks.Entry(self._place.offset_bytes, head.last_seq, head.digest)
                self._entries.append(entry)
                yield frames
                self._place = Place(len(self._entries), block.end, head.last_seq + 1)
            self._check_trailer(block)
        except DamagedBlockError as error:
            self._damaged(error)

    def _read_header(self) -> tuple[blocks.Header, str]:
        if self._file.read(len(blocks.MAGIC)) != blocks.MAGIC:
            raise DamagedBlockError("it does not begin as an archive of a journal does")
        self._place = Place(-1, len(blocks.MAGIC), 0)
        block = self._block(blocks.HEADER_TAG)
        number = _decode(block.head, _Format).format
        if number != blocks.FORMAT:
            raise DamagedBlockError(f"it is of format {number}, this version reads format {blocks.FORMAT}")
        header = _decode(block.head, blocks.Header)
        if header.first_seq < 1:
            raise DamagedBlockError(f"it begins with sequence {header.first_seq}; the first one there is is 1")
        self._place = Place(-1, block.end, header.first_seq)
        return header, block.seal

    def _block(self, tag: bytes) -> Block:
        block = blocks.read_block(self._file, self._size_bytes)
        if block.tag != tag:
            raise DamagedBlockError(f"a block {block.tag.decode()} lies where {tag.decode()} should")
        return block

    def _frames(self, head: blocks.SegmentHead, body: bytes) -> list[Raw]:
        expected = (self._place.segment, self._place.seq, self._chain.text())
        if (head.index, head.first_seq, head.previous) != expected:
            raise DamagedBlockError(
                f"segment {head.index} from sequence {head.first_seq} does not follow what lies before it:"
                " segments were reordered, taken out or put in"
            )
        if head.frames != head.last_seq - head.first_seq + 1 or not 0 < head.frames <= blocks.SEGMENT_FRAMES_MAX:
            raise DamagedBlockError(f"it says that it holds {head.frames} frames up to sequence {head.last_seq}")
        frames = _split(_unpack(body, head.raw_bytes, blocks.SEGMENT_BYTES_MAX), head)
        for raw in frames:
            self._chain.add(raw)
        if self._chain.text() != head.digest:
            raise DamagedBlockError("its frames do not give its digest: they were edited")
        return frames

    def _check_index(self, totals: blocks.Totals, end: int) -> None:
        """Refuse an index that leads anywhere but forward; what lies there is checked when it is read."""
        offset, seq = self._after_header, self.header.first_seq
        for entry in self._entries:
            if not offset <= entry.offset < end or entry.last_seq < seq:
                raise DamagedBlockError("the index in the trailer contradicts itself")
            offset, seq = entry.offset + 1, entry.last_seq + 1
        self._check_totals(totals, seq - 1, self._entries[-1].digest if self._entries else self._chain.text())

    def _check_totals(self, totals: blocks.Totals, last_seq: int, digest: str) -> None:
        first_seq = self.header.first_seq
        expected = (first_seq, last_seq, last_seq - first_seq + 1, digest, self._header_seal)
        if (totals.first_seq, totals.last_seq, totals.frames, totals.digest, totals.header_seal) != expected:
            raise DamagedBlockError("the trailer tells of another history: it, or the header, is of another file")
        if self._snapshot_seal is not None and totals.snapshot_seal != self._snapshot_seal:
            raise DamagedBlockError("the trailer tells of another snapshot: it is of another file")

    def _check_trailer(self, block: Block) -> None:
        if block.tag != blocks.TRAILER_TAG:
            raise DamagedBlockError(f"a block {block.tag.decode()} lies where a segment or the trailer should")
        self._check_totals(_decode(block.head, blocks.Totals), self._place.seq - 1, self._chain.text())
        if _decode(block.body, list[blocks.Entry]) != self._entries:
            raise DamagedBlockError("the index in the trailer names other segments than there are")
        if block.end + blocks.END_BYTES != self._size_bytes:
            raise DamagedBlockError("the file does not end after its trailer: it was cut off, or something was added")
        if blocks.read_end(self._file, self._size_bytes) != self._place.offset_bytes:
            raise DamagedBlockError("the file ends with the place of another trailer")

    def _damaged(self, error: Exception) -> NoReturn:
        raise ArchiveDamagedError(self._path, self._place, str(error)) from error


def _decode(data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedBlockError(f"its head or its index cannot be read: {error}") from error


def _unpack(body: bytes, raw_bytes: int, bytes_max: int) -> bytes:
    """Decompress `body`, which must say itself that it becomes `raw_bytes`: nothing larger is ever made."""
    if not 0 <= raw_bytes <= bytes_max:
        raise DamagedBlockError(f"it says that it becomes {raw_bytes} bytes; at most {bytes_max} are taken")
    try:
        packed_says = zstandard.frame_content_size(body)
        if packed_says != raw_bytes:
            raise DamagedBlockError(f"it says that it becomes {raw_bytes} bytes, and inside {packed_says}")
        return zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedBlockError(f"it cannot be decompressed: {error}") from error


def _split(raw: bytes, head: blocks.SegmentHead) -> list[Raw]:
    frames: list[Raw] = []
    at = 0
    lengths = blocks.FRAME_LENGTHS
    try:
        for seq in range(head.first_seq, head.last_seq + 1):
            subject_bytes, data_bytes = lengths.unpack_from(raw, at)
            data_at = at + lengths.size + subject_bytes
            subject = raw[at + lengths.size : data_at].decode()
            at = data_at + data_bytes
            frames.append(Raw(seq, subject, raw[data_at:at]))
    except (ValueError, StructError) as error:
        raise DamagedBlockError(f"its frames cannot be told apart: {error}") from error
    if at != len(raw):
        raise DamagedBlockError(f"its frames end at byte {at} of {len(raw)}")
    return frames
