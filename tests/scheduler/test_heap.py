"""The collector of garbage works between passes, and looks at everything only when nothing is to be decided."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from tidegate_scheduler.heap import (
    FULL_INTERVAL_MAX_SECONDS,
    FULL_INTERVAL_SECONDS,
    MIDDLE_COLLECTIONS,
    MIDDLE_COLLECTIONS_MAX,
    YOUNG_OBJECTS,
    Heap,
)


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


def test_and_once_a_day_in_any_where_no_moment_is_idle() -> None:
    heap = Heap(0.0)
    kept = Knot()
    gc.collect(1)
    del kept
    heap.tidy(FULL_INTERVAL_MAX_SECONDS - 1)
    assert Knot.alive == 1, "it has become old"
    heap.tidy(FULL_INTERVAL_MAX_SECONDS)
    assert Knot.alive == 0
    assert not heap.idle(FULL_INTERVAL_MAX_SECONDS + 1), "it was looked at a moment ago"


def test_what_was_of_use_when_everything_was_looked_at_is_collected_the_next_time() -> None:
    heap = Heap(0.0)
    kept = Knot()
    assert heap.idle(FULL_INTERVAL_SECONDS)
    del kept
    assert heap.idle(2 * FULL_INTERVAL_SECONDS)
    assert Knot.alive == 0


def test_what_was_there_at_the_start_is_set_aside() -> None:
    before = gc.get_freeze_count()
    Heap(0.0)
    assert gc.get_freeze_count() > before + 1000


def make(count: int) -> list[list[int]]:
    """Return so many objects that the collector looks at."""
    return [[each] for each in range(count)]


def test_what_is_young_is_collected_between_passes_and_not_within() -> None:
    heap = Heap(0.0)
    heap.tidy(0.0)
    Knot()
    kept = make(10 * YOUNG_OBJECTS)
    assert Knot.alive == 1, "nothing is collected in the middle of a pass"
    heap.tidy(0.0)
    assert Knot.alive == 0
    Knot()
    heap.tidy(0.0)
    assert Knot.alive == 1, "it is not worth it for so few"
    del kept
    gc.collect(0)
    assert Knot.alive == 0


def outlive(heap: Heap, collections: int) -> None:
    """Let there be a knot that outlived so many young collections, and is of no use any more."""
    knot = Knot()
    for _ in range(collections):
        kept = make(2 * YOUNG_OBJECTS)
        heap.tidy(0.0)
        del kept
    assert Knot.alive == 1
    del knot
    heap.tidy(0.0)


def test_what_outlived_some_is_collected_in_an_idle_moment() -> None:
    heap = Heap(0.0)
    outlive(heap, MIDDLE_COLLECTIONS)
    assert Knot.alive == 1
    assert not heap.idle(1.0)
    assert Knot.alive == 0


def test_and_in_any_where_no_moment_is_idle() -> None:
    heap = Heap(0.0)
    outlive(heap, MIDDLE_COLLECTIONS_MAX)
    assert Knot.alive == 0
