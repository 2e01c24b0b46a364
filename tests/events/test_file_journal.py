"""The journal in a file reads as the journal it was taken from, and refuses what a file cannot do."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
from tidegate_events.frame import UnreadableFrameError, encode
from tidegate_events.journal.archive import ArchiveDamagedError, ArchiveWriter
from tidegate_events.journal.base import Journal, JournalError, JournalGapError, Raw, Recorded
from tidegate_events.journal.file import FileJournal
from tidegate_events.journal.memory import MemoryJournal

from tests.events.writing import frame, read

ONE = "tg.fact.gateway.g1"
TWO = "tg.fact.gateway.g2"


async def archived(path: Path, first_seq: int = 1) -> tuple[FileJournal, MemoryJournal]:
    """Return a journal of ten frames in memory, and the same one from `first_seq` on in a file."""
    memory = MemoryJournal()
    for number in range(1, 11):
        await memory.append(TWO if number in (3, 7) else ONE, frame("g2" if number in (3, 7) else "g1", number))
    with ArchiveWriter(path, first_seq=first_seq, snapshot=b"state before") as writer:
        for recorded in await read(memory, first_seq - 1, 10):
            writer.add(Raw(recorded.seq, recorded.subject, encode(recorded.frame)))
    return FileJournal(path), memory


async def followed(journal: Journal, after: int) -> list[Recorded]:
    async with aclosing(journal.follow(after)) as frames:
        return [recorded async for recorded in frames]


async def test_it_reads_as_the_journal_it_was_taken_from(tmp_path: Path) -> None:
    journal, memory = await archived(tmp_path / "a.tgj")
    assert await journal.end() == 10
    for after, until in ((0, 10), (2, 5), (3, 3), (5, 2), (9, 100), (10, 100), (50, 60)):
        assert await read(journal, after, until) == await read(memory, after, until)
    for subject in (ONE, TWO, "tg.decision"):
        assert await journal.last(subject) == await memory.last(subject)
    assert [recorded.seq for recorded in await followed(journal, 7)] == [8, 9, 10]
    assert await followed(journal, 10) == []
    assert journal.snapshot() == b"state before"


async def test_what_lies_before_a_file_from_mid_history_is_a_gap(tmp_path: Path) -> None:
    journal, memory = await archived(tmp_path / "a.tgj", first_seq=5)
    assert (journal.info.first_seq, await journal.end()) == (5, 10)
    assert await read(journal, 4, 10) == await read(memory, 4, 10)
    assert await read(journal, 0, 0) == []
    for after in (0, 3):
        with pytest.raises(JournalGapError, match=f"begins with sequence 5: sequence {after + 1} is not in it"):
            await read(journal, after, 10)
        with pytest.raises(JournalGapError):
            await followed(journal, after)


async def test_an_empty_file_ends_before_it_begins(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path / "a.tgj", first_seq=7).close()
    journal = FileJournal(tmp_path / "a.tgj")
    assert await journal.end() == 6
    assert await read(journal, 6, 10) == await followed(journal, 6) == []
    assert await journal.last(ONE) is None
    assert journal.snapshot() is None
    with pytest.raises(JournalGapError):
        await followed(journal, 0)


async def test_nothing_is_appended(tmp_path: Path) -> None:
    journal, _ = await archived(tmp_path / "a.tgj")
    before = (tmp_path / "a.tgj").read_bytes()
    with pytest.raises(JournalError, match="archive, which is only read"):
        await journal.append(ONE, frame("g1", 11), expected_last=10)
    assert (tmp_path / "a.tgj").read_bytes() == before


async def test_a_damaged_file_and_an_unreadable_frame_stop_the_reader(tmp_path: Path) -> None:
    await archived(tmp_path / "a.tgj")
    data = (tmp_path / "a.tgj").read_bytes()
    (tmp_path / "b.tgj").write_bytes(data[:-1])
    with pytest.raises(ArchiveDamagedError):
        FileJournal(tmp_path / "b.tgj")
    with ArchiveWriter(tmp_path / "c.tgj", first_seq=1) as writer:
        writer.add(Raw(1, ONE, encode(frame())))
        writer.add(Raw(2, ONE, b"{}"))
    journal = FileJournal(tmp_path / "c.tgj")
    assert len(await read(journal, 0, 1)) == 1
    with pytest.raises(UnreadableFrameError):
        await read(journal, 0, 2)
