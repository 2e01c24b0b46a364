"""Threads that compute, threads that wait for the disk: order, bounds, and nobody is at work after a failure."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest
from tidegate.checkpoint import crew as crews
from tidegate.checkpoint.crew import HANDED_MAX, Crew

CREWS = [Crew(1), Crew(2), Crew(4)]


@pytest.mark.parametrize("crew", CREWS, ids=lambda crew: str(crew.size))
def test_results_are_in_order_and_every_task_was_done(crew: Crew) -> None:
    written: list[int] = []

    def make(item: int) -> tuple[int, Callable[[], None] | None]:
        return item * 2, (lambda: written.append(item)) if item % 3 else None

    assert crew.store(make, range(100)) == [item * 2 for item in range(100)]
    assert sorted(written) == [item for item in range(100) if item % 3]
    assert crew.fetch(lambda item: item + 1, lambda item, value: (item, value), range(100)) == [
        (item, item + 1) for item in range(100)
    ]
    assert crew.store(make, []) == []
    assert crew.fetch(lambda item: item, lambda item, value: value, []) == []


class Busy:
    """How many are at work now, and were at once at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


def test_what_waits_for_the_disk_is_bounded() -> None:
    waiting, ready = Busy(), Busy()

    def make(item: int) -> tuple[None, Callable[[], None]]:
        waiting.__enter__()

        def task() -> None:
            time.sleep(0.002)
            waiting.__exit__()

        return None, task

    crew = Crew(4)
    crew.store(make, range(60))
    assert waiting.most <= HANDED_MAX + crew.size
    assert waiting.now == 0

    def use(item: int, value: int) -> None:
        time.sleep(0.002)
        ready.__exit__()

    crew.fetch(lambda item: ready.__enter__() or item, use, range(60))
    assert HANDED_MAX // 2 <= ready.most <= HANDED_MAX + crew.size
    assert ready.now == 0


@pytest.mark.parametrize("crew", CREWS, ids=lambda crew: str(crew.size))
@pytest.mark.parametrize("where", ["first", "then"])
def test_the_first_failure_is_raised_when_nobody_is_at_work_any_more(crew: Crew, where: str) -> None:
    busy, begun = Busy(), []

    def first(item: int) -> int:
        with busy:
            begun.append(item)
            time.sleep(0.001)
            if where == "first" and item == 20:
                raise OSError(f"{item} failed")
        return item

    def then(item: int) -> None:
        with busy:
            time.sleep(0.001)
            if where == "then" and item == 20:
                raise OSError(f"{item} failed")

    with pytest.raises(OSError, match="20 failed"):
        crew.store(lambda item: (first(item), lambda: then(item)), range(200))
    assert busy.now == 0
    with pytest.raises(OSError, match="20 failed"):
        crew.fetch(first, lambda item, value: then(value), range(200))
    assert busy.now == 0
    assert len(begun) < 2 * (20 + HANDED_MAX + 10), "nothing more was begun"
    assert crew.map(lambda item: item, range(9)) == list(range(9)), "it works on"


@pytest.mark.parametrize("way", ["map", "store", "fetch"])
def test_an_interruption_is_raised_when_nobody_is_at_work_any_more(way: str) -> None:
    busy = Busy()

    def slow(item: int) -> int:
        with busy:
            time.sleep(0.2)
        return item

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    ways: dict[str, Callable[[Crew], object]] = {
        "map": lambda crew: crew.map(slow, range(40)),
        "store": lambda crew: crew.store(lambda item: (item, lambda: slow(item) and None), range(40)),
        "fetch": lambda crew: crew.fetch(slow, lambda item, value: value, range(40)),
    }
    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            ways[way](Crew(4))
        assert busy.now == 0
    finally:
        signal.signal(signal.SIGALRM, old)


@pytest.mark.timeout(60)
def test_the_main_thread_can_be_interrupted_at_any_moment() -> None:
    """Signals come between any two steps: nobody is left at work, and nobody waits for what was never begun."""
    crew, busy, chance = Crew(4), Busy(), random.Random(7)

    def quick(item: int) -> int:
        with busy:
            return item

    ways: list[Callable[[], object]] = [
        lambda: crew.map(quick, range(300)),
        lambda: crew.store(lambda item: (item, lambda: quick(item) and None), range(300)),
        lambda: crew.fetch(quick, lambda item, value: quick(item), range(300)),
    ]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def run(way: Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.003))
        way()
        time.sleep(1)

    for way in ways:
        way()
    old = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # what is raised in a callback of the collector, and the test's own libraries have some, goes nowhere
    try:
        for number in range(1500):
            with pytest.raises(KeyboardInterrupt):
                run(ways[number % 3])
            assert busy.now == 0
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, old)
    assert crew.map(lambda item: item, range(9)) == list(range(9)), "it works on"


def test_two_at_once_do_not_wait_for_each_others_end() -> None:
    crew, ended = Crew(4), []

    def run(name: str, count: int) -> None:
        crew.fetch(lambda item: time.sleep(0.01), lambda item, value: None, range(count))
        ended.append(name)

    threads = [threading.Thread(target=run, args=given) for given in (("long", 200), ("short", 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == ["short", "long"]


def test_a_crew_works_after_a_fork_and_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(4)
    assert crew.fetch(lambda item: item, lambda item, value: value, range(20)) == list(range(20))
    child = os.fork()
    if child == 0:
        right = crew.fetch(lambda item: item, lambda item, value: value, range(20)) == list(range(20))
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(crews, "_start_thread", refuse)
    alone, written = Crew(4), []
    alone.store(lambda item: (item, lambda: written.append(item)), range(20))
    assert written == list(range(20))
