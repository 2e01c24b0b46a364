"""Unpacking refuses whatever could leave the directory, fill the disk, or be something other than a file."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_executor import archives
from tidegate_executor.archives import ArchiveRefusedError, unpack

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", *, link: str = "", mode: int = 0o644) -> Entry:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(data), link, mode
    return info, data


def archive(path: Path, *entries: Entry, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return path


def unpacked(tmp_path: Path, *entries: Entry) -> Path:
    target = tmp_path / "target"
    target.mkdir()
    unpack(archive(tmp_path / "a.tar", *entries), target)
    return target


def test_files_links_and_modes_come_out(tmp_path: Path) -> None:
    target = unpacked(
        tmp_path,
        entry(".", tarfile.DIRTYPE, mode=0o755),
        entry("src", tarfile.DIRTYPE, mode=0o777),
        entry("src/run.sh", data=b"#!", mode=0o4777),
        entry("deep/er/data", data=b"d", mode=0o600),
        entry("link", tarfile.SYMTYPE, link="src/run.sh"),
        entry("src/up", tarfile.SYMTYPE, link="../deep/er"),
        entry("same", tarfile.LNKTYPE, link="deep/er/data"),
    )
    assert (target / "link").read_bytes() == b"#!"
    assert (target / "src" / "up" / "data").read_bytes() == b"d"
    assert (target / "same").read_bytes() == b"d"
    assert stat.S_IMODE((target / "src" / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "deep/er/data").stat().st_mode) == 0o644


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz"])
def test_compressed_archives_are_taken(tmp_path: Path, mode: str) -> None:
    (tmp_path / "t").mkdir()
    unpack(archive(tmp_path / "a", entry("f", data=b"x" * 1000), mode=mode), tmp_path / "t")
    assert (tmp_path / "t" / "f").stat().st_size == 1000


REFUSED: dict[str, tuple[Entry, ...]] = {
    "absolute": (entry("/etc/evil", data=b"x"),),
    "parent": (entry("a/../../evil", data=b"x"),),
    "device": (entry("sda", tarfile.BLKTYPE),),
    "character device": (entry("null", tarfile.CHRTYPE),),
    "pipe": (entry("pipe", tarfile.FIFOTYPE),),
    "absolute link": (entry("l", tarfile.SYMTYPE, link="/etc/passwd"),),
    "link out": (entry("l", tarfile.SYMTYPE, link="../outside"),),
    "link out by another": (
        entry("sub", tarfile.DIRTYPE),
        entry("sub/l", tarfile.SYMTYPE, link=".."),
        entry("m", tarfile.SYMTYPE, link="sub/l/.."),
    ),
    "link to itself": (entry("l", tarfile.SYMTYPE, link="l"),),
    "hard link out": (entry("h", tarfile.LNKTYPE, link="../outside"),),
    "hard link to a link": (entry("l", tarfile.SYMTYPE, link="f"), entry("h", tarfile.LNKTYPE, link="l")),
    "twice": (entry("f", data=b"1"), entry("f", data=b"2")),
    "file over a link": (entry("l", tarfile.SYMTYPE, link="f"), entry("l", data=b"x")),
    "file below a file": (entry("f", data=b"1"), entry("f/g", data=b"2")),
    "too deep": (entry("/".join(["d"] * 100), data=b"x"),),
    "long name": (entry("n" * 2000, data=b"x"),),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(tmp_path: Path, what: str) -> None:
    (tmp_path / "outside").write_text("keep")
    with pytest.raises(ArchiveRefusedError):
        unpacked(tmp_path, *REFUSED[what])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "outside", "target"]
    assert (tmp_path / "outside").read_text() == "keep"


def test_a_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    with pytest.raises(ArchiveRefusedError):
        unpacked(tmp_path, entry("l", tarfile.SYMTYPE, link="../outside"), entry("l/evil", data=b"x"))
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(
    ("bound", "value", "entries"),
    [
        ("ENTRIES_MAX", 3, tuple(entry(f"f{number}") for number in range(4))),
        ("UNPACKED_BYTES_MAX", 10, (entry("a", data=b"x" * 6), entry("b", data=b"x" * 6))),
        ("UNPACKED_BYTES_MAX", 10, (entry("a", data=b"x" * 6), entry("h", tarfile.LNKTYPE, link="a"))),
    ],
)
def test_size_and_count_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, entries: tuple[Entry, ...]
) -> None:
    monkeypatch.setattr(archives, bound, value)
    with pytest.raises(ArchiveRefusedError, match="more than"):
        unpacked(tmp_path, *entries)


def test_garbage_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "a").write_bytes(os.urandom(5000))
    with pytest.raises(ArchiveRefusedError, match="not an archive"):
        unpack(tmp_path / "a", tmp_path / "t")


NAMES = st.sampled_from(["a", "b", "a/b", "a/b/c", "b/../c", "../x", "/x", ".", "a/l"])
TARGETS = st.sampled_from(["a", "b", "..", "../..", "a/..", "../a", "/etc", ".", "b/../..", "l"])
KINDS = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])


@given(st.lists(st.tuples(NAMES, KINDS, TARGETS), max_size=8))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_ever_leaves_the_directory(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[str, bytes, str]]
) -> None:
    root = tmp_path_factory.mktemp("unpack")
    target = root / "in" / "target"
    target.mkdir(parents=True)
    data = {tarfile.REGTYPE: b"x"}
    entries = [entry(name, kind, data.get(kind, b""), link=link) for name, kind, link in parts]
    try:
        unpack(archive(root / "a.tar", *entries), target)
    except ArchiveRefusedError:
        pass
    else:
        for path in target.rglob("*"):
            assert path.resolve().is_relative_to(target)
    assert sorted(path.name for path in root.iterdir()) == ["a.tar", "in"]
    assert [path.name for path in (root / "in").iterdir()] == ["target"]
