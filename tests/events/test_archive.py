"""Archive files: what was written is read again, and whatever was changed is refused with the place named."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_events.journal import archive, archive_blocks
from tidegate_events.journal.archive import (
    ArchiveDamagedError,
    ArchiveDirectory,
    ArchiveInfo,
    ArchiveWriter,
    ChainDigest,
    glance,
    inspect,
    read_archive,
    read_snapshot,
)
from tidegate_events.journal.base import JournalError, Raw

Parts = list[tuple[str, bytes]]

PARTS = st.lists(st.tuples(st.sampled_from(["tg.decision", "tg.fact.node.n1", "tg.fact.gateway.ü"]), st.binary()))
PATHS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def frames(parts: Parts, first_seq: int = 1) -> list[Raw]:
    return [Raw(seq, subject, data) for seq, (subject, data) in enumerate(parts, start=first_seq)]


def write(path: Path, raws: Iterable[Raw], first_seq: int = 1, snapshot: bytes | None = None) -> ArchiveInfo:
    with ArchiveWriter(path, first_seq=first_seq, notes={"core": "1.0"}, snapshot=snapshot) as writer:
        for raw in raws:
            writer.add(raw)
    return writer.close()


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three frames fill a segment."""
    monkeypatch.setattr(archive_blocks, "SEGMENT_FRAMES_MAX", 3)


class Laid:
    """Where the blocks of a file lie: `[begin, end)` of each, with its tag."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.blocks: list[tuple[bytes, int, int]] = []
        with path.open("rb") as file:
            at = file.seek(len(archive_blocks.MAGIC))
            while at < len(self.data) - archive_blocks.END_BYTES:
                block = archive_blocks.read_block(file, len(self.data))
                self.blocks.append((block.tag, at, block.end))
                at = block.end

    def segment(self, number: int) -> bytes:
        _, begin, end = [block for block in self.blocks if block[0] == archive_blocks.SEGMENT_TAG][number]
        return self.data[begin:end]

    def begin_of(self, byte: int) -> int:
        """Return where the block begins in which a byte lies, as far as the file is blocks."""
        if byte >= len(self.data) - archive_blocks.END_BYTES:
            return self.blocks[-1][1]
        return max((begin for _, begin, _ in self.blocks if begin <= byte), default=0)


def read_all(path: Path) -> list[Raw]:
    read_snapshot(path)
    return list(read_archive(path))


def refused(path: Path, data: bytes) -> ArchiveDamagedError:
    """Return how a file of these bytes is refused: alike by each way of reading all of it."""
    path.write_bytes(data)
    with pytest.raises(ArchiveDamagedError) as by_inspect:
        inspect(path)
    with pytest.raises(ArchiveDamagedError) as by_reading:
        read_all(path)
    assert by_inspect.value.place == by_reading.value.place
    return by_inspect.value


@PATHS
@given(
    parts=PARTS,
    first_seq=st.integers(1, 2**62),
    snapshot=st.none() | st.binary(),
    window=st.tuples(*[st.integers(-2, 40)] * 2),
)
def test_what_was_written_is_read_again(
    tmp_path: Path,
    small_segments: None,
    *,
    parts: Parts,
    first_seq: int,
    snapshot: bytes | None,
    window: tuple[int, int],
) -> None:
    path = tmp_path / "a.tgj"
    raws = frames(parts, first_seq)
    chain = ChainDigest()
    for raw in raws:
        chain.add(raw)
    info = write(path, raws, first_seq, snapshot)
    assert info == ArchiveInfo(
        first_seq, first_seq + len(raws) - 1, len(raws), chain.text(), "", {"core": "1.0"}, snapshot is not None
    )
    assert inspect(path) == glance(path) == info
    assert list(read_archive(path)) == raws
    assert read_snapshot(path) == snapshot
    after, until = first_seq + window[0], first_seq + window[1]
    assert list(read_archive(path, after, until)) == [raw for raw in raws if after < raw.seq <= until]
    assert list(read_archive(path, after)) == [raw for raw in raws if raw.seq > after]
    assert [file.name for file in tmp_path.iterdir()] == ["a.tgj"]


def test_one_chain_goes_through_many_files(tmp_path: Path) -> None:
    raws = frames([("tg.decision", b"%d" % n) for n in range(10)])
    whole = write(tmp_path / "whole", raws)
    first = write(tmp_path / "first", raws[:4])
    with ArchiveWriter(tmp_path / "second", first_seq=5, previous_digest=first.digest) as writer:
        for raw in raws[4:]:
            writer.add(raw)
    second = writer.close()
    assert (second.previous_digest, second.digest) == (first.digest, whole.digest)
    assert list(read_archive(tmp_path / "second", after=4)) == raws[4:]


EXAMPLE: Parts = [("tg.decision", b'{"decided": %d}' % n) for n in range(8)]


@pytest.mark.parametrize("snapshot", [None, b"the state before"], ids=["plain", "with a snapshot"])
def test_any_changed_byte_is_found_where_it_is(tmp_path: Path, small_segments: None, snapshot: bytes | None) -> None:
    path = tmp_path / "a.tgj"
    write(path, frames(EXAMPLE), snapshot=snapshot)
    laid = Laid(path)
    for byte in range(len(laid.data)):
        changed = bytearray(laid.data)
        changed[byte] ^= 1 << byte % 8
        error = refused(path, bytes(changed))
        assert error.place.offset_bytes == laid.begin_of(byte), byte


@PATHS
@given(data=st.data())
def test_a_byte_that_became_any_other_is_found(tmp_path: Path, small_segments: None, data: st.DataObject) -> None:
    path = tmp_path / "a.tgj"
    write(path, frames(data.draw(PARTS)), snapshot=data.draw(st.none() | st.binary()))
    laid = Laid(path)
    byte = data.draw(st.integers(0, len(laid.data) - 1))
    changed = bytearray(laid.data)
    changed[byte] ^= data.draw(st.integers(1, 255))
    assert refused(path, bytes(changed)).place.offset_bytes == laid.begin_of(byte)


def test_a_file_that_was_cut_anywhere_is_refused(tmp_path: Path, small_segments: None) -> None:
    path = tmp_path / "a.tgj"
    write(path, frames(EXAMPLE), snapshot=b"the state before")
    laid = Laid(path)
    for size in range(len(laid.data)):
        assert refused(path, laid.data[:size]).place.offset_bytes == laid.begin_of(size)
    assert "cut off" in str(refused(path, laid.data[: laid.blocks[3][1] + 50]))


def test_the_place_names_segment_and_sequence(tmp_path: Path, small_segments: None) -> None:
    path = tmp_path / "a.tgj"
    write(path, frames(EXAMPLE, 101), 101)
    laid = Laid(path)
    begin = laid.data.index(laid.segment(1))
    error = refused(path, laid.data[: begin + 60] + b"\xff" + laid.data[begin + 61 :])
    assert (error.place.segment, error.place.offset_bytes, error.place.seq) == (1, begin, 104)
    assert f"segment 1, at byte {begin}, sequence 104" in str(error)


@pytest.mark.parametrize("added", [b"\0", b"tg-ended", b"x" * 1000])
def test_what_was_added_at_the_end_is_refused(tmp_path: Path, added: bytes) -> None:
    path = tmp_path / "a.tgj"
    write(path, frames(EXAMPLE))
    assert refused(path, path.read_bytes() + added).place.segment == 1


ORDERS: dict[str, Callable[[bytes, bytes, bytes], bytes]] = {
    "swapped": lambda a, b, c: b + a + c,
    "one taken out": lambda a, b, c: a + c,
    "the first taken out": lambda a, b, c: b + c,
    "the last taken out": lambda a, b, c: a + b,
    "one twice": lambda a, b, c: a + b + b + c,
}


@pytest.mark.parametrize(("order", "segment"), list(zip(ORDERS, [0, 1, 0, 2, 2], strict=True)))
def test_segments_in_another_order_are_refused(tmp_path: Path, small_segments: None, order: str, segment: int) -> None:
    path = tmp_path / "a.tgj"
    write(path, frames(EXAMPLE))
    laid = Laid(path)
    parts = [laid.segment(number) for number in range(3)]
    assert refused(path, laid.data.replace(b"".join(parts), ORDERS[order](*parts))).place.segment == segment


def resealed(path: Path, change: Callable[[int, bytes, bytes], tuple[bytes, bytes]]) -> bytes:
    """Return the file with heads and bodies changed, under new seals: what somebody who knows the format can do."""
    laid = Laid(path)
    out = path.with_name("resealed")
    with out.open("wb") as file, path.open("rb") as old:
        file.write(old.read(len(archive_blocks.MAGIC)))
        for number in range(len(laid.blocks)):
            block = archive_blocks.read_block(old, len(laid.data))
            head, body = change(number, block.head, block.body)
            begin = file.tell()
            archive_blocks.write_block(file, block.tag, msgspec.Raw(head), body)  # type: ignore[arg-type]
        archive_blocks.write_end(file, begin)
    return out.read_bytes()


def test_an_edited_frame_under_a_new_seal_is_refused(tmp_path: Path, small_segments: None) -> None:
    path = tmp_path / "a.tgj"
    write(path, frames(EXAMPLE))

    def change(number: int, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        if number == 2:  # after the header and the first segment
            edited = zstandard.decompress(body).replace(b'"decided": 4', b'"decided": 5')
            return head, zstandard.compress(edited)
        return head, body

    error = refused(path, resealed(path, change))
    assert (error.place.segment, error.place.seq) == (1, 4)
    assert "edited" in str(error)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("format", 2), "format 2, this version reads format 1"),
        (("format", "x"), "cannot be read"),
        (("first_seq", 0), "begins with sequence 0"),
        (("first_seq", 2), "does not follow"),
        (("previous_digest", "b3:12"), "no digest"),
        (("previous_digest", "b3:" + "0" * 63 + "1"), "does not follow"),
        (("notes", {"core": "2.0"}), "another history"),
        (("has_snapshot", True), "SEGM lies where SNAP should"),
        (("unknown", 1), "cannot be read"),
    ],
)
def test_another_header_is_refused(tmp_path: Path, edit: tuple[str, object], said: str) -> None:
    path = tmp_path / "a.tgj"
    write(path, frames(EXAMPLE))

    def change(number: int, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        if number == 0:
            return msgspec.json.encode({**msgspec.json.decode(head), edit[0]: edit[1]}), body
        return head, body

    assert said in str(refused(path, resealed(path, change)))


BOMB = 64 << 20


@pytest.mark.parametrize("declared", [BOMB, 100, None])
def test_a_bomb_is_refused_before_it_goes_off(tmp_path: Path, declared: int | None) -> None:
    path = tmp_path / "a.tgj"
    info = write(path, frames([("tg.decision", b"x" * 100)]))
    bomb = zstandard.ZstdCompressor(write_content_size=declared is not None).compress(bytes(BOMB))

    def change(number: int, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        if number == 1:
            return msgspec.json.encode({**msgspec.json.decode(head), "raw_bytes": declared or 100}), bomb
        return head, body

    error = refused(path, resealed(path, change))
    assert (error.place.segment, error.place.seq) == (0, info.first_seq)
    assert "it says that it becomes" in str(error)


def test_a_segment_that_lies_about_its_frames_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tgj"
    write(path, frames(EXAMPLE))
    for edit in (
        {"frames": 7},
        {"frames": 9, "last_seq": 9},
        {"frames": 7, "last_seq": 7},
        {"frames": -1, "last_seq": -1},
    ):

        def change(number: int, head: bytes, body: bytes, edit: dict[str, int] = edit) -> tuple[bytes, bytes]:
            return (msgspec.json.encode({**msgspec.json.decode(head), **edit}) if number == 1 else head), body

        assert refused(path.with_name("b.tgj"), resealed(path, change)).place.segment == 0


@pytest.mark.parametrize("data", [b"", b"tidegate", b"PK\x03\x04" * 100, b"tidegate-journal" + b"\xff" * 200])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    assert refused(tmp_path / "a.tgj", data).place.segment == -1


@given(st.binary(max_size=300))
@PATHS
def test_bytes_are_an_archive_or_refused_and_nothing_else(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path / "a.tgj", archive_blocks.MAGIC + data)


def test_reading_from_the_middle_does_not_open_what_lies_before(tmp_path: Path, small_segments: None) -> None:
    path = tmp_path / "a.tgj"
    raws = frames(EXAMPLE)
    write(path, raws)
    laid = Laid(path)
    begin = laid.data.index(laid.segment(0))
    path.write_bytes(laid.data[: begin + 40] + b"\xff" + laid.data[begin + 41 :])
    assert list(read_archive(path, after=3)) == raws[3:]
    with pytest.raises(ArchiveDamagedError):
        list(read_archive(path, after=2))


def test_no_frame_of_a_damaged_segment_is_given_out(tmp_path: Path, small_segments: None) -> None:
    path = tmp_path / "a.tgj"
    raws = frames(EXAMPLE)
    write(path, raws)
    laid = Laid(path)
    end = laid.data.index(laid.segment(1)) + len(laid.segment(1))
    path.write_bytes(laid.data[: end - 1] + b"\xff" + laid.data[end:])
    reading = read_archive(path)
    assert [next(reading) for _ in range(3)] == raws[:3]
    with pytest.raises(ArchiveDamagedError):
        next(reading)


def test_segments_are_bounded_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.tgj"
    large = os.urandom(900_000)
    raws = frames([("tg.decision", large)] * 9)
    write(path, raws)
    segments = list(archive.read_segments(path))
    assert [len(segment) for segment in segments] == [4, 4, 1]
    assert [raw for segment in segments for raw in segment] == raws


def test_a_frame_out_of_turn_or_too_large_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.tgj"
    with ArchiveWriter(path, first_seq=5) as writer:
        with pytest.raises(ValueError, match="goes on with 5"):
            writer.add(Raw(4, "tg.decision", b""))
        writer.add(Raw(5, "tg.decision", b""))
        with pytest.raises(ValueError, match="goes on with 6"):
            writer.add(Raw(7, "tg.decision", b""))
        with pytest.raises(ValueError, match="bytes refused"):
            writer.add(Raw(6, "tg.decision", bytes(archive_blocks.SEGMENT_BYTES_MAX)))
        with pytest.raises(ValueError, match="bytes refused"):
            writer.add(Raw(6, "x" * 70_000, b""))
    assert inspect(path).frames == 1
    with pytest.raises(ValueError, match="from sequence 0"):
        ArchiveWriter(path, first_seq=0)
    with pytest.raises(ValueError, match="no digest"):
        ArchiveWriter(path, first_seq=1, previous_digest="b3:zz")
    with pytest.raises(ValueError, match="shorten the notes"):
        ArchiveWriter(path, first_seq=1, notes={"x": "y" * archive_blocks.HEAD_BYTES_MAX})
    assert inspect(path).frames == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.tgj"]


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.tgj"

    def write_and_fail() -> None:
        with ArchiveWriter(path, first_seq=1) as writer:
            writer.add(Raw(1, "tg.decision", b"{}"))
            assert not path.exists()
            raise RuntimeError("the reader failed")

    with pytest.raises(RuntimeError, match="the reader failed"):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_taken_over_but_not_what_a_live_one_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.tgj"
    left = tmp_path / ".a.tgj.part"
    left.write_bytes(b"x" * 10_000)
    with left.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(JournalError, match="written by another"):
            ArchiveWriter(path, first_seq=1)
    assert left.stat().st_size == 10_000
    write(path, frames(EXAMPLE))
    assert inspect(path).frames == len(EXAMPLE)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tgj"]


def test_a_directory_holds_the_generations_in_order(tmp_path: Path) -> None:
    directory = ArchiveDirectory(tmp_path / "archive")
    assert directory.list() == ()
    assert directory.find(1) is None
    raws = frames(EXAMPLE)
    with directory.begin(1, first_seq=1) as writer:
        for raw in raws[:5]:
            writer.add(raw)
    with directory.begin(10, first_seq=6, previous_digest=writer.close().digest, snapshot=b"state") as later:
        for raw in raws[5:]:
            later.add(raw)
    (tmp_path / "archive" / "notes.txt").write_text("no archive")
    (tmp_path / "archive" / ".journal-2.tgj.part").write_bytes(b"half")
    found = directory.list()
    assert [(archived.generation, archived.info) for archived in found] == [(1, writer.close()), (10, later.close())]
    assert [archived.generation if (archived := directory.find(seq)) else None for seq in (1, 5, 6, 8, 9)] == [
        1, 1, 10, 10, None,
    ]  # fmt: skip
    assert directory.path(1).name == "journal-1.tgj"
    directory.path(10).unlink()
    assert [archived.generation for archived in directory.list()] == [1]


def test_a_directory_takes_a_proved_copy_once(tmp_path: Path) -> None:
    directory = ArchiveDirectory(tmp_path / "archive")
    source = tmp_path / "export.tgj"
    info = write(source, frames(EXAMPLE))
    assert directory.put(3, source) == info
    assert directory.put(3, source) == info
    assert inspect(directory.path(3)) == info
    other = tmp_path / "other.tgj"
    write(other, frames(EXAMPLE[1:]))
    with pytest.raises(JournalError, match="another history"):
        directory.put(3, other)
    other.write_bytes(other.read_bytes()[:-1])
    with pytest.raises(ArchiveDamagedError):
        directory.put(4, other)
    assert [path.name for path in (tmp_path / "archive").iterdir()] == ["journal-3.tgj"]


def test_a_damaged_file_hides_no_other_and_one_that_goes_away_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raws = frames(EXAMPLE)
    made = ArchiveDirectory(tmp_path / "archive")
    with made.begin(1, first_seq=1) as first:
        for raw in raws[:5]:
            first.add(raw)
    with made.begin(2, first_seq=6, previous_digest=first.close().digest) as second:
        for raw in raws[5:]:
            second.add(raw)
    whole = made.path(2).read_bytes()
    made.path(2).write_bytes(whole[:-1])
    directory = ArchiveDirectory(tmp_path / "archive")
    found = directory.find(3)
    assert found is not None
    assert found.generation == 1
    with pytest.raises(ArchiveDamagedError):
        directory.find(6)
    made.path(2).write_bytes(whole)

    def set_aside_first(path: Path) -> ArchiveInfo:
        if path.name == "journal-2.tgj" and path.exists():
            path.rename(path.with_name("journal-2.tgj.damaged-1"))
        return glance(path)

    monkeypatch.setattr(archive, "glance", set_aside_first)
    assert [each.generation for each in ArchiveDirectory(tmp_path / "archive").list()] == [1]


def test_a_new_directory_is_on_the_disk_before_anything_is_trimmed_for_what_lies_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(archive, "_sync_directory", synced.append)
    directory = ArchiveDirectory(tmp_path / "new" / "archive")
    with directory.begin(1, first_seq=1) as writer:
        writer.add(frames(EXAMPLE)[0])
    assert synced == [tmp_path, tmp_path / "new", tmp_path / "new" / "archive"]
