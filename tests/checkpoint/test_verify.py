"""Reading back what an untrusted job wrote: every kind of damage and trick is found and named."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from tidegate.checkpoint import files, places
from tidegate.checkpoint.manifest import canonical
from tidegate.checkpoint.pack import CHUNK_BYTES, Entry, aligned, encode_index
from tidegate_checkpoint import hot
from tidegate_checkpoint.hot import HotTier, TierUnavailableError
from tidegate_checkpoint.verify import Broken, InterruptedByStopError, Verified, verify
from tidegate_events.events import CheckpointSaved

from tests.checkpoint.saving import LAYERS, Job
from tests.support import stores

PARTS = ["root", *(f"{kind} of {name}" for kind in ("manifest", "pack") for name in LAYERS)]


def part(job: Job, saved: CheckpointSaved, name: str) -> Path:
    """Return the file that a part of a checkpoint lies in."""
    kind, _, layer = name.partition(" of ")
    if kind == "root":
        return job.path(saved)
    if kind == "manifest":
        return stores.manifest_path(job.committed(saved), layer)
    return job.record(saved, layer)[0]


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
    """Let the job forge a root, with a proper id and name, and the agent report that."""
    document = json.loads(job.path(saved).read_bytes())
    del document["id"]
    how(document)
    document["id"] = hashlib.sha256(canonical(document)).hexdigest()
    name = f"{document['step']:012d}-{document['attempt']}-{document['id'][:8]}"
    (job.directory / "roots" / f"{name}.json").write_bytes(canonical(document))
    return job.saved(msgspec.structs.replace(saved.checkpoint, id=document["id"], directory=name, layers=()))


def with_layer(job: Job, saved: CheckpointSaved, how: Callable[[dict[str, Any]], None]) -> CheckpointSaved:
    """Let the job forge the manifest of its first layer, and a root that names it."""
    path = stores.manifest_path(job.committed(saved), saved.checkpoint.layers[0].name)
    document = json.loads(path.read_bytes())
    how(document)
    digest = hashlib.sha256(canonical(document)).hexdigest()
    (path.parent / f"{digest}.json").write_bytes(canonical(document))
    return rewritten(job, saved, lambda root: root["layers"][0].update({"manifest": digest}))


def test_a_whole_checkpoint_verifies(job: Job) -> None:
    saved = job.save(7)
    assert check(job, saved) == Verified(sum(each.size_bytes for each in saved.checkpoint.layers))


def test_a_whole_tree_verifies(job: Job) -> None:
    saved = job.save_tree(7, {"model/a.bin": b"abc", "model/deep/er/b.bin": b"", "state/x": b"1"})
    assert check(job, saved) == Verified(4)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_one_flipped_bit_in_any_part_is_found(job: Job, name: str, where: str) -> None:
    saved = job.save(7)
    path = part(job, saved, name)

    def flip(data: bytes) -> bytes:
        index = {"first": 0, "middle": len(data) // 2, "last": len(data) - 1}[where]
        if name.startswith("pack"):
            offset = job.record(saved, name.partition(" of ")[2])[1]
            index = offset + {"first": 0, "middle": 8, "last": 16}[where]
        return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]

    change(path, flip)
    reason = broken(job, saved).reason
    if name == "root":
        assert reason.code in {"BadRoot", "NotAsReported"}
    else:
        assert reason.code == ("WrongHash" if name.startswith("pack") else "BadLayer")
        assert f"layer {name.partition(' of ')[2]}" in reason.detail


@pytest.mark.parametrize("name", PARTS)
def test_a_file_of_another_length_is_found(job: Job, name: str) -> None:
    saved = job.save(7)
    path = part(job, saved, name)
    change(path, lambda data: data[:-1])
    assert broken(job, saved).reason.code in {"BadRoot", "BadLayer"}
    change(path, lambda data: data + b"ab")
    assert broken(job, saved).reason.code in {"BadRoot", "BadLayer"}


@pytest.mark.parametrize("name", PARTS)
def test_a_missing_file_is_found(job: Job, name: str) -> None:
    saved = job.save(7)
    part(job, saved, name).unlink()
    verdict = broken(job, saved)
    assert verdict.gone == (name == "root")
    assert (
        verdict.reason.code == {"root": "Gone", "manifest": "Unreadable", "pack": "BadLayer"}[name.split(maxsplit=1)[0]]
    )


@pytest.mark.parametrize("name", PARTS)
def test_a_link_is_never_followed(job: Job, name: str, tmp_path: Path) -> None:
    saved = job.save(7)
    # The link leads to the very same bytes: following it would succeed.
    path = part(job, saved, name)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert isinstance(check(job, saved), Broken)


@pytest.mark.parametrize(("place", "code"), [("packs", "BadName"), ("manifests", "BadName"), ("roots", "Gone")])
def test_a_link_among_the_directories_is_never_followed(job: Job, place: str, code: str, tmp_path: Path) -> None:
    saved = job.save(7)
    (job.directory / place).rename(tmp_path / "moved")
    (job.directory / place).symlink_to(tmp_path / "moved")
    assert broken(job, saved).reason.code == code


def test_a_job_directory_that_is_a_link_is_refused(job: Job, tmp_path: Path) -> None:
    saved = job.save(7)
    job.directory.rename(tmp_path / "moved")
    job.directory.symlink_to(tmp_path / "moved")
    assert broken(job, saved).reason.code == "BadName"


@pytest.mark.parametrize("name", PARTS)
def test_a_pipe_cannot_hold_the_service_up(job: Job, name: str) -> None:
    saved = job.save(7)
    path = part(job, saved, name)
    path.unlink()
    os.mkfifo(path)
    assert broken(job, saved).reason.code in {"Unreadable", "BadLayer"}


def test_a_lock_that_is_never_given_back_cannot_hold_the_service_up(job: Job) -> None:
    saved = job.save(7)
    with places.opened(job.directory) as held, places.alone(held) as is_alone:
        assert is_alone
        assert isinstance(check(job, saved), Verified)


def test_what_belongs_to_no_checkpoint_does_not_matter(job: Job) -> None:
    saved = job.save(7)
    (job.directory / "packs" / f"{'0' * 64}.pack").write_bytes(b"no pack")
    (job.directory / "manifests" / "notes").mkdir()
    (job.directory / "extra").write_bytes(b"x")
    assert isinstance(check(job, saved), Verified)


def test_a_reason_is_plain_text(job: Job) -> None:
    saved = job.save_tree(7, {"model/w\u00e9ights": os.urandom(5000)})
    path, offset = job.record(saved, "model")
    change(path, lambda data: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
    reason = broken(job, saved).reason
    assert reason.code == "WrongHash"
    assert "w\\xe9ights" in reason.detail
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
    change(job.path(saved), lambda _: data)
    assert broken(job, saved).reason.code == "BadRoot"


@pytest.mark.parametrize(
    "path", ["../../x", "/etc/passwd", "model/./a", "model//a", "model/a\0b", "model/\ud800", "d/" * 99 + "a"]
)
def test_a_path_that_is_not_plain_is_refused(job: Job, path: str) -> None:
    def forge(document: dict[str, Any]) -> None:
        document["blobs"][0]["path"] = path

    reason = broken(job, with_layer(job, job.save_tree(1, {"model/a": b"abc"}), forge)).reason
    assert reason.code == "BadLayer"
    assert reason.detail.isascii()


def test_one_file_under_one_name_many_times_is_refused(job: Job) -> None:
    def forge(document: dict[str, Any]) -> None:
        document["blobs"] *= 1000

    assert broken(job, with_layer(job, job.save_tree(1, {"model/a": b"abc"}), forge)).reason.code == "BadLayer"


def test_a_chunk_that_is_named_a_million_times_is_read_once(job: Job) -> None:
    saved = job.save_tree(1, {"model/a": os.urandom(CHUNK_BYTES)})
    told = 0

    def forge(document: dict[str, Any]) -> None:
        document["blobs"][0]["chunks"] *= 1_000_000
        document["blobs"][0]["bytes"] *= 1_000_000

    def count() -> bool:
        nonlocal told
        told += 1
        return False

    assert isinstance(verify(HotTier(job.hot_dir), with_layer(job, saved, forge), count), Verified)
    assert told < 10


def test_a_chain_of_bases_that_leads_in_circles_is_refused(job: Job) -> None:
    """Two chunks, each the difference from the other, in an index with a proper hash."""
    saved = job.save_tree(1, {"model/a": os.urandom(5000)})

    def forge(document: dict[str, Any]) -> None:
        document["blobs"][0]["chunks"] = [bytes([1] * 32).hex()]

    entries = [
        Entry(bytes([1] * 32), bytes(32), bytes([2] * 32), 0, 100, 5000, 1, 0, 1),
        Entry(bytes([2] * 32), bytes(32), bytes([1] * 32), 4096, 100, 5000, 1, 0, 1),
    ]
    pack, tail = encode_index("blake3", entries, 8192)
    (job.directory / "packs" / f"{pack}.pack").write_bytes(bytes(8192) + tail)
    reason = broken(job, with_layer(job, saved, forge)).reason
    assert reason.code == "BadLayer"
    assert "does not end" in reason.detail


@pytest.mark.parametrize("compressor", [1, 2])
def test_a_chunk_that_unpacks_to_more_than_it_says_is_refused(job: Job, compressor: int) -> None:
    packed = zlib.compress(bytes(1 << 26)) if compressor == 1 else zstandard.compress(bytes(1 << 26))
    saved = job.save_tree(1, {"model/a": os.urandom(5000)})

    def forge(document: dict[str, Any]) -> None:
        document["blobs"][0]["chunks"] = [bytes([1] * 32).hex()]

    entry = Entry(bytes([1] * 32), bytes(32), None, 0, len(packed), 5000, compressor, 0, 0)
    size = aligned(len(packed))
    pack, tail = encode_index("blake3", [entry], size)
    (job.directory / "packs" / f"{pack}.pack").write_bytes(packed.ljust(size, b"\0") + tail)
    assert broken(job, with_layer(job, saved, forge)).reason.code == "WrongHash"


def test_what_is_too_large_is_refused_before_it_is_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = job.save(7)
    for bound in ("ROOT_BYTES_MAX", "CHECKPOINT_BYTES_MAX"):
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

    monkeypatch.setattr(files, "open_inside", refuse)
    with pytest.raises(TierUnavailableError, match="Too many open files"):
        check(job, saved)


def test_a_stop_ends_the_reading_without_a_verdict(job: Job) -> None:
    with pytest.raises(InterruptedByStopError):
        verify(HotTier(job.hot_dir), job.save(7), lambda: True)


def test_no_descriptor_is_left_open(job: Job, tmp_path: Path) -> None:
    good, bad, gone = job.save(1), job.save(2), job.save(3)
    stores.manifest_path(job.committed(bad), "state").unlink()
    job.remove(gone)
    check(job, good)
    before = len(os.listdir("/proc/self/fd"))
    for saved in (good, bad, gone):
        check(job, saved)
    with pytest.raises(TierUnavailableError):
        verify(HotTier(tmp_path / "unmounted"), good, lambda: False)
    assert len(os.listdir("/proc/self/fd")) == before
