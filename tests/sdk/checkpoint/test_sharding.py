"""Checkpoints of several ranks: one root over all, any failure vetoes it, and they load in any number of parts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tidegate import CorruptCheckpointError, SaveFailedError, Shard, UnsupportedObjectError, UsageError
from tidegate.checkpoint import places, sharding
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.gathering import Meeting
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.saver import PendingSave, Saver
from tidegate.checkpoint.store import CheckpointStore, Committed

from tests.support import stores
from tests.support.libraries import needed
from tests.support.stores import STAMP

torch = needed("torch")

WORLD = 3
ROWS = 1100
WHOLE = torch.arange(ROWS * 3, dtype=torch.float32).reshape(ROWS, 3)
MATRIX = np.arange(80 * 70, dtype=np.int16).reshape(80, 70)


def layers(rank: int) -> dict[str, Any]:
    """Return what a rank holds: rows of one tensor, columns of an array, and what all of them have."""
    rows = (rank * 400, min(ROWS, (rank + 1) * 400))
    columns = (rank * 30, min(70, (rank + 1) * 30))
    return {
        "model": {
            "w": Shard(WHOLE[rows[0] : rows[1]], (rows[0], 0), (ROWS, 3)),
            "m": Shard(MATRIX[:, columns[0] : columns[1]], (0, columns[0]), (80, 70)),
            "scale": torch.ones(2000),
            "step": 7,
        },
        "state": {"rank": rank},
    }


def together(work: Callable[[int], Any], ranks: range = range(WORLD)) -> list[Any]:
    """Do the work of each rank in a thread; return what each returned or raised."""
    results: list[Any] = [None] * WORLD

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank)
        except Exception as error:  # noqa: BLE001 - looked at below
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def save(
    directory: Path, rank: int, given: dict[str, Any] | None = None, seconds: float = 60, number: int = 1
) -> Committed:
    stamp = replace(STAMP, rank=rank, world_size=WORLD)
    store = CheckpointStore(directory, stamp)
    meeting = Meeting(sharding.key(7, stamp, number), rank, WORLD, seconds)
    return store.save_part(Occasion(7, stamp), snapshots.take(given or layers(rank), Arenas(0)), meeting)[0]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    stores.opened(tmp_path)
    return tmp_path


def test_all_ranks_make_one_checkpoint_that_loads_whole(directory: Path) -> None:
    found = together(lambda rank: save(directory, rank))
    assert len({item.root.id for item in found}) == 1
    (item,) = stores.opened(directory).committed()
    assert [layer.kind for layer in item.root.layers] == ["sharded", "sharded"]
    loaded = Checkpoint(item).load()
    assert torch.equal(loaded["model"]["w"], WHOLE)
    assert (loaded["model"]["m"] == MATRIX).all()
    assert torch.equal(loaded["model"]["scale"], torch.ones(2000))
    assert (loaded["model"]["step"], loaded["state"]) == (7, {"rank": 0})
    Checkpoint(item).verify()
    assert list((directory / "parts").glob("*.[0-9].json")) == []


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_it_loads_in_any_number_of_parts(directory: Path, count: int) -> None:
    item = together(lambda rank: save(directory, rank))[0]
    parts = [Checkpoint(item).load("model", part=(index, count))["model"] for index in range(count)]
    assert torch.equal(torch.cat([part["w"].data for part in parts]), WHOLE)
    assert (np.concatenate([part["m"].data for part in parts]) == MATRIX).all()
    assert [part["w"].offset[0] for part in parts] == [sum(len(p["w"].data) for p in parts[:i]) for i in range(count)]
    again = together(lambda rank: save(directory, rank, number=2))[0]
    assert again.root.layers[0].layout == item.root.layers[0].layout
    with pytest.raises(UsageError, match="parts count from 0"):
        Checkpoint(item).load("model", part=(count, count))


def test_a_part_may_have_no_rows(directory: Path) -> None:
    whole = {"t": torch.ones(2, 3), "n": np.zeros((1, 4), np.int16)}
    given = [
        {"model": {name: Shard(value[:0] if rank else value, (0, 0), value.shape) for name, value in whole.items()}}
        for rank in range(WORLD)
    ]
    item = together(lambda rank: save(directory, rank, given[rank]))[0]
    parts = [Checkpoint(item).load("model", part=(at, 5))["model"] for at in range(5)]
    assert [tuple(part["t"].data.shape) for part in parts] == [(1, 3), (1, 3), (0, 3), (0, 3), (0, 3)]
    assert [part["n"].data.shape for part in parts] == [(1, 4), (0, 4), (0, 4), (0, 4), (0, 4)]
    assert {(part["t"].data.dtype, part["n"].data.dtype) for part in parts} == {(torch.float32, np.dtype(np.int16))}


def test_a_part_reads_no_shard_of_others(directory: Path) -> None:
    item = together(lambda rank: save(directory, rank))[0]
    with places.opened(directory) as held:
        manifest = json.loads((directory / "manifests" / f"{item.root.layers[0].manifest}.json").read_text())
        third = json.loads((directory / "manifests" / f"{manifest['parts'][2]}.json").read_text())
        chunk = bytes.fromhex(next(blob["chunks"][0] for blob in third["blobs"] if "chunks" in blob))
        located = stores.index_of(held).chain("blake3", chunk)[0]
    path = directory / "packs" / located.pack.name
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[located.entry.offset] ^= 1
    path.write_bytes(data)
    rows = Checkpoint(item).load("model", part=(0, 110))["model"]["w"]
    assert torch.equal(rows.data, WHOLE[:10])
    with pytest.raises(CorruptCheckpointError, match=r"layer model, w: .*damaged"):
        Checkpoint(item).load("model")


def test_any_rank_that_fails_vetoes_the_checkpoint(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sharding.store_layers

    def failing(packer: Any, snapshot: Any, kept: Any = None, budget: Any = None) -> Any:
        if snapshot.layers[1].tree["d"][0][1] == 2:
            raise OSError(28, "No space left on device")
        return real(packer, snapshot, kept, budget)

    monkeypatch.setattr(sharding, "store_layers", failing)
    found = together(lambda rank: save(directory, rank))
    for error in found:
        assert isinstance(error, SaveFailedError)
        assert "rank 2: OSError: [Errno 28] No space left on device" in str(error)
    assert stores.opened(directory).committed() == []


def test_a_rank_that_does_not_come_vetoes_the_checkpoint(directory: Path) -> None:
    found = together(lambda rank: save(directory, rank, seconds=0.5), range(2))
    assert isinstance(found[0], SaveFailedError)
    assert "ranks [2] stored nothing" in str(found[0])
    assert isinstance(found[1], SaveFailedError)
    assert stores.opened(directory).committed() == []


def test_what_a_rank_that_is_gone_left_is_not_taken_for_its_part(directory: Path) -> None:
    stale = directory / "parts" / f"{sharding.key(7, STAMP, 1)}.2.json"
    stale.parent.mkdir()
    stale.write_text(json.dumps({"layers": {"model": "0" * 64, "state": "0" * 64}, "nonce": "old"}))
    found = together(lambda rank: save(directory, rank, seconds=0.5), range(2))
    assert all(isinstance(error, SaveFailedError) for error in found[:2])
    assert all(isinstance(item, Committed) for item in together(lambda rank: save(directory, rank)))


def test_ranks_that_save_different_layers_are_refused(directory: Path) -> None:
    found = together(lambda rank: save(directory, rank, {"model": {"a": 1}} if rank else None))
    assert all(isinstance(error, SaveFailedError) and "different layers" in str(error) for error in found)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([(0, 10), (0, 10), (0, 10)], "hold 30 numbers of 100"),
        ([(0, 40), (40, 70), (60, 90)], "overlap"),
        ([(0, 40), (40, 80), (60, 80)], "overlap"),
        ([(0, 40), (40, 80), (81, 100)], "hold 99 numbers of 100"),
    ],
)
def test_shards_that_do_not_make_up_the_whole_veto_the_checkpoint(
    directory: Path, rows: list[tuple[int, int]], why: str
) -> None:
    def work(rank: int) -> Committed:
        low, high = rows[rank]
        return save(directory, rank, {"model": {"w": Shard(torch.zeros(high - low), (low,), (100,))}})

    for error in together(work):
        assert isinstance(error, UsageError | SaveFailedError)
        assert "model.w was refused" in str(error)
        assert why in str(error)
    assert stores.opened(directory).committed() == []


def test_shards_of_other_wholes_or_of_none_on_rank_0_veto_it(directory: Path) -> None:
    shapes = [(90,), (100,), (100,)]
    other = together(lambda rank: save(directory, rank, {"model": {"w": Shard(torch.zeros(30), (0,), shapes[rank])}}))
    assert all("the whole is (90,) and (100,)" in str(error) for error in other)
    given = [{"model": {"w": 1}}, *({"model": {"w": Shard(torch.zeros(5), (at,), (10,))}} for at in (0, 5))]
    assert all(
        "rank 0 has no shard" in str(error) for error in together(lambda rank: save(directory, rank, given[rank]))
    )
    assert stores.opened(directory).committed() == []


def test_a_shard_outside_its_whole_or_saved_alone_is_refused(directory: Path) -> None:
    with pytest.raises(UsageError, match="does not lie in"):
        snapshots.take({"model": Shard(torch.zeros(10), (95,), (100,))}, Arenas(0))
    alone = {"deep": [Shard(torch.zeros(10), (0,), (10,))]}
    with pytest.raises(UsageError, match=r"model\.deep\.0 was refused.*together=True"):
        stores.save(directory, 1, model=alone)
    told: list[Any] = []
    saver = Saver(stores.opened(directory), told.append, lambda step, error: told.append(error))
    for _ in range(3):  # each gives its place in the queue back
        with pytest.raises(UsageError, match="together=True"):
            saver.save(1, {"model": alone}, STAMP)
    saver.save(2, {"model": {"n": 1}}, STAMP).wait()


def test_what_little_changed_on_each_rank_is_stored_as_a_difference(directory: Path) -> None:
    rows, each = 3 * 40_000, 40_000
    chance = np.random.default_rng(3)
    whole = (torch.from_numpy(chance.standard_normal(rows)) * 0.02).to(torch.bfloat16)
    sizes: list[int] = []

    def held(rank: int, step: int) -> dict[str, Any]:
        mine = whole[rank * each : (rank + 1) * each].clone()
        mine[::50] += 0.01 * step
        return {"model": {"w": Shard(mine, (rank * each,), (rows,))}}

    savers = [
        Saver(
            CheckpointStore(directory, replace(STAMP, rank=rank, world_size=WORLD), keep=9),
            lambda done: None,
            lambda step, error: None,
        )
        for rank in range(WORLD)
    ]
    for step in range(3):
        stamps = [replace(STAMP, rank=rank, world_size=WORLD) for rank in range(WORLD)]
        done = together(
            lambda rank, step=step, stamps=stamps: (
                savers[rank].save(step, held(rank, step), stamps[rank], together=True).wait()
            )
        )
        assert len({checkpoint.id for checkpoint in done}) == 1
        sizes.append(sum(path.stat().st_size for path in (directory / "packs").iterdir()))
        expected = torch.cat([held(rank, step)["model"]["w"].data for rank in range(WORLD)])
        assert torch.equal(done[0].load("model")["model"]["w"], expected)
    assert sizes[0] > 2 * rows
    assert sizes[1] - sizes[0] < rows // 2, "a difference, on each of the ranks"
    assert sizes[2] - sizes[1] < rows // 2


def test_a_job_saves_together_through_its_thread(directory: Path) -> None:
    told: list[Any] = []

    def work(rank: int) -> PendingSave:
        stamp = replace(STAMP, rank=rank, world_size=WORLD)
        saver = Saver(CheckpointStore(directory, stamp), told.append, lambda step, error: told.append(error))
        for step in (7, 8):
            pending = saver.save(step, layers(rank), stamp, together=True)
        pending.wait()
        return pending

    assert all(pending.done for pending in together(work))
    assert [done.committed.root.step for done in told] == [7, 8], "rank 0 tells, and nobody else"
    assert len(list((directory / "parts").iterdir())) == 1, "what was said about the last save"


@pytest.mark.parametrize("refused", [0, 1])
def test_what_one_rank_is_refused_the_others_are_told_at_once_and_they_meet_again(
    directory: Path, refused: int
) -> None:
    savers = []
    for rank in range(2):
        stamp = replace(STAMP, rank=rank, world_size=2)
        saver = Saver(stores.opened(directory, stamp), lambda done: None, lambda step, why: None)
        savers.append((saver, stamp))
    with pytest.raises(UnsupportedObjectError):
        savers[refused][0].save(1, {"model": {"w": object()}}, savers[refused][1], together=True)
    saver, stamp = savers[1 - refused]
    with pytest.raises(SaveFailedError, match=rf"rank {refused}: UnsupportedObjectError: .*model"):
        saver.save(1, {"model": {"w": 1}}, stamp, together=True).wait(30)
    pending = [saver.save(2, {"model": {"w": 2}}, stamp, together=True) for saver, stamp in savers]
    first, second = (each.wait(30) for each in pending)
    assert first.id == second.id
