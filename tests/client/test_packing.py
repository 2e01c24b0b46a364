"""Packing a working directory: the same content gives the same bytes, and nothing outside gets in."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate.client import PackingError
from tidegate.client import packing as packing_module
from tidegate.client.packing import pack

GOLDEN_DIGEST = "edb8e6bb7a7cd35b2ffd990817705418152a9addcbfe2ebdd4e0460c687dc5d5"


def _tree(root: Path, names: list[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n")
    return root


def _digest(root: Path) -> str:
    with pack(root) as archive:
        return archive.digest


def _names(root: Path) -> list[str]:
    with pack(root) as archive:
        archive.file.seek(0)
        with tarfile.open(fileobj=archive.file, mode="r:") as tar:
            return tar.getnames()


def test_other_times_modes_and_order_of_creation_give_the_same_digest(tmp_path: Path) -> None:
    names = ["train.py", "env/__init__.py", "env/a-b.py", "env/a/b.py", "data/ü.txt"]
    one = _tree(tmp_path / "one", names)
    other = _tree(tmp_path / "other", list(reversed(names)))
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        if path.is_file():
            path.chmod(0o600)
    assert _digest(one) == _digest(other)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another owner")
def test_other_owners_give_the_same_digest(tmp_path: Path) -> None:
    one, other = _tree(tmp_path / "one", ["a/b"]), _tree(tmp_path / "other", ["a/b"])
    os.chown(other / "a" / "b", 12345, 54321)
    assert _digest(one) == _digest(other)


def test_the_digest_is_the_one_that_every_machine_finds(tmp_path: Path) -> None:
    root = _tree(tmp_path, ["train.py", "deep/" * 30 + "long-name-" * 8 + ".txt", "ünïcode.txt"])
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "latest").symlink_to("train.py")
    (root / "empty").mkdir()
    assert _digest(root) == GOLDEN_DIGEST


@pytest.mark.parametrize("change", ["content", "name", "executable", "link", "new"])
def test_every_difference_that_matters_changes_the_digest(tmp_path: Path, change: str) -> None:
    root = _tree(tmp_path, ["a.py", "b.py"])
    (root / "link").symlink_to("a.py")
    before = _digest(root)
    if change == "content":
        (root / "a.py").write_text("other")
    elif change == "name":
        (root / "a.py").rename(root / "c.py")
    elif change == "executable":
        (root / "a.py").chmod(0o755)
    elif change == "link":
        (root / "link").unlink()
        (root / "link").symlink_to("b.py")
    else:
        (root / "d.py").touch()
    assert _digest(root) != before


def test_the_archive_holds_exactly_what_was_there_and_nobody_in_particular(tmp_path: Path) -> None:
    root = _tree(tmp_path / "root", ["a.py", "pkg/b.py"])
    with pack(root) as archive:
        assert archive.size_bytes == sum(len(chunk) for chunk in archive.chunks())
        archive.file.seek(0)
        with tarfile.open(fileobj=archive.file, mode="r:") as tar:
            assert [(m.name, m.mtime, m.uid, m.gid, m.uname, m.gname) for m in tar] == [
                (name, 0, 0, 0, "", "") for name in ("a.py", "pkg", "pkg/b.py")
            ]
            tar.extractall(tmp_path / "out", filter="data")
    assert (tmp_path / "out" / "pkg" / "b.py").read_text() == (root / "pkg" / "b.py").read_text()


def test_chunks_start_over_each_time_so_that_an_upload_can_be_repeated(tmp_path: Path) -> None:
    sent: list[int] = []
    with pack(_tree(tmp_path, ["a.py"])) as archive:
        assert b"".join(archive.chunks(sent.append)) == b"".join(archive.chunks())
        assert sent[-1] == archive.size_bytes


def test_repositories_environments_and_caches_stay_out(tmp_path: Path) -> None:
    _tree(tmp_path, ["a.py", ".git/config", "pkg/__pycache__/a.pyc", ".venv/bin/python", "pkg/.git", "gitlike/x"])
    assert _names(tmp_path) == ["a.py", "gitlike", "gitlike/x", "pkg"]


def test_links_that_stay_inside_are_kept_as_links(tmp_path: Path) -> None:
    root = _tree(tmp_path, ["pkg/a.py"])
    (root / "up").symlink_to("pkg/a.py")
    (root / "pkg" / "back").symlink_to("../pkg")
    (root / "dangling").symlink_to("not-yet-there")
    assert _names(root) == ["dangling", "pkg", "pkg/a.py", "pkg/back", "up"]


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "..", "../outside", "pkg/../../outside", "pkg/way-out/outside", "../root/a.py"],
    ids=["absolute", "parent", "sibling", "winding", "through another link", "out and in again"],
)
def test_a_link_that_leaves_the_directory_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").write_text("secret")
    root = _tree(tmp_path / "root", ["a.py", "pkg/b.py"])
    if target == "pkg/way-out/outside":
        (root / "pkg" / "way-out").symlink_to("../..")
    (root / "link").symlink_to(target)
    with pytest.raises(PackingError, match=r"leaves the working directory.*`inputs`"):
        pack(root)


def test_a_link_that_leaves_through_something_left_out_is_refused(tmp_path: Path) -> None:
    root = _tree(tmp_path / "root", ["a.py", ".venv/x"])
    (root / ".venv" / "out").symlink_to("/etc")
    (root / "link").symlink_to(".venv/out/hostname")
    with pytest.raises(PackingError, match="leaves the working directory"):
        pack(root)


def test_an_absolute_link_to_the_inside_is_refused_since_it_breaks_elsewhere(tmp_path: Path) -> None:
    root = _tree(tmp_path, ["a.py"])
    (root / "link").symlink_to(root / "a.py")
    with pytest.raises(PackingError, match="relative links"):
        pack(root)


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PackingError, match="socket, pipe or device"):
        pack(tmp_path)


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))).touch()
    with pytest.raises(PackingError, match="not UTF-8"):
        pack(tmp_path)


def test_too_much_is_refused_with_the_bound_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(64 * 1024))
    with pytest.raises(PackingError, match=r"more than 50,000 bytes.*`inputs`"):
        pack(tmp_path, bytes_max=50_000)


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "ENTRIES_MAX", 3)
    _tree(tmp_path, ["a", "b", "c"])
    pack(tmp_path).close()
    (tmp_path / "d").touch()
    with pytest.raises(PackingError, match="more than 3 files"):
        pack(tmp_path)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackingError, match="not a directory"):
        pack(tmp_path / "nowhere")


def test_a_file_larger_than_memory_allows_is_streamed_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large").write_bytes(os.urandom(100_000))
    before = _digest(tmp_path)
    monkeypatch.setattr(packing_module, "MEMORY_BYTES_MAX", 1_000)
    assert _digest(tmp_path) == before


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..", *packing_module.EXCLUDED_NAMES)
)


@settings(max_examples=30, deadline=None)
@given(files=st.dictionaries(NAMES, st.binary(max_size=50), max_size=6))
def test_any_directory_comes_out_as_it_went_in(
    files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, out = tmp_path_factory.mktemp("in"), tmp_path_factory.mktemp("out")
    for name, content in files.items():
        (root / name).write_bytes(content)
    with pack(root) as archive:
        archive.file.seek(0)
        with tarfile.open(fileobj=archive.file, mode="r:") as tar:
            tar.extractall(out, filter="data")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files
