"""Committing, finding, keeping and adopting checkpoints."""

import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tidegate import CorruptCheckpointError, SaveFailedError, UnknownLayerError, UnsupportedObjectError, UsageError
from tidegate.checkpoint import adopt, commit, layer
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.saver import Done, Saver
from tidegate.checkpoint.store import CheckpointStore, Committed

STAMP = roots.Stamp("j-1", 1, 0, "learner", 0, 1, 42)


def save(directory: Path, step: int, stamp: roots.Stamp = STAMP, **layers: Any) -> Committed:
    with commit.Temporary(directory, step) as temporary:
        given = layers or {"model": {"w": [step]}}
        entries = tuple(temporary.write_layer(layer.snapshot(name, value)) for name, value in given.items())
        return Committed(*temporary.commit(stamp, entries))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", STAMP)
    store.open()
    return store


def test_a_committed_checkpoint_loads(store: CheckpointStore) -> None:
    done = save(store.directory, 7, model={"w": [1.5]}, state={"rng": (1, 2)})
    checkpoint = Checkpoint(done.root, done.directory)
    assert checkpoint.load() == {"model": {"w": [1.5]}, "state": {"rng": (1, 2)}}
    assert checkpoint.load("state") == {"state": {"rng": (1, 2)}}
    assert done.directory.name.startswith("000000000007-1-")
    assert roots.read_root(done.directory) == done.root


def test_the_root_is_what_other_services_read(store: CheckpointStore) -> None:
    done = save(store.directory, 7)
    document = json.loads((done.directory / "root.json").read_text())
    assert document["format"] == 1
    assert document["id"] == done.root.id
    assert document["layers"][0]["files"] == [
        {"path": "model.layer", "bytes": done.root.bytes, "sha256": done.root.layers[0].sha256}
    ]
    assert (done.directory / "model.layer").stat().st_mode & 0o777 == 0o444


def test_a_layer_that_is_not_there_is_named(store: CheckpointStore) -> None:
    done = save(store.directory, 7)
    checkpoint = Checkpoint(done.root, done.directory)
    with pytest.raises(UnknownLayerError, match="'optimizer' was not saved: this checkpoint holds model"):
        checkpoint.load("optimizer")
    with pytest.raises(UnknownLayerError, match="'weights' is not a layer"):
        checkpoint.load("weights")


@pytest.mark.parametrize("file", ["model.layer", "root.json"])
def test_any_flipped_bit_is_found_and_the_one_before_is_used(
    store: CheckpointStore, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = save(store.directory, 1), save(store.directory, 2)
    path = newer.directory / file
    original = path.read_bytes()
    path.chmod(0o644)
    for position in range(0, len(original), 7):
        damaged = bytearray(original)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        with caplog.at_level(logging.WARNING):
            found = CheckpointStore(store.directory, STAMP).find(None)
        assert found is not None
        assert found.committed.root == older.root
        if file == "model.layer":
            with pytest.raises(CorruptCheckpointError):
                Checkpoint(newer.root, newer.directory).load()
    assert newer.directory.name in caplog.text


@pytest.mark.parametrize("damage", ["truncate", "extend", "remove", "link"])
def test_other_damage_is_found(store: CheckpointStore, damage: str, tmp_path: Path) -> None:
    done = save(store.directory, 2)
    path = done.directory / "model.layer"
    data = path.read_bytes()
    path.unlink()
    if damage == "link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    elif damage != "remove":
        path.write_bytes(data[:-1] if damage == "truncate" else data + b"\0")
    assert store.find(None) is None
    with pytest.raises(CorruptCheckpointError):
        Checkpoint(done.root, done.directory).load()


def test_the_agent_names_the_checkpoint(store: CheckpointStore) -> None:
    first, second, third = (save(store.directory, step) for step in (1, 2, 3))
    found = store.find(second.root.id)
    assert found is not None
    assert found.committed.root == second.root
    (second.directory / "model.layer").unlink()
    found = store.find(second.root.id)
    assert found is not None
    assert found.committed.root == first.root, "newer ones than the named one are not its fall-back"
    assert found.skipped == 1
    assert third.directory.exists()


def test_a_later_attempt_is_newer_even_at_an_earlier_step(store: CheckpointStore) -> None:
    save(store.directory, 9)
    later = save(store.directory, 5, replace(STAMP, attempt=2))
    found = store.find(None)
    assert found is not None
    assert found.committed.root == later.root


def test_a_rank_without_its_own_uses_rank_zero(store: CheckpointStore) -> None:
    done = save(store.directory, 9)
    save(store.directory, 10, replace(STAMP, rank=2))
    found = CheckpointStore(store.directory, replace(STAMP, rank=1)).find(None)
    assert found is not None
    assert found.committed.root == done.root


def test_retention_keeps_the_newest_and_the_one_resumed_from(store: CheckpointStore) -> None:
    resumed = save(store.directory, 1)
    other_rank = save(store.directory, 1, replace(STAMP, rank=1))
    store.find(None)
    rest = [save(store.directory, step) for step in range(2, 8)]
    removed = store.retain()
    assert sorted(removed) == sorted(item.directory.name for item in rest[:3])
    left = {item.root.id for item in store.committed()}
    assert left == {item.root.id for item in [resumed, other_rank, *rest[3:]]}


def test_retention_never_counts_damaged_ones(store: CheckpointStore) -> None:
    good = [save(store.directory, step) for step in (1, 2, 3)]
    for step in (4, 5, 6):
        (save(store.directory, step).directory / "root.json").unlink()
    assert store.retain() == []
    assert [item.root.id for item in store.committed()] == [item.root.id for item in reversed(good)]


def test_only_orphans_are_cleaned(store: CheckpointStore) -> None:
    orphan = store.directory / ".tmp-000000000001-deadbeef"
    orphan.mkdir()
    (orphan / "model.layer").write_bytes(b"half")
    done = save(store.directory, 1)
    with commit.Temporary(store.directory, 2) as temporary:
        store.open()
        assert temporary.path.exists(), "its writer is alive"
        assert not orphan.exists()
    assert not temporary.path.exists()
    assert done.directory.exists()


def test_files_below_layers(store: CheckpointStore) -> None:
    with commit.Temporary(store.directory, 3) as temporary:
        for name in ("model", "optimizer"):
            (temporary.path / name / "deep").mkdir(parents=True)
        (temporary.path / "model" / "deep" / "w.bin").write_bytes(b"w")
        root, directory = temporary.commit(STAMP, temporary.take_directories())
    assert [entry.name for entry in root.layers] == ["model"]
    with Checkpoint(root, directory).as_directory() as found:
        assert (found / "model" / "deep" / "w.bin").read_bytes() == b"w"
    with pytest.raises(UnknownLayerError, match="as_directory"):
        Checkpoint(root, directory).load("model")
    (directory / "model" / "deep" / "w.bin").unlink()
    with pytest.raises(CorruptCheckpointError), Checkpoint(root, directory).as_directory():
        pass


def test_stray_files_and_links_are_refused(store: CheckpointStore) -> None:
    with commit.Temporary(store.directory, 3) as temporary:
        (temporary.path / "weights.bin").write_bytes(b"w")
        with pytest.raises(UnknownLayerError, match=r"'weights\.bin' was refused"):
            temporary.take_directories()
    with commit.Temporary(store.directory, 3) as temporary:
        (temporary.path / "model").mkdir()
        (temporary.path / "model" / "w").symlink_to("/etc/hostname")
        with pytest.raises(UnsupportedObjectError, match="model/w was refused"):
            temporary.take_directories()
    assert store.committed() == []


def test_a_root_of_a_job_is_not_trusted(store: CheckpointStore) -> None:
    done = save(store.directory, 3)
    document = json.loads((done.directory / "root.json").read_text())
    for path in ("../../secret", "/etc/passwd", "optimizer.layer"):
        document["layers"][0]["files"][0]["path"] = path
        with pytest.raises(ValueError, match=r"does not belong|not accepted"):
            roots.decode(forged(document))


def forged(document: dict[str, Any]) -> bytes:
    """Return a root with a proper id over whatever it says."""
    fields = {key: value for key, value in document.items() if key != "id"}
    return json.dumps({**fields, "id": roots._id_of(fields)}).encode()


@pytest.mark.parametrize(
    "data", [b"[]", b"null", b"7", b'"id"', b"[[]]", b'{"id": 1}', b"\xff", b"[" * 100_000, b'{"id": {}, "format": 1}']
)
def test_a_root_that_is_any_json_is_corrupt_and_nothing_else(store: CheckpointStore, data: bytes) -> None:
    done = save(store.directory, 3)
    (done.directory / "root.json").chmod(0o644)
    (done.directory / "root.json").write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="malformed"):
        roots.read_root(done.directory)
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
    document = json.loads((save(store.directory, 3).directory / "root.json").read_text())
    with pytest.raises(ValueError, match=r"is not a (whole number|text)|another shape"):
        roots.decode(forged({**document, field: value}))


@pytest.mark.parametrize(
    "path",
    ["model/a\0b", "model/\udc80", "model//a", "model/./a", "model/" + "x/" * 70 + "y", "model/" + "x" * 1100, 7],
)
def test_no_file_of_a_root_can_have_a_path_that_cannot_be_opened(store: CheckpointStore, path: Any) -> None:
    with commit.Temporary(store.directory, 3) as temporary:
        (temporary.path / "model").mkdir()
        (temporary.path / "model" / "a").write_bytes(b"w")
        _, directory = temporary.commit(STAMP, temporary.take_directories())
    document = json.loads((directory / "root.json").read_text())
    document["layers"][0]["files"][0]["path"] = path
    with pytest.raises(ValueError, match="not accepted"):
        roots.decode(forged(document))


@pytest.mark.parametrize("size", [2**60, 1.0, True])
def test_no_file_of_a_root_has_a_size_that_an_event_cannot_hold(store: CheckpointStore, size: Any) -> None:
    document = json.loads((save(store.directory, 3).directory / "root.json").read_text())
    document["layers"][0]["bytes"] = document["layers"][0]["files"][0]["bytes"] = size
    with pytest.raises(ValueError, match="size"):
        roots.decode(forged(document))


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
    roots.digest(growing, 5_000_001)  # type: ignore[arg-type]
    assert growing.given == 5_000_001


def test_a_directory_without_files_is_no_part_of_a_checkpoint(store: CheckpointStore) -> None:
    with commit.Temporary(store.directory, 3) as temporary:
        (temporary.path / "model" / "empty" / "deep").mkdir(parents=True)
        (temporary.path / "model" / "a").write_bytes(b"w")
        _, directory = temporary.commit(STAMP, temporary.take_directories())
    assert os.listdir(directory / "model") == ["a"]


def test_file_names_that_cannot_be_told_are_refused_when_saved(store: CheckpointStore) -> None:
    with commit.Temporary(store.directory, 3) as temporary:
        (temporary.path / "model").mkdir()
        Path(os.fsdecode(os.fsencode(temporary.path / "model") + b"/\xff")).write_bytes(b"w")
        with pytest.raises(UnsupportedObjectError, match="printable"):
            temporary.take_directories()


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
    snapshots = (layer.snapshot("model", [1]),)
    saver.submit(1, snapshots, STAMP, 0).wait()
    real = os.fsync

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    pending = saver.submit(2, snapshots, STAMP, 0)
    with pytest.raises(SaveFailedError, match="step 2 was not written"):
        saver.wait()
    with pytest.raises(SaveFailedError, match="step 2 was not written"):
        pending.wait()
    saver.wait()
    monkeypatch.setattr(os, "fsync", real)
    saver.submit(3, snapshots, STAMP, 0).wait()
    assert [done.root.step for done in told.saved] == [1, 3]
    assert [step for step, _ in told.failed] == [2]
    assert [item.root.step for item in store.committed()] == [3, 1]
    assert not [name for name in os.listdir(store.directory) if name.startswith(".tmp")]


def test_saves_from_several_threads_all_become_durable(store: CheckpointStore) -> None:
    told = Told()
    saver = Saver(CheckpointStore(store.directory, STAMP, keep=100), told.saved.append, told.on_failed)

    def work(first: int) -> None:
        for step in range(first, first + 5):
            saver.submit(step, (layer.snapshot("model", [step]),), STAMP, 0)

    threads = [threading.Thread(target=work, args=(base,)) for base in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saver.wait()
    assert len(told.saved) == 15
    for item in store.committed():
        roots.verify(item.directory, item.root)
    assert len(store.committed()) == 15


# Crashes -----------------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from pathlib import Path
from tidegate.checkpoint import layer, root as roots
from tidegate.checkpoint.saver import write
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
store = CheckpointStore(directory, stamp, keep=1)
store.open()
step = max((item.root.step for item in store.committed()), default=0) + 1
snapshots = tuple(layer.snapshot(name, {"w": [step] * 1000, "b": bytes(5000)}) for name in ("model", "state"))
for name in ("fsync", "rename", "write", "mkdir", "fchmod", "rmdir", "unlink"):
    guard(name)
done = write(store, step, snapshots, stamp, 0)
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
            assert Checkpoint(item.root, item.directory).load("model")["model"]["w"][0:1] in ([item.root.step], [1])
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
    roots.verify(committed.directory, committed.root)
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
    path = committed.directory / "model" / "checkpoint-1000" / "sub" / "w"
    path.chmod(0o644)
    path.write_bytes(b"checkpoint-1001")
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
    seen: list[Path] = []
    real = commit.Temporary.take_directories

    def looking(self: commit.Temporary) -> Any:
        seen.append(self.path)
        return real(self)

    monkeypatch.setattr(commit.Temporary, "take_directories", looking)
    committed = adopt.adopt(declared, store.directory, STAMP)
    assert committed is not None
    assert [path.parent for path in seen] == [store.directory.parent]
    assert committed.directory.parent == store.directory
    assert [name for name in os.listdir(store.directory.parent) if name.startswith(".tmp")] == []


def test_what_is_put_back_is_read_through_no_link(declared: Path, store: CheckpointStore, tmp_path: Path) -> None:
    committed = adopt.adopt(declared, store.directory, STAMP)
    assert committed is not None
    elsewhere = tmp_path / "elsewhere"
    (committed.directory / "model").rename(elsewhere)
    (committed.directory / "model").symlink_to(elsewhere)
    with pytest.raises(CorruptCheckpointError, match="cannot be read"):
        adopt.materialise(committed, tmp_path / "next")
    assert os.listdir(tmp_path / "next") == []


def test_links_in_a_declared_directory_are_refused(declared: Path, store: CheckpointStore) -> None:
    (declared / "checkpoint-2000").symlink_to("/etc")
    assert adopt.find_complete(declared)[0].step == 1000
    (declared / "checkpoint-1000" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(UnsupportedObjectError, match="passwd was refused"):
        adopt.adopt(declared, store.directory, STAMP)
    assert store.committed() == []
