"""Saves before a deadline: what was finished is a checkpoint, and it says what was lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tidegate.checkpoint import grace
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.grace import Budget, OutOfTimeError
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import CheckpointStore, Committed

from tests.support import stores
from tests.support.stores import STAMP

LAYERS: dict[str, Any] = {
    "model": {"w": bytes(range(200)) * 100},
    "optimizer": {"m": bytes(range(100)) * 300},
    "experience": {"seen": bytes(range(50)) * 100},
    "state": {"step": 3},
}


def save(store: CheckpointStore, budget: Budget) -> Committed:
    return store.save(Occasion(1, STAMP), snapshots.take(LAYERS, Arenas(0)), budget=budget)[0]


@pytest.mark.parametrize(
    ("bytes_in_time", "kept"),
    [
        (10**9, ("model", "optimizer", "experience", "state")),
        (25_000, ("model", "experience", "state")),
        (10_000, ("experience", "state")),
        (100, ("state",)),
    ],
)
def test_what_the_measured_rate_allows_is_saved_in_the_order_of_its_worth(
    tmp_path: Path, bytes_in_time: int, kept: tuple[str, ...]
) -> None:
    store = stores.opened(tmp_path)
    hour = 3600.0
    committed = save(store, Budget(time.monotonic() + hour, bytes_in_time / hour))
    assert tuple(layer.name for layer in committed.root.layers) == kept
    assert set(committed.root.lost) == set(LAYERS) - set(kept)
    found = store.find(None)
    assert found is not None
    assert Checkpoint(found.committed).load() == {name: LAYERS[name] for name in kept}
    assert Checkpoint(found.committed).lost == committed.root.lost


def test_a_layer_that_the_deadline_meets_halfway_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def check(self: Budget) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:  # the state is inline, the model is one chunk, the experience is the next
            raise OutOfTimeError("over")

    monkeypatch.setattr(Budget, "check", check)
    committed = save(stores.opened(tmp_path), Budget(time.monotonic() + 3600))
    assert (committed.root.lost, len(committed.root.layers)) == (("optimizer", "experience"), 2)
    assert Checkpoint(committed).load() == {name: LAYERS[name] for name in ("state", "model")}


def test_a_save_without_time_for_anything_fails(tmp_path: Path) -> None:
    store = stores.opened(tmp_path)
    with pytest.raises(OutOfTimeError, match="no layer"):
        save(store, grace.within(0.0))
    assert store.committed() == []
    assert not list(tmp_path.glob(".tmp*"))
