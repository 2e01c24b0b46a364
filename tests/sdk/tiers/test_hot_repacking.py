"""A node's own store is repacked beside the job that saves into it, and every checkpoint stays whole."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tidegate.checkpoint import commit, nodepart, places, retention
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore, Committed
from tidegate.errors import CheckpointError, CorruptCheckpointError
from tidegate.tiers import repacking
from tidegate.tiers.repacking import Repacked

from tests.sdk.tiers.moved import JOB, TENANT, Node
from tests.support.stores import STAMP

FROZEN = os.urandom(50_000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repacking, "DEAD_BYTES_MIN", 10_000)


def value(seed: int, **more: Any) -> dict[str, Any]:
    """Return layers of which a part stays the same."""
    return {"model": {"frozen": FROZEN, "w": os.urandom(200_000), **more}, "state": {"step": seed}}


def repacked(node: Node) -> Repacked | None:
    with node.tiers.hot_store(TENANT, JOB) as held:
        return repacking.repack_hot(held)


def drop(node: Node, committed: Committed) -> None:
    """Let a checkpoint go, as the job's retention does."""
    with places.opened(node.store) as held:
        commit.remove_root(held, committed.name)
        retention.collect(held)


def packs(node: Node) -> set[str]:
    return {path.stem for path in (node.store / "packs").iterdir()}


def whole(node: Node, *given: Committed) -> None:
    for committed in given:
        Checkpoint(Committed(committed.root, node.store)).verify()


def mostly_dead(node: Node) -> tuple[str, Committed]:
    """Return a pack of which little is needed, and the checkpoint that needs that."""
    first, second = node.save(1, **value(1)), node.save(2, **value(2))
    old = next(iter({pack for layer in first.root.layers for pack in layer.packs}))
    drop(node, first)
    assert old in packs(node)
    return old, second


def test_what_lives_is_written_again_and_the_rest_is_freed(node: Node, elsewhere: Node) -> None:
    old, second = mostly_dead(node)
    before = sum(path.stat().st_size for path in (node.store / "packs").iterdir())
    done = repacked(node)
    assert done is not None
    assert (done.replaced, len(done.made)) == ([old], 1)
    assert old not in packs(node)
    after = sum(path.stat().st_size for path in (node.store / "packs").iterdir())
    assert before - after == done.freed_bytes > 190_000
    whole(node, second)
    assert repacked(node) == Repacked([], [], 0), "once"
    third = node.save(3, **value(3))
    assert len(packs(node)) == 3, "what did not change is not written again"
    whole(node, second, third)
    node.promote(second)
    elsewhere.fetch(second.name)
    assert elsewhere.find().committed.name == second.name
    with node.tiers.hot_store(TENANT, JOB) as held:
        assert retention.collect(held) == []


def test_nothing_is_written_while_somebody_saves_or_restores(node: Node) -> None:
    old, second = mostly_dead(node)
    before = packs(node)
    with places.opened(node.store) as held, places.in_use(held):
        assert repacked(node) is None
    assert packs(node) == before
    done = repacked(node)
    assert done is not None
    assert done.replaced == [old]
    whole(node, second)


def between(monkeypatch: pytest.MonkeyPatch, what: Callable[[], Any]) -> None:
    """Have something happen when the new packs are there and the old ones too."""
    real = repacking.repack

    def happening(tier: Any, staging: int) -> Repacked | None:
        done = real(tier, staging)
        what()
        return done

    monkeypatch.setattr(repacking, "repack", happening)


def test_a_save_that_needs_more_of_the_old_pack_keeps_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    again = os.urandom(60_000)
    first, second = node.save(1, **value(1, once=again)), node.save(2, **value(2))
    drop(node, first)
    saved: list[Committed] = []
    between(monkeypatch, lambda: saved.append(node.save(3, **value(3, once=again))))
    assert repacked(node) is None
    assert {pack for layer in first.root.layers for pack in layer.packs} <= packs(node)
    whole(node, second, *saved)


def test_a_job_that_collects_in_between_loses_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    old, second = mostly_dead(node)
    before = packs(node)

    def removes_the_new() -> None:
        for name in packs(node) - before:
            (node.store / "packs" / f"{name}.pack").unlink()

    between(monkeypatch, removes_the_new)
    assert repacked(node) is None
    assert old in packs(node)
    whole(node, second)


def test_who_begins_to_restore_in_between_keeps_the_old_pack_until_the_next_pass(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, second = mostly_dead(node)
    with places.opened(node.store) as held:
        using = places.in_use(held)
        between(monkeypatch, using.__enter__)
        assert repacked(node) is None
        assert old in packs(node)
        whole(node, second)
        using.__exit__(None, None, None)
    monkeypatch.undo()
    monkeypatch.setattr(repacking, "DEAD_BYTES_MIN", 10_000)
    for _ in range(2):
        repacked(node)
    with places.opened(node.store) as held:
        retention.collect(held)  # the job's own, where the new pack was looked at first
    whole(node, second)
    assert len(packs(node)) == 2


def test_a_process_killed_before_the_old_pack_goes_loses_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    old, second = mostly_dead(node)

    def dies() -> None:
        raise KeyboardInterrupt

    between(monkeypatch, dies)
    with pytest.raises(KeyboardInterrupt):
        repacked(node)
    assert old in packs(node)
    whole(node, second)


def test_a_damaged_chunk_is_not_written_again(node: Node) -> None:
    old, _ = mostly_dead(node)
    path = node.store / "packs" / f"{old}.pack"
    data = bytearray(path.read_bytes())
    data[:-8192] = bytes(len(data) - 8192)  # all records, not the index
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        repacked(node)
    assert path.exists()


def test_the_part_of_a_checkpoint_of_several_nodes_is_needed(node: Node) -> None:
    first = node.save(1, **value(1))
    with places.opened(node.store) as held:
        nodepart.put(held, nodepart.NODE_PARTS, first.root)
    second = node.save(2, **value(2))
    drop(node, first)
    assert repacked(node) == Repacked([], [], 0)
    whole(node, second, first)


def slow(step: int) -> bytes:
    """Return what changes with every eighth step: it outlives the rest of the pack in which it was written."""
    return random.Random(step // 8).randbytes(40_000)


@pytest.mark.timeout(120)
def test_saves_restores_and_repacking_race(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.save(0, **value(0, slow=slow(0)))
    ends = time.monotonic() + 6
    failures: list[BaseException] = []
    counts = {"saved": 0, "restored": 0, "repacked": 0}

    def until_the_end(work: Callable[[], None]) -> None:
        while time.monotonic() < ends and not failures:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - looked at below
                failures.append(error)

    def save() -> None:
        counts["saved"] += 1
        store = CheckpointStore(node.store, replace(STAMP), keep=2)
        node.save(counts["saved"], **value(counts["saved"], slow=slow(counts["saved"])))
        store.retain()
        time.sleep(0.02)

    def restore() -> None:
        store = CheckpointStore(node.store, replace(STAMP))

        def use(committed: Committed) -> None:
            assert Checkpoint(committed).load("model")["model"]["slow"] == slow(committed.root.step)

        found = store.find(None, use)
        assert found is not None
        assert found.skipped == 0, found.why
        counts["restored"] += 1
        time.sleep(0.02)

    def repack() -> None:
        try:
            done = repacked(node)
        except CheckpointError:
            return  # a root went while it was read: nothing was removed
        counts["repacked"] += len(done.replaced) if done else 0
        time.sleep(0.002)

    threads = [threading.Thread(target=until_the_end, args=(work,)) for work in (save, restore, repack)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert min(counts.values()) > 0, counts
    for committed in CheckpointStore(node.store, STAMP).committed():
        whole(node, committed)
