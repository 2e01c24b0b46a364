"""Committing, finding and keeping checkpoints."""

import json
import logging
import os
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from tidegate import CorruptCheckpointError, UnknownLayerError, UnsupportedObjectError
from tidegate.checkpoint import commit, files, places, trees
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.directory import DirectorySave
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.pack import CHUNK_BYTES
from tidegate.checkpoint.store import CheckpointStore, Committed

from tests.support import stores
from tests.support.stores import STAMP, save

RAW = random.Random(5).randbytes(5120)


def verify(committed: Committed) -> None:
    Checkpoint(committed).verify()


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


@pytest.mark.parametrize("hold", [places.alone, places.in_use], ids=["alone", "shared"])
def test_a_process_forked_while_the_lock_is_held_does_not_go_on_holding_it(
    store: CheckpointStore,
    hold: Callable[[places.Places], AbstractContextManager[object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "LOCK_SECONDS_MAX", 1.0)
    stores.save(store.directory, 1)
    with places.opened(store.directory) as held:
        ready, release = os.pipe(), os.pipe()
        with hold(held):
            child = os.fork()
            if child == 0:
                os.close(release[1])
                os.write(ready[1], b"x")
                os.read(release[0], 1)  # until the parent is done
                os._exit(0)
            os.read(ready[0], 1)
        try:
            stores.save(store.directory, 2)
            with places.alone(held) as is_alone:
                assert is_alone
        finally:
            for end in (*ready, *release):
                os.close(end)
            os.waitpid(child, 0)


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
