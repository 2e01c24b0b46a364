"""What a layer may hold and what it may not: each refusal names the entry, and nothing was written outside."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from tidegate_executor.oci.blobs import ImageRefusedError
from tidegate_executor.oci.unpacking import OPAQUE_ATTRIBUTES, unpack

from tests.executor.oci.made import DIRECTORY, FILE, HARD, LINK, Entry, layer


def unpacked(tmp_path: Path, *entries: Entry, mode: int = 0o755) -> Path:
    target = tmp_path / "tree"
    target.mkdir()
    unpack(io.BytesIO(layer(*entries, mode=mode)), target, bool)
    return target


HOSTILE: dict[str, list[Entry]] = {
    "absolute": [("/etc/evil", FILE, b"x")],
    "climbs": [("a/../../evil", FILE, b"x")],
    "device": [("dev/sda", tarfile.BLKTYPE, "")],
    "whiteout as a device": [("gone", tarfile.CHRTYPE, "")],
    "pipe": [("pipe", tarfile.FIFOTYPE, "")],
    "hard link outside": [("shadow", HARD, "../../etc/shadow")],
    "absolute hard link": [("shadow", HARD, "/etc/shadow")],
    "hard link to nothing": [("a", HARD, "missing")],
    "hard link to a link": [("out", LINK, "/etc/shadow"), ("a", HARD, "out")],
    "hard link through a link": [("out", LINK, "/etc"), ("a", HARD, "out/passwd")],
    "file through a link": [("out", LINK, "/tmp"), ("out/evil", FILE, b"x")],
    "directory through a link": [("out", LINK, "/tmp"), ("out/evil", DIRECTORY, "")],
    "whiteout through a link": [("out", LINK, "/tmp"), ("out/.wh.evil", FILE, b"")],
    "opaque through a link": [("out", LINK, "/tmp"), ("out/.wh..wh..opq", FILE, b"")],
    "whiteout of nothing": [(".wh.", FILE, b"")],
    "whiteout of the parent": [("a/.wh...", FILE, b"")],
    "whiteout of itself": [("a/.wh..", FILE, b"")],
    "deep": [("/".join(["d"] * 200), DIRECTORY, "")],
    "long": [("n" * 5000, FILE, b"")],
    "root as a file": [("./", FILE, b"x")],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_entries_are_refused_by_name(tmp_path: Path, entries: list[Entry]) -> None:
    with pytest.raises(ImageRefusedError, match="entry '"):
        unpacked(tmp_path, *entries)
    assert not Path("/tmp/evil").exists()
    assert not (tmp_path / "evil").exists()


def test_what_is_removed_is_marked_as_overlays_read_it(tmp_path: Path) -> None:
    tree = unpacked(tmp_path, ("etc/.wh.gone", FILE, b""), ("opt/.wh..wh..opq", FILE, b""), ("opt/new", FILE, b"n"))
    gone = (tree / "etc" / "gone").lstat()
    assert stat.S_ISCHR(gone.st_mode)
    assert gone.st_rdev == 0
    assert os.getxattr(tree / "opt", OPAQUE_ATTRIBUTES[0]) == b"y"
    assert sorted(path.name for path in (tree / "opt").iterdir()) == ["new"]


def test_a_whiteout_spares_what_its_own_layer_brings(tmp_path: Path) -> None:
    tree = unpacked(tmp_path, ("a", FILE, b"mine"), (".wh.a", FILE, b""), (".wh.b", FILE, b""), ("b", FILE, b"too"))
    assert ((tree / "a").read_bytes(), (tree / "b").read_bytes()) == (b"mine", b"too")


def test_what_comes_later_counts(tmp_path: Path) -> None:
    entries: list[Entry] = [("a", LINK, "/etc/passwd"), ("a", FILE, b"file"), ("d/x", FILE, b"x"), ("d", LINK, "a")]
    tree = unpacked(tmp_path, *entries)
    assert (tree / "a").read_bytes() == b"file"
    assert os.readlink(tree / "d") == "a"


def test_hard_links_within_a_layer_are_kept(tmp_path: Path) -> None:
    tree = unpacked(tmp_path, ("a", FILE, b"one"), ("d/b", HARD, "a"))
    assert (tree / "a").stat().st_ino == (tree / "d" / "b").stat().st_ino


def test_modes_lose_what_changes_the_user(tmp_path: Path) -> None:
    tree = unpacked(tmp_path, ("su", FILE, b"x"), ("d", DIRECTORY, ""), mode=0o7755)
    assert stat.S_IMODE((tree / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((tree / "d").stat().st_mode) == 0o1755


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageRefusedError, match="no tar archive"):
        unpack(io.BytesIO(b"nothing like it" * 100), tmp_path, bool)
