"""Directories of frameworks are adopted as checkpoints, and put back as they were."""

import os
import random
from pathlib import Path

import pytest
from tidegate import CorruptCheckpointError, UnsupportedObjectError, UsageError
from tidegate.checkpoint import adopt, files
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore

from tests.support import stores
from tests.support.stores import STAMP

RAW = random.Random(5).randbytes(5120)


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    directory = tmp_path / "declared"
    for name in ("checkpoint-900", "checkpoint-1000", ".tmp-checkpoint-1200", "checkpoint-1100"):
        (directory / name / "sub").mkdir(parents=True)
        (directory / name / "sub" / "w").write_bytes(name.encode())
    for name in ("checkpoint-900", "checkpoint-1000", ".tmp-checkpoint-1200"):
        (directory / name / "COMPLETE").touch()
    return directory


def test_only_complete_directories_are_adopted(declared: Path, store: CheckpointStore) -> None:
    committed = adopt.adopt(declared, store.directory, STAMP)
    assert committed is not None
    assert committed.root.step == 1000, "checkpoint-1100 has no marker: it is half-written"
    assert committed.root.stamp.adopted == "checkpoint-1000"
    Checkpoint(committed).verify()
    assert adopt.adopt(declared, store.directory, STAMP) is None, "unchanged since"


def test_the_rename_rule_takes_every_name_but_temporary_ones(declared: Path) -> None:
    assert [item.step for item in adopt.find_complete(declared, "rename")] == [1100, 1000, 900]
    with pytest.raises(UsageError, match="'maybe' was refused"):
        adopt.find_complete(declared, "maybe")


def test_single_files_have_their_marker_beside_them(tmp_path: Path, store: CheckpointStore) -> None:
    directory = tmp_path / "files"
    directory.mkdir()
    for name in ("last_12.pt", "last_13.pt"):
        (directory / name).write_bytes(name.encode())
    assert adopt.adopt(directory, store.directory, STAMP) is None
    (directory / "last_12.pt.COMPLETE").touch()
    committed = adopt.adopt(directory, store.directory, STAMP)
    assert committed is not None
    assert committed.root.step == 12
    target = adopt.materialise(committed, tmp_path / "next")
    assert target.read_bytes() == b"last_12.pt"
    assert [item.path for item in adopt.find_complete(tmp_path / "next")] == [target]


def test_an_adopted_checkpoint_is_put_back(declared: Path, store: CheckpointStore, tmp_path: Path) -> None:
    committed = adopt.adopt(declared, store.directory, STAMP)
    assert committed is not None
    for _ in range(2):
        target = adopt.materialise(committed, tmp_path / "next" / "deep")
        assert (target / "sub" / "w").read_bytes() == b"checkpoint-1000"
        assert os.listdir(target.parent) == ["checkpoint-1000"]
        (target / "sub" / "w").write_bytes(b"damaged")
    path = stores.manifest_path(committed, "model")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b'"bytes":15', b'"bytes":16'))
    with pytest.raises(CorruptCheckpointError):
        adopt.materialise(committed, tmp_path / "third")
    assert os.listdir(tmp_path / "third") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_what_is_put_back_belongs_to_the_job(declared: Path, store: CheckpointStore, tmp_path: Path) -> None:
    committed = adopt.adopt(declared, store.directory, STAMP)
    assert committed is not None
    target = adopt.materialise(committed, tmp_path / "next", (4321, 4322))
    for path in (target.parent, target, target / "sub", target / "sub" / "w", target / "COMPLETE"):
        assert (path.stat().st_uid, path.stat().st_gid) == (4321, 4322)


def test_the_agent_writes_nothing_where_a_job_could_move_it_before_it_is_complete(
    declared: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = files.Temporary.__init__

    def looking(self: files.Temporary, staging: int, flags: int = 0) -> None:
        seen.append(os.readlink(f"/proc/self/fd/{staging}"))
        real(self, staging, flags)

    monkeypatch.setattr(files.Temporary, "__init__", looking)
    (declared / "checkpoint-1000" / "large").write_bytes(RAW)
    committed = adopt.adopt(declared, store.directory, STAMP)
    assert committed is not None
    assert len(seen) == 3, "a pack, a manifest and a root"
    assert set(seen) == {str(store.directory.parent)}
    assert [name for name in os.listdir(store.directory.parent) if name.startswith(".tmp")] == []


@pytest.mark.parametrize("place", ["packs", "manifests"])
def test_what_is_put_back_is_read_through_no_link(
    declared: Path, store: CheckpointStore, tmp_path: Path, place: str
) -> None:
    (declared / "checkpoint-1000" / "large").write_bytes(RAW)
    committed = adopt.adopt(declared, store.directory, STAMP)
    assert committed is not None
    elsewhere = tmp_path / "elsewhere"
    (store.directory / place).rename(elsewhere)
    (store.directory / place).symlink_to(elsewhere)
    with pytest.raises(CorruptCheckpointError, match="is not a directory"):
        adopt.materialise(committed, tmp_path / "next")
    assert os.listdir(tmp_path / "next") == []


def test_links_in_a_declared_directory_are_refused(declared: Path, store: CheckpointStore) -> None:
    (declared / "checkpoint-2000").symlink_to("/etc")
    assert adopt.find_complete(declared)[0].step == 1000
    (declared / "checkpoint-1000" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(UnsupportedObjectError, match="passwd was refused"):
        adopt.adopt(declared, store.directory, STAMP)
    assert store.committed() == []
