"""The collector of garbage looks at everything only when nothing is to be decided."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tidegate_scheduler.heap import FULL_INTERVAL_SECONDS, Heap


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class Knot:
    """An object that only the collector can free."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Knot.alive += 1

    def __del__(self) -> None:
        Knot.alive -= 1


def test_what_is_old_is_looked_at_once_an_hour_in_an_idle_moment() -> None:
    heap = Heap(0.0)
    Knot()
    gc.collect(0)
    assert Knot.alive == 0, "what is young is collected as ever"
    assert not heap.idle(FULL_INTERVAL_SECONDS - 1)
    kept = Knot()
    gc.collect(1)
    del kept
    gc.collect(1)
    assert Knot.alive == 1, "it has become old"
    assert heap.idle(FULL_INTERVAL_SECONDS)
    assert Knot.alive == 0
    assert not heap.idle(FULL_INTERVAL_SECONDS + 1)


def test_what_was_there_at_the_start_is_set_aside() -> None:
    before = gc.get_freeze_count()
    Heap(0.0)
    assert gc.get_freeze_count() > before + 1000
