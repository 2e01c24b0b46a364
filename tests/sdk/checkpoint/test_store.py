"""Committing, finding, keeping and adopting checkpoints."""

import contextlib
import hashlib
import json
import logging
import os
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tidegate import CorruptCheckpointError, SaveFailedError, UnknownLayerError, UnsupportedObjectError, UsageError
from tidegate.checkpoint import adopt, commit, files, places, trees
from tidegate.checkpoint import manifest as manifests
from tidegate.checkpoint import root as roots
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.directory import DirectorySave
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.pack import CHUNK_BYTES
from tidegate.checkpoint.saver import Done, Saver
from tidegate.checkpoint.store import CheckpointStore, Committed

from tests.support import stores
from tests.support.stores import STAMP, save

RAW = random.Random(5).randbytes(5120)


def verify(committed: Committed) -> None:
    Checkpoint(committed).verify()


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", STAMP)
    store.open()
    return store


def test_a_committed_checkpoint_loads(store: CheckpointStore) -> None:
    done = save(store.directory, 7, model={"w": [1.5], "raw": RAW}, state={"rng": (1, 2)})
    checkpoint = Checkpoint(done)
    assert checkpoint.load() == {"model": {"w": [1.5], "raw": RAW}, "state": {"rng": (1, 2)}}
    assert checkpoint.load("state") == {"state": {"rng": (1, 2)}}
    assert done.name.startswith("000000000007-1-")
    assert [item.root for item in store.committed()] == [done.root]


def test_the_root_is_what_other_services_read(store: CheckpointStore) -> None:
    done = save(store.directory, 7, model={"raw": RAW})
    document = json.loads(stores.root_path(done).read_text())
    assert (document["format"], document["id"]) == (2, done.root.id)
    (layer,) = document["layers"]
    assert (layer["name"], layer["kind"]) == ("model", "values")
    assert layer["packs"] == [path.stem for path in stores.pack_paths(done)]
    for path in stores.parts(done):
        assert path.stat().st_mode & 0o777 == 0o444
    assert stores.manifest_path(done, "model").exists()


def test_a_layer_that_is_not_there_is_named(store: CheckpointStore) -> None:
    done = save(store.directory, 7)
    checkpoint = Checkpoint(done)
    with pytest.raises(UnknownLayerError, match="'optimizer' was not saved: this checkpoint holds model"):
        checkpoint.load("optimizer")
    with pytest.raises(UnknownLayerError, match="'weights' is not a layer"):
        checkpoint.load("weights")


@pytest.mark.parametrize("part", range(3))
def test_any_flipped_bit_is_found_and_the_one_before_is_used(
    store: CheckpointStore, part: int, caplog: pytest.LogCaptureFixture
) -> None:
    older = save(store.directory, 1)
    newer = save(store.directory, 2, model={"raw": RAW})
    path = stores.parts(newer)[part]
    original = path.read_bytes()
    path.chmod(0o644)
    used = range(0, len(RAW), 97) if part == 2 else range(0, len(original), 7)
    for position in used:
        damaged = bytearray(original)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            found = stores.opened(store.directory).find(None)
        assert found is not None
        assert found.committed.root == older.root
        if part:
            with pytest.raises(CorruptCheckpointError):
                Checkpoint(newer).load()
    assert newer.name in caplog.text


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("damage", ["truncate", "extend", "remove", "link"])
def test_other_damage_is_found(store: CheckpointStore, damage: str, part: int, tmp_path: Path) -> None:
    done = save(store.directory, 2, model={"raw": RAW})
    path = stores.parts(done)[part]
    data = path.read_bytes()
    path.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    elif damage != "remove":
        path.write_bytes(data[:-1] if damage == "truncate" else data + b"\0")
    assert stores.opened(store.directory).find(None) is None
    if part:
        with pytest.raises(CorruptCheckpointError):
            Checkpoint(done).load()


def test_a_damaged_chunk_is_written_again_and_not_pointed_to(store: CheckpointStore) -> None:
    done = save(store.directory, 2, model={"raw": RAW})
    (path,) = stores.pack_paths(done)
    path.chmod(0o644)
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    assert store.find(None) is None
    again, _ = store.save(commit.Occasion(3, STAMP), snapshots.take({"model": {"raw": RAW}}, Arenas(0)))
    assert again.root.layers[0].manifest == done.root.layers[0].manifest
    assert Checkpoint(again).load() == {"model": {"raw": RAW}}


def test_the_agent_names_the_checkpoint(store: CheckpointStore) -> None:
    first, second, third = (save(store.directory, step) for step in (1, 2, 3))
    found = store.find(second.root.id)
    assert found is not None
    assert found.committed.root == second.root
    stores.manifest_path(second, "model").unlink()
    found = store.find(second.root.id)
    assert found is not None
    assert found.committed.root == first.root, "newer ones than the named one are not its fall-back"
    assert found.skipped == 1
    assert stores.root_path(third).exists()


def test_a_later_attempt_is_newer_even_at_an_earlier_step(store: CheckpointStore) -> None:
    save(store.directory, 9)
    later = save(store.directory, 5, replace(STAMP, attempt=2))
    found = store.find(None)
    assert found is not None
    assert found.committed.root == later.root


def test_a_rank_without_its_own_uses_rank_zero(store: CheckpointStore) -> None:
    done = save(store.directory, 9)
    save(store.directory, 10, replace(STAMP, rank=2))
    found = stores.opened(store.directory, replace(STAMP, rank=1)).find(None)
    assert found is not None
    assert found.committed.root == done.root


def test_retention_keeps_the_newest_and_the_one_resumed_from(store: CheckpointStore) -> None:
    resumed = save(store.directory, 1)
    other_rank = save(store.directory, 1, replace(STAMP, rank=1))
    store.find(None)
    rest = [save(store.directory, step) for step in range(2, 8)]
    removed = store.retain()
    assert sorted(removed) == sorted(item.name for item in rest[:3])
    left = {item.root.id for item in store.committed()}
    assert left == {item.root.id for item in [resumed, other_rank, *rest[3:]]}


def test_retention_never_counts_damaged_ones(store: CheckpointStore) -> None:
    good = [save(store.directory, step) for step in (1, 2, 3)]
    for step in (4, 5, 6):
        stores.root_path(save(store.directory, step)).unlink()
    assert store.retain() == []
    assert [item.root.id for item in store.committed()] == [item.root.id for item in reversed(good)]


def test_what_no_checkpoint_needs_is_removed_with_it_and_nothing_else(store: CheckpointStore) -> None:
    shared = b"shared" * 2000
    all_saved = [save(store.directory, step, model={"a": shared, "b": bytes([step]) * 9000}) for step in range(1, 7)]
    store.retain()
    left = {path for item in all_saved[3:] for path in stores.parts(item)}
    there = {path for name in ("packs", "manifests", "roots") for path in (store.directory / name).iterdir()}
    assert there == left
    for item in all_saved[3:]:
        assert Checkpoint(item).load()["model"]["a"] == shared


def test_nothing_is_removed_while_somebody_saves(store: CheckpointStore) -> None:
    for step in range(1, 7):
        save(store.directory, step)
    with stores.opened(store.directory).in_use():
        assert store.retain() == []
    assert len(store.retain()) == 3


def test_only_orphans_are_cleaned(store: CheckpointStore) -> None:
    orphan = store.directory / ".tmp-deadbeef"
    orphan.mkdir()
    (orphan / "half").write_bytes(b"half")
    (store.directory / ".tmp-file").write_bytes(b"half")
    done = save(store.directory, 1)
    assert not orphan.exists()
    assert not (store.directory / ".tmp-file").exists()
    with DirectorySave(store) as saving, places.opened(store.directory) as held, files.Temporary(held.staging) as file:
        store.open()
        assert saving.path.exists(), "its writer is alive"
        assert (store.directory / file.name).exists(), "its writer is alive"
    assert not list(store.directory.glob(".tmp*"))
    verify(done)


def test_files_below_layers(store: CheckpointStore) -> None:
    content = {"model/deep/w.bin": b"w" * 5000, "model/deep/small": b"s", "model/empty": b""}
    done = stores.save_tree(store.directory, 3, content)
    assert [entry.name for entry in done.root.layers] == ["model"]
    with Checkpoint(done).as_directory() as found:
        assert {path: (found / path).read_bytes() for path in content} == content
    assert not found.exists()
    with pytest.raises(UnknownLayerError, match="as_directory"):
        Checkpoint(done).load("model")
    stores.pack_paths(done)[0].unlink()
    with pytest.raises(CorruptCheckpointError), Checkpoint(done).as_directory():
        pass


def test_a_file_of_several_windows_and_half_a_chunk(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "WINDOW_BYTES", CHUNK_BYTES)
    content = os.urandom(2 * CHUNK_BYTES + 17)
    done = stores.save_tree(store.directory, 3, {"model/w": content, "model/v": content[:CHUNK_BYTES]})
    with Checkpoint(done).as_directory() as found:
        assert (found / "model" / "w").read_bytes() == content
        assert (found / "model" / "v").read_bytes() == content[:CHUNK_BYTES]


def test_stray_files_and_links_are_refused(store: CheckpointStore) -> None:
    with DirectorySave(store) as saving:
        (saving.path / "weights.bin").write_bytes(b"w")
        with pytest.raises(UnknownLayerError, match=r"'weights\.bin' was refused"):
            saving.commit(3, STAMP)
    with DirectorySave(store) as saving:
        (saving.path / "model" / "w").symlink_to("/etc/hostname")
        with pytest.raises(UnsupportedObjectError, match="w was refused"):
            saving.commit(3, STAMP)
    assert store.committed() == []


def test_a_root_of_a_job_is_not_trusted(store: CheckpointStore) -> None:
    document = json.loads(stores.root_path(save(store.directory, 3)).read_text())
    for field in ("manifest", "layout", "parent"):
        layer = {**document["layers"][0], field: "../../secret"}
        with pytest.raises(ValueError, match="is no hash"):
            roots.decode(forged({**document, "layers": [layer]}))
    with pytest.raises(ValueError, match="is no hash"):
        roots.decode(forged({**document, "layers": [{**document["layers"][0], "packs": ["../x"]}]}))


def forged(document: dict[str, Any]) -> bytes:
    """Return a root with a proper id over whatever it says."""
    fields = {key: value for key, value in document.items() if key != "id"}
    return json.dumps({**fields, "id": hashlib.sha256(manifests.canonical(fields)).hexdigest()}).encode()


@pytest.mark.parametrize(
    "data", [b"[]", b"null", b"7", b'"id"', b"[[]]", b'{"id": 1}', b"\xff", b"[" * 100_000, b'{"id": {}, "format": 2}']
)
def test_a_root_that_is_any_json_is_corrupt_and_nothing_else(store: CheckpointStore, data: bytes) -> None:
    done = save(store.directory, 3)
    stores.root_path(done).chmod(0o644)
    stores.root_path(done).write_bytes(data)
    with places.opened(store.directory) as held, pytest.raises(CorruptCheckpointError, match="malformed"):
        roots.read(held.roots, done.name)
    assert store.committed() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", True),
        ("rank", -1),
        ("replica", 10**30),
        ("created_ns", 2**63),
        ("seed", "1"),
        ("job", "a\udcff"),
        ("job", ["j"]),
        ("phase", ""),
        ("phase", {}),
        ("component", "x" * 300),
        ("adopted", ""),
        ("adopted", "a\0b"),
        ("adopted", 7),
        ("layers", [7]),
        ("layers", {"model": 1}),
    ],
)
def test_no_field_of_a_root_can_be_what_an_event_or_a_file_name_cannot(
    store: CheckpointStore, field: str, value: Any
) -> None:
    document = json.loads(stores.root_path(save(store.directory, 3)).read_text())
    with pytest.raises(ValueError, match=r"is not a (whole number|text)|another shape"):
        roots.decode(forged({**document, field: value}))


@pytest.mark.parametrize(
    "path",
    ["a\0b", "\udc80", "b//a", "b/./a", "../a", "/a", "", "x/" * 70 + "y", "x" * 1100, 7],
)
def test_no_file_of_a_manifest_can_have_a_path_that_cannot_be_opened(store: CheckpointStore, path: Any) -> None:
    document = manifest_of(stores.save_tree(store.directory, 3, {"model/a": b"w"}))
    document["blobs"][0]["path"] = path
    with pytest.raises(ValueError, match="not accepted"):
        manifests.decode(json.dumps(document).encode())


def manifest_of(committed: Committed) -> Any:
    return json.loads(stores.manifest_path(committed, "model").read_text())


@pytest.mark.parametrize("size", [2**60, 1.0, True, 2])
def test_no_blob_of_a_manifest_has_another_size_than_its_bytes(store: CheckpointStore, size: Any) -> None:
    document = manifest_of(stores.save_tree(store.directory, 3, {"model/a": b"w"}))
    document["blobs"][0]["bytes"] = size
    with pytest.raises(ValueError, match="size"):
        manifests.decode(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000, b'{"format":2,"kind":"values"}'])
def test_a_manifest_that_is_any_json_is_malformed_and_nothing_else(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says, nothing else is raised
        manifests.decode(data)


class Growing:
    """A file that somebody appends to for as long as it is read."""

    def __init__(self) -> None:
        self.given = 0

    def read(self, size: int) -> bytes:
        self.given += size
        assert self.given < 100 << 20, "read without a bound"
        return b"x" * size


def test_a_file_that_grows_is_not_read_for_ever() -> None:
    growing = Growing()
    assert sum(len(block) for block in files.blocks(growing, 5_000_001)) == 5_000_001  # type: ignore[arg-type]
    assert growing.given == 5_000_001


def test_a_directory_without_files_is_no_part_of_a_checkpoint(store: CheckpointStore) -> None:
    with DirectorySave(store) as saving:
        (saving.path / "model" / "empty" / "deep").mkdir(parents=True)
        (saving.path / "model" / "a").write_bytes(b"w")
        done = saving.commit(3, STAMP)
    assert done is not None
    with Checkpoint(done.committed).as_directory() as found:
        assert os.listdir(found / "model") == ["a"]


def test_file_names_that_cannot_be_told_are_refused_when_saved(store: CheckpointStore) -> None:
    with DirectorySave(store) as saving:
        Path(os.fsdecode(os.fsencode(saving.path / "model") + b"/\xff")).write_bytes(b"w")
        with pytest.raises(UnsupportedObjectError, match="printable"):
            saving.commit(3, STAMP)


# The thread that writes --------------------------------------------------------------------------------------------


class Told:
    def __init__(self) -> None:
        self.saved: list[Done] = []
        self.failed: list[tuple[int, str]] = []

    def on_failed(self, step: int, error: str) -> None:
        self.failed.append((step, error))


def test_a_failed_write_is_raised_once_and_never_a_success(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    saver = Saver(store, told.saved.append, told.on_failed)
    saver.save(1, {"model": [1]}, STAMP).wait()
    real = os.fsync

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    pending = saver.save(2, {"model": [1]}, STAMP)
    with pytest.raises(SaveFailedError, match="step 2 was not written"):
        saver.wait()
    with pytest.raises(SaveFailedError, match="step 2 was not written"):
        pending.wait()
    saver.wait()
    monkeypatch.setattr(os, "fsync", real)
    saver.save(3, {"model": [1]}, STAMP).wait()
    assert [done.committed.root.step for done in told.saved] == [1, 3]
    assert [step for step, _ in told.failed] == [2]
    assert [item.root.step for item in store.committed()] == [3, 1]
    assert not [name for name in os.listdir(store.directory) if name.startswith(".tmp")]


def test_saves_from_several_threads_all_become_durable(store: CheckpointStore) -> None:
    told = Told()
    saver = Saver(CheckpointStore(store.directory, STAMP, keep=100), told.saved.append, told.on_failed)

    def work(first: int) -> None:
        for step in range(first, first + 5):
            saver.save(step, {"model": [step]}, STAMP)

    threads = [threading.Thread(target=work, args=(base,)) for base in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saver.wait()
    assert len(told.saved) == 15
    for item in store.committed():
        verify(item)
    assert len(store.committed()) == 15


def test_memory_is_used_again_and_never_by_two_saves(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where saving or telling fails: each save gives back what it took once."""
    told = Told()
    tells = iter([None, OSError("the agent is away"), None, None, None])

    def tell(done: Done) -> None:
        told.saved.append(done)
        if (error := next(tells)) is not None:
            raise error

    saver = Saver(store, tell, told.on_failed)
    arenas = set()
    for step in range(1, 6):
        pending = saver.save(step, {"model": {"w": bytes([step]) * 9000}}, STAMP)
        with contextlib.suppress(SaveFailedError):
            pending.wait()
        assert saver._kept is not None
        arenas.add(saver._kept.snapshot.arena.address)
        assert all(idle is not saver._kept.snapshot.arena for idle in saver._arenas._idle)
    assert len(arenas) == 2
    for item in store.committed():
        assert Checkpoint(item).load()["model"]["w"] == bytes([item.root.step]) * 9000


# Crashes -----------------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from pathlib import Path
from tidegate.checkpoint import root as roots, snapshot
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.crew import Crew
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.store import CheckpointStore
directory, fatal, before = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "before"
count = 0
def guard(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global count
        count += 1
        if count == fatal and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(os, name, call)
stamp = roots.Stamp("j-1", 1, 0, "learner", 0, 1, 42)
store = CheckpointStore(directory, stamp, keep=1, crew=Crew(1))
store.open()
step = max((item.root.step for item in store.committed()), default=0) + 1
given = {name: {"w": [step] * 1000, "b": bytes([step]) * 5000} for name in ("model", "state")}
copied = snapshot.take(given, Arenas(0))
for name in ("fsync", "rename", "link", "write", "pwrite", "mkdir", "fchmod", "rmdir", "unlink"):
    guard(name)
store.save(Occasion(step, stamp), copied)
store.retain()
out = b"durable %d" % step
fatal = 0
os.write(1, out)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_kill_at_every_system_call_of_a_save_leaves_no_half_checkpoint(store: CheckpointStore, when: str) -> None:
    newest = save(store.directory, 1).root.step
    killed = 0
    for fatal in range(1, 200):
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(store.directory), str(fatal), when], capture_output=True, check=False
        )
        assert child.returncode in (0, -9), child.stderr.decode()
        fresh = CheckpointStore(store.directory, STAMP)
        for item in fresh.committed():
            assert Checkpoint(item).load("model")["model"]["w"][0:1] in ([item.root.step], [1])
        found = fresh.find(None)
        assert found is not None, "the checkpoint that was durable before is gone"
        assert found.skipped == 0
        assert found.committed.root.step >= newest
        newest = found.committed.root.step
        if child.stdout:
            assert newest == int(child.stdout.split()[1])
        if child.returncode == 0:
            break
        killed += 1
    assert killed > 20, "the loop must have walked through a whole save"
    fresh.open()
    assert not [name for name in os.listdir(store.directory) if name.startswith(".tmp")]


# Jobs that do not use the SDK --------------------------------------------------------------------------------------


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
    verify(committed)
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
