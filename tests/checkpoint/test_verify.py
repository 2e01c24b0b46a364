"""Reading back what an untrusted job wrote: every kind of damage and trick is found and named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate.checkpoint import root as roots
from tidegate_checkpoint import hot
from tidegate_checkpoint.hot import HotTier, TierUnavailableError
from tidegate_checkpoint.verify import Broken, InterruptedByStopError, Verified, verify
from tidegate_events.events import CheckpointSaved

from tests.checkpoint.saving import LAYERS, Job

FILES = [*(f"{name}.layer" for name in LAYERS), "root.json"]


def check(job: Job, saved: CheckpointSaved) -> Verified | Broken:
    return verify(HotTier(job.hot_dir), saved, lambda: False)


def broken(job: Job, saved: CheckpointSaved) -> Broken:
    verdict = check(job, saved)
    assert isinstance(verdict, Broken)
    assert str(job.hot_dir) not in verdict.reason.detail
    return verdict


def change(path: Path, how: Callable[[bytes], bytes]) -> None:
    os.chmod(path, 0o600)
    path.write_bytes(how(path.read_bytes()))


def rewritten(job: Job, saved: CheckpointSaved, how: Callable[[dict[str, Any]], None]) -> CheckpointSaved:
    """Let the job forge root.json, with a proper id, and the agent report that."""
    path = job.path(saved) / roots.ROOT_FILE
    document = json.loads(path.read_bytes())
    del document["id"]
    how(document)
    document["id"] = roots._id_of(document)
    change(path, lambda _: roots._canonical(document))
    return job.saved(msgspec.structs.replace(saved.checkpoint, id=document["id"], layers=()))


def test_a_whole_checkpoint_verifies(job: Job) -> None:
    saved = job.save(7)
    assert check(job, saved) == Verified(sum(each.size_bytes for each in saved.checkpoint.layers))


def test_a_whole_tree_verifies(job: Job) -> None:
    saved = job.save_tree(7, {"model/a.bin": b"abc", "model/deep/er/b.bin": b"", "state/x": b"1"})
    assert check(job, saved) == Verified(4)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_one_flipped_bit_in_any_file_is_found(job: Job, name: str, where: str) -> None:
    saved = job.save(7)

    def flip(data: bytes) -> bytes:
        index = {"first": 0, "middle": len(data) // 2, "last": len(data) - 1}[where]
        return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]

    change(job.path(saved) / name, flip)
    reason = broken(job, saved).reason
    if name == "root.json":
        assert reason.code in {"BadRoot", "NotAsReported"}
    else:
        assert reason.code == "WrongHash"
        assert name in reason.detail
        assert f"layer {name.removesuffix('.layer')}" in reason.detail


@pytest.mark.parametrize("name", FILES[:-1])
def test_a_file_of_another_length_is_found(job: Job, name: str) -> None:
    saved = job.save(7)
    size = (job.path(saved) / name).stat().st_size
    change(job.path(saved) / name, lambda data: data[:-1])
    reason = broken(job, saved).reason
    assert (reason.code, reason.numbers) == ("WrongSize", {"found": size - 1, "expected": size})
    change(job.path(saved) / name, lambda data: data + b"ab")
    assert broken(job, saved).reason.numbers == {"found": size + 1, "expected": size}


def test_a_truncated_root_is_found(job: Job) -> None:
    saved = job.save(7)
    change(job.path(saved) / "root.json", lambda data: data[: len(data) // 2])
    assert broken(job, saved).reason.code == "BadRoot"


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(job: Job, name: str) -> None:
    saved = job.save(7)
    (job.path(saved) / name).unlink()
    verdict = broken(job, saved)
    assert (verdict.reason.code, verdict.gone) == ("Unreadable", False)
    assert name in verdict.reason.detail


@pytest.mark.parametrize("name", FILES)
def test_a_link_is_never_followed(job: Job, name: str, tmp_path: Path) -> None:
    saved = job.save(7)
    # The link leads to the very same bytes: following it would succeed.
    path = job.path(saved) / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    reason = broken(job, saved).reason
    assert reason.code == "Unreadable"
    assert "link" in reason.detail


def test_a_link_among_the_directories_is_never_followed(job: Job, tmp_path: Path) -> None:
    saved = job.save_tree(7, {"model/a/b": b"abc"})
    directory = job.path(saved) / "model" / "a"
    directory.rename(tmp_path / "a")
    directory.symlink_to(tmp_path / "a")
    assert isinstance(check(job, saved), Broken)


def test_a_checkpoint_that_is_a_link_is_not_there(job: Job, tmp_path: Path) -> None:
    saved = job.save(7)
    job.path(saved).rename(tmp_path / "moved")
    job.path(saved).symlink_to(tmp_path / "moved")
    assert broken(job, saved).gone


def test_a_job_directory_that_is_a_link_is_refused(job: Job, tmp_path: Path) -> None:
    saved = job.save(7)
    job.directory.rename(tmp_path / "moved")
    job.directory.symlink_to(tmp_path / "moved")
    assert broken(job, saved).reason.code == "BadName"


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_cannot_hold_the_service_up(job: Job, name: str) -> None:
    saved = job.save(7)
    (job.path(saved) / name).unlink()
    os.mkfifo(job.path(saved) / name)
    reason = broken(job, saved).reason
    assert reason.code == "Unreadable"
    assert "not a regular file" in reason.detail


def test_a_directory_in_a_files_place_is_found(job: Job) -> None:
    saved = job.save(7)
    (job.path(saved) / "model.layer").unlink()
    (job.path(saved) / "model.layer").mkdir()
    assert broken(job, saved).reason.code == "UndeclaredFile"


@pytest.mark.parametrize("name", ["extra.layer", ".hidden", "model/extra", "experience/x"])
def test_what_no_hash_covers_is_refused(job: Job, name: str) -> None:
    saved = job.save_tree(7, {"model/a": b"abc"})
    extra = job.path(saved) / name
    extra.parent.mkdir(exist_ok=True)
    extra.write_bytes(b"more")
    reason = broken(job, saved).reason
    assert reason.code == "UndeclaredFile"
    assert name.split("/", maxsplit=1)[0] in reason.detail


def test_a_name_that_is_no_text_is_reported_as_text(job: Job) -> None:
    saved = job.save_tree(7, {"model/a": b"abc"})
    Path(os.fsdecode(os.fsencode(job.path(saved)) + b"/model/\xff\n\xe9")).write_bytes(b"")
    reason = broken(job, saved).reason
    assert reason.code == "UndeclaredFile"
    assert msgspec.json.decode(msgspec.json.encode(reason)) is not None
    assert reason.detail.isascii()


def test_another_checkpoint_in_its_place_is_found(job: Job) -> None:
    first, second = job.save(7), job.save(7, model={"w": [1]})
    job.remove(first)
    job.path(second).rename(job.path(first))
    assert broken(job, first).reason.code == "NotAsReported"


@pytest.mark.parametrize(
    ("name", "value"),
    [("job", "j-2"), ("attempt", 2), ("rank", 1), ("step", 8)],
)
def test_a_root_that_speaks_of_something_else_is_refused(job: Job, name: str, value: Any) -> None:
    saved = rewritten(job, job.save(7), lambda document: document.update({name: value}))
    assert broken(job, saved).reason.code == "NotAsReported"


def test_a_report_that_differs_in_a_layer_is_refused(job: Job) -> None:
    saved = job.save(7)
    fewer = msgspec.structs.replace(saved.checkpoint, layers=saved.checkpoint.layers[:-1])
    assert broken(job, job.saved(fewer)).reason.code == "NotAsReported"
    wrong = msgspec.structs.replace(saved.checkpoint.layers[0], size_bytes=1)
    other = msgspec.structs.replace(saved.checkpoint, layers=(wrong, *saved.checkpoint.layers[1:]))
    assert broken(job, job.saved(other)).reason.code == "NotAsReported"


@pytest.mark.parametrize("data", [b"", b"5", b'"x"', b"null", b"[]", b"{}", b"[" * 200_000, b'{"id": "x"}', b"\xff"])
def test_a_root_that_is_none_is_refused(job: Job, data: bytes) -> None:
    saved = job.save(7)
    change(job.path(saved) / "root.json", lambda _: data)
    assert broken(job, saved).reason.code == "BadRoot"


@pytest.mark.parametrize(
    "path",
    ["model/../../x", "/etc/passwd", "model/./a", "model//a", "model/a\0b", "model/\ud800", "model/" + "d/" * 99 + "a"],
)
def test_a_path_that_is_not_plain_is_refused(job: Job, path: str) -> None:
    def forge(document: dict[str, Any]) -> None:
        entry = document["layers"][0]["files"][0]
        entry["path"] = path
        document["layers"][0]["sha256"] = roots.tree_digest((roots.FileEntry(**entry),))

    saved = rewritten(job, job.save_tree(7, {"model/a": b"abc"}), forge)
    reason = broken(job, saved).reason
    assert reason.code == "BadRoot"
    assert reason.detail.isascii()


def test_one_file_under_many_names_is_refused(job: Job) -> None:
    def forge(document: dict[str, Any]) -> None:
        layer = document["layers"][0]
        layer["files"] *= 1000
        layer["bytes"] *= 1000
        layer["sha256"] = roots.tree_digest(tuple(roots.FileEntry(**entry) for entry in layer["files"]))

    assert broken(job, rewritten(job, job.save_tree(7, {"model/a": b"abc"}), forge)).reason.code == "BadRoot"


def test_what_is_too_large_is_refused_before_it_is_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = job.save(7)
    for bound in ("ROOT_BYTES_MAX", "FILES_MAX", "CHECKPOINT_BYTES_MAX"):
        with monkeypatch.context() as patched:
            patched.setattr(hot, bound, 3)
            assert broken(job, saved).reason.code == "TooLarge"


@pytest.mark.parametrize(
    "name", ["../000000000007-1-abcdefgh", ".", "", ".tmp-000000000007-abcdefgh", "000000000007-1-abcdefgh\n", "a/b"]
)
def test_a_name_that_could_lead_elsewhere_is_refused(job: Job, name: str) -> None:
    saved = job.save(7)
    forged = job.saved(msgspec.structs.replace(saved.checkpoint, directory=name))
    assert broken(job, forged).reason.code == "BadName"


@pytest.mark.parametrize("field", ["tenant", "job"])
@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/", "a\0b"])
def test_a_job_or_tenant_that_could_lead_elsewhere_is_refused(job: Job, field: str, name: str) -> None:
    saved = msgspec.structs.replace(job.save(7), **{field: name})
    assert broken(job, saved).reason.code == "BadName"


def test_a_removed_checkpoint_is_gone_and_not_corrupt(job: Job) -> None:
    saved = job.save(7)
    job.remove(saved)
    assert broken(job, saved).gone
    job.wipe()
    assert broken(job, saved).gone


def test_one_that_is_removed_while_it_is_read_is_gone(job: Job) -> None:
    saved = job.save(7)

    def remove_first() -> bool:
        if job.path(saved).exists():
            job.remove(saved)
        return False

    verdict = verify(HotTier(job.hot_dir), saved, remove_first)
    assert isinstance(verdict, Broken)
    assert verdict.gone


def test_a_tier_that_is_away_gives_no_verdict(job: Job, tmp_path: Path) -> None:
    saved = job.save(7)
    with pytest.raises(TierUnavailableError):
        verify(HotTier(tmp_path / "unmounted"), saved, lambda: False)


def test_a_shortage_of_descriptors_gives_no_verdict(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = job.save(7)

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(roots, "open_inside", refuse)
    with pytest.raises(TierUnavailableError, match="Too many open files"):
        check(job, saved)


def test_a_stop_ends_the_reading_without_a_verdict(job: Job) -> None:
    with pytest.raises(InterruptedByStopError):
        verify(HotTier(job.hot_dir), job.save(7), lambda: True)


def test_no_descriptor_is_left_open(job: Job, tmp_path: Path) -> None:
    good, bad, gone = job.save(1), job.save(2), job.save(3)
    (job.path(bad) / "model.layer").unlink()
    job.remove(gone)
    check(job, good)
    before = len(os.listdir("/proc/self/fd"))
    for saved in (good, bad, gone):
        check(job, saved)
    with pytest.raises(TierUnavailableError):
        verify(HotTier(tmp_path / "unmounted"), good, lambda: False)
    assert len(os.listdir("/proc/self/fd")) == before
