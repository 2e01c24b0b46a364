"""An export is the journal, a bundle is a part of it with what it needs, an import is the beginning of a journal."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from tidegate.cli.exits import CommandError
from tidegate_events.frame import encode
from tidegate_events.journal.archive import ArchiveDirectory, inspect, read_archive
from tidegate_events.journal.base import Raw
from tidegate_scheduler.history.carrying import bundle, cut, export
from tidegate_scheduler.history.commands.proving import prove
from tidegate_scheduler.history.errors import NotInHistoryError, RefusedError
from tidegate_scheduler.history.importing import check_file, install
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.source import open_file
from tidegate_scheduler.version import CORE_VERSION, POLICY_VERSION

from tests.scheduler.history.files import a_history, history_in, told, write


async def test_an_export_holds_every_byte_of_the_journal(tmp_path: Path) -> None:
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    info = await export(source, tmp_path / "export.tgj", told)
    frames = [Raw(r.seq, r.subject, encode(r.frame)) for r in cluster.frames]
    assert list(read_archive(tmp_path / "export.tgj")) == frames
    assert info == inspect(tmp_path / "export.tgj")
    assert info.digest == source.info.digest
    assert (info.notes["kind"], info.notes["redacted"], info.notes["core"]) == ("export", "no", CORE_VERSION)
    assert info.notes["policy"] == str(POLICY_VERSION)


async def test_every_part_can_be_bundled_and_proves_itself(tmp_path: Path) -> None:
    cluster = a_history()
    source = history_in(tmp_path, cluster)
    for first in range(1, source.end + 1):
        part = await cut(source, Moment(seq=first), Moment(), told)
        assert part.first <= first
        path = tmp_path / f"from-{first}.tgj"
        info = await bundle(source, path, part, redacted=False, told=told)
        assert info.has_snapshot == (part.first > 1)
        report = await prove(open_file(path), Moment(), Moment(), told)
        assert report.ok, report.difference
        assert report.unproved == 0
        assert report.state_digest == cluster.state.digest()


async def test_a_part_that_is_not_there_is_not_written(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    with pytest.raises(NotInHistoryError, match="there is no history"):
        await cut(source, Moment(seq=9), Moment(seq=8), told)


async def test_a_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(RefusedError, match="there already"):
        await export(source, tmp_path / "mine", told)
    part = await cut(source, Moment(), Moment(), told)
    with pytest.raises(RefusedError, match="there already"):
        await bundle(source, tmp_path / "mine", part, redacted=True, told=told)
    assert (tmp_path / "mine").read_text() == "precious"


async def test_a_part_is_no_whole_journal(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    part = await cut(source, Moment(seq=9), Moment(), told)
    await bundle(source, tmp_path / "part.tgj", part, redacted=False, told=told)
    with pytest.raises(RefusedError, match="cannot be exported"):
        await export(open_file(tmp_path / "part.tgj"), tmp_path / "export.tgj", told)
    with pytest.raises(RefusedError, match="begins with 1"):
        check_file(tmp_path / "part.tgj")


async def test_an_import_is_the_first_generation_of_an_empty_home(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    info = check_file(source.path)
    home = tmp_path / "home"
    assert install(source.path, home) == info
    (archived,) = ArchiveDirectory(home / "journal" / "archive").list()
    assert (archived.generation, archived.info.digest) == (1, info.digest)
    with pytest.raises(RefusedError, match="has a journal already"):
        install(source.path, home)


async def test_an_import_is_refused_where_there_is_a_journal(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    home = tmp_path / "home"
    (home / "nats" / "jetstream" / "$G" / "streams" / "JOURNAL_1").mkdir(parents=True)
    with pytest.raises(RefusedError, match="JOURNAL_1") as refused:
        install(source.path, home)
    assert refused.value.exit_code == 5
    assert not (home / "journal").exists()


async def test_an_import_is_refused_where_a_stack_runs(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    home = tmp_path / "home"
    home.mkdir()
    held = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with pytest.raises(RefusedError, match="A stack runs"):
            install(source.path, home)
    finally:
        os.close(held)


async def test_a_redacted_history_is_no_journal_to_go_on_with(tmp_path: Path) -> None:
    source = history_in(tmp_path, a_history())
    part = await cut(source, Moment(), Moment(), told)
    await bundle(source, tmp_path / "redacted.tgj", part, redacted=True, told=told)
    with pytest.raises(RefusedError, match="redacted"):
        check_file(tmp_path / "redacted.tgj")


def test_an_empty_file_and_none_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "empty.tgj", [])
    with pytest.raises(RefusedError):
        check_file(tmp_path / "empty.tgj")
    with pytest.raises(CommandError, match="cannot be read"):
        check_file(tmp_path / "none.tgj")
