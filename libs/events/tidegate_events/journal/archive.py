"""Archives: a stretch of the journal as one portable file that proves itself.

A file is a header (format, first sequence, the digest of what came before, notes), perhaps a snapshot of the state
before its first frame, segments of frames (each compressed by itself, and so bounded), and a trailer with the totals
and an index. The seals of its blocks (`archive_blocks`) find what was changed, and where. The chain of digests
(`chain`) goes through all frames: whoever has its last one from elsewhere (the journal holds it) finds also what was
changed by somebody who made new seals.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec
import zstandard

from tidegate_events.journal import archive_blocks as blocks
from tidegate_events.journal.archive_blocks import ArchiveDamagedError, Place
from tidegate_events.journal.archive_reader import ArchiveReader
from tidegate_events.journal.base import JournalError, Raw
from tidegate_events.journal.chain import ChainDigest

__all__ = [
    "ArchiveDamagedError", "ArchiveDirectory", "ArchiveInfo", "ArchiveWriter", "Archived", "ChainDigest", "Place",
    "glance", "inspect", "read_archive", "read_segments", "read_snapshot",
]  # fmt: skip

COMPRESSION_LEVEL = 3


class ArchiveInfo(msgspec.Struct, frozen=True):
    """What a file holds. An empty one has `last_seq == first_seq - 1`; `digest` is the chain's after the last frame."""

    first_seq: int
    last_seq: int
    frames: int
    digest: str
    previous_digest: str
    notes: dict[str, str]
    has_snapshot: bool


def inspect(path: Path) -> ArchiveInfo:
    """Read the whole file and return what it holds. Raises ArchiveDamagedError with the place of the first damage."""
    with path.open("rb") as file:
        reader = ArchiveReader(path, file)
        reader.snapshot()
        for _ in reader.segments():
            pass
        return _info(reader)


def glance(path: Path) -> ArchiveInfo:
    """Return what the file says that it holds, from its header and trailer alone: quick, and no proof of the rest."""
    with path.open("rb") as file:
        return _info(ArchiveReader(path, file))


def read_segments(path: Path, after: int = 0, until: int | None = None) -> Iterator[list[Raw]]:
    """Yield the frames with `after < seq <= until`, some thousands at a time, each segment proved before it comes.

    Segments before `after` are skipped by the index. At the end the trailer is compared with what was read.
    """
    with path.open("rb") as file:
        reader = ArchiveReader(path, file)
        reader.totals()
        reader.seek(after)
        for frames in reader.segments():
            wanted = [raw for raw in frames if raw.seq > after and (until is None or raw.seq <= until)]
            if wanted:
                yield wanted
            if until is not None and frames[-1].seq >= until:
                return


def read_archive(path: Path, after: int = 0, until: int | None = None) -> Iterator[Raw]:
    """Yield the frames with `after < seq <= until` in order, as `read_segments` proves them."""
    for frames in read_segments(path, after, until):
        yield from frames


def read_snapshot(path: Path) -> bytes | None:
    """Return the snapshot of the state before the file's first frame, None where it has none."""
    with path.open("rb") as file:
        return ArchiveReader(path, file).snapshot()


def _info(reader: ArchiveReader) -> ArchiveInfo:
    totals, header = reader.totals(), reader.header
    return ArchiveInfo(
        first_seq=header.first_seq,
        last_seq=totals.last_seq,
        frames=totals.frames,
        digest=totals.digest,
        previous_digest=header.previous_digest,
        notes=header.notes,
        has_snapshot=header.has_snapshot,
    )


class ArchiveWriter:
    """Writes one file, under another name until it is whole and on the disk; only then `close` gives it its name.

    As a context manager it closes at the end, and leaves nothing behind when it was left by an exception.
    """

    def __init__(
        self,
        path: Path,
        *,
        first_seq: int,
        previous_digest: str = "",
        notes: dict[str, str] | None = None,
        snapshot: bytes | None = None,
    ) -> None:
        """Begin the file. Raises ValueError for what no reader takes, JournalError while somebody else writes it."""
        if first_seq < 1:
            raise ValueError(f"an archive from sequence {first_seq} refused: the first one there is is 1")
        if snapshot is not None and len(snapshot) > blocks.SNAPSHOT_BYTES_MAX:
            raise ValueError(f"snapshot of {len(snapshot)} bytes refused: at most {blocks.SNAPSHOT_BYTES_MAX}")
        self._path = path
        self._chain = ChainDigest(previous_digest)
        self._header = blocks.Header(blocks.FORMAT, first_seq, previous_digest, dict(notes or {}), snapshot is not None)
        self._next_seq = first_seq
        self._pending: list[bytes] = []
        self._pending_bytes = self._pending_frames = 0
        self._before_pending = self._chain.text()
        self._entries: list[blocks.Entry] = []
        self._closed = False
        self._part = _part_of(path)
        self._file = _open_alone(self._part)
        try:
            self._file.write(blocks.MAGIC)
            self._header_seal = blocks.write_block(self._file, blocks.HEADER_TAG, self._header)
            self._snapshot_seal = "" if snapshot is None else self._write_snapshot(snapshot)
        except BaseException:
            self.discard()
            raise

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close, or discard after an exception."""
        if kind is None:
            self.close()
        else:
            self.discard()

    def add(self, raw: Raw) -> None:
        """Add a frame. Raises ValueError when it is not the next one, or larger than a segment may be."""
        if raw.seq != self._next_seq:
            raise ValueError(f"frame {raw.seq} refused: the archive goes on with {self._next_seq}")
        subject = raw.subject.encode()
        size_bytes = blocks.FRAME_LENGTHS.size + len(subject) + len(raw.data)
        if size_bytes > blocks.SEGMENT_BYTES_MAX or len(subject) > 0xFFFF:
            raise ValueError(f"frame {raw.seq} of {size_bytes} bytes refused: at most {blocks.SEGMENT_BYTES_MAX}")
        full = self._pending_frames == blocks.SEGMENT_FRAMES_MAX
        if full or self._pending_bytes + size_bytes > blocks.SEGMENT_BYTES_MAX:
            self._write_segment()
        self._pending += (blocks.FRAME_LENGTHS.pack(len(subject), len(raw.data)), subject, raw.data)
        self._pending_bytes += size_bytes
        self._pending_frames += 1
        self._chain.add(raw)
        self._next_seq += 1

    def close(self) -> ArchiveInfo:
        """Write the rest and the trailer, wait for the disk, give the file its name; return what it holds."""
        if not self._closed:
            try:
                self._finish()
            except BaseException:
                self.discard()
                raise
        return glance(self._path)

    def discard(self) -> None:
        """Give up: remove what was written. Changes nothing after `close`."""
        if not self._closed:
            self._closed = True
            self._part.unlink(missing_ok=True)
            self._file.close()

    def _finish(self) -> None:
        if self._pending_frames:
            self._write_segment()
        first_seq, last_seq = self._header.first_seq, self._next_seq - 1
        totals = blocks.Totals(
            first_seq=first_seq,
            last_seq=last_seq,
            frames=last_seq - first_seq + 1,
            digest=self._chain.text(),
            header_seal=self._header_seal,
            snapshot_seal=self._snapshot_seal,
        )
        offset = self._file.tell()
        blocks.write_block(self._file, blocks.TRAILER_TAG, totals, msgspec.json.encode(self._entries))
        blocks.write_end(self._file, offset)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._part.replace(self._path)
        self._closed = True
        self._file.close()
        _sync_directory(self._path.parent)

    def _write_snapshot(self, snapshot: bytes) -> str:
        head = blocks.SnapshotHead(len(snapshot))
        return blocks.write_block(self._file, blocks.SNAPSHOT_TAG, head, _pack(snapshot))

    def _write_segment(self) -> None:
        raw = b"".join(self._pending)
        last_seq = self._next_seq - 1
        head = blocks.SegmentHead(
            index=len(self._entries),
            first_seq=last_seq - self._pending_frames + 1,
            last_seq=last_seq,
            frames=self._pending_frames,
            raw_bytes=len(raw),
            previous=self._before_pending,
            digest=self._chain.text(),
        )
        self._entries.append(blocks.Entry(self._file.tell(), last_seq, head.digest))
        blocks.write_block(self._file, blocks.SEGMENT_TAG, head, _pack(raw))
        self._before_pending = head.digest
        self._pending.clear()
        self._pending_bytes = self._pending_frames = 0


def _pack(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(raw)


def _part_of(path: Path) -> Path:
    """Return the name that a file has until it is whole."""
    return path.with_name(f".{path.name}.part")


def _open_alone(part: Path) -> BinaryIO:
    """Open a file under its temporary name, emptied: what a killed writer left there is taken over."""
    file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who had it may have given it its name since it was opened here: then it must not be emptied.
        alone = part.exists() and part.stat().st_ino == os.fstat(file.fileno()).st_ino
    except BlockingIOError:
        alone = False
    if not alone:
        file.close()
        raise JournalError(f"{part} is being written by another process: wait until that has ended")
    file.truncate()
    return file


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(directory: Path) -> None:
    """Make a directory that is still there after a power cut: what lies in it may be the only copy soon."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        _sync_directory(each.parent)


class Archived(msgspec.Struct, frozen=True):
    """A generation of the journal in the archive."""

    generation: int
    path: Path
    info: ArchiveInfo


class ArchiveDirectory:
    """The archived generations of one journal: files `journal-<generation>.tgj` in a directory."""

    _NAME = re.compile(r"journal-([1-9][0-9]*)\.tgj\Z")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[int, Archived] = {}  # a file never changes once it has its name

    def path(self, generation: int) -> Path:
        """Return where the file of a generation is, or will be."""
        return self._directory / f"journal-{generation}.tgj"

    def begin(
        self,
        generation: int,
        *,
        first_seq: int,
        previous_digest: str = "",
        notes: dict[str, str] | None = None,
        snapshot: bytes | None = None,
    ) -> ArchiveWriter:
        """Return the writer of a generation's file, which appears when it is closed."""
        _make_directory(self._directory)
        return ArchiveWriter(
            self.path(generation),
            first_seq=first_seq,
            previous_digest=previous_digest,
            notes=notes,
            snapshot=snapshot,
        )

    def put(self, generation: int, file: Path) -> ArchiveInfo:
        """Take a proved copy of `file` as the archive of `generation`; one that is there already must be the same."""
        info = inspect(file)
        target = self.path(generation)
        if target.exists():
            if (there := inspect(target)).digest != info.digest:
                raise JournalError(f"{target} holds another history: it ends with {there.digest}, not {info.digest}")
            return there
        _make_directory(self._directory)
        part = _part_of(target)
        with _open_alone(part) as copy, file.open("rb") as source:
            try:
                shutil.copyfileobj(source, copy)
                copy.flush()
                os.fsync(copy.fileno())
                inspect(part)
                part.replace(target)
            except BaseException:
                part.unlink()
                raise
        _sync_directory(self._directory)
        return info

    def list(self) -> tuple[Archived, ...]:
        """Return what is archived, in order. Raises ArchiveDamagedError for a file whose header or trailer is bad."""
        there = (self._known.get(number) or self._look_at(number) for number in self._numbers())
        found = [archived for archived in there if archived is not None]
        self._known = {archived.generation: archived for archived in found}
        return tuple(found)

    def find(self, seq: int) -> Archived | None:
        """Return the file that holds the frame at `seq`, None where no file does.

        Raises ArchiveDamagedError where no file does and one is bad, which could be the one.
        """
        damaged: ArchiveDamagedError | None = None
        for number in (*self._known, *self._numbers()):
            try:
                archived = self._known.get(number) or self._look_at(number)
            except ArchiveDamagedError as error:
                damaged = damaged or error
                continue
            if archived is not None and archived.info.first_seq <= seq <= archived.info.last_seq:
                return archived
        if damaged is not None:
            raise damaged
        return None

    def _numbers(self) -> tuple[int, ...]:
        if not self._directory.is_dir():
            return ()
        names = (self._NAME.match(each.name) for each in self._directory.iterdir())
        return tuple(sorted(int(match[1]) for match in names if match))

    def _look_at(self, number: int) -> Archived | None:
        """Look at a file and remember it; None where it was set aside a moment ago."""
        try:
            archived = Archived(number, self.path(number), glance(self.path(number)))
        except FileNotFoundError:
            return None
        self._known[number] = archived
        return archived
