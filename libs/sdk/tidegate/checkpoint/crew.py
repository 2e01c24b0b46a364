"""A few threads that hash, compress, write and read chunks side by side; all of that leaves Python's lock alone.

What computes and what waits for the disk are different threads. One group that does both in turn leaves the disk with
nothing to do whenever most of them compute: measured on two cores, 500 MB hashed and written took 0.26 s that way, and
0.23 s with two threads that hash and three that write, where the writing alone takes 0.21 s.
"""

from __future__ import annotations

import os
import queue
import threading
from functools import partial
from typing import Any, Callable, Dict, Generic, List, Optional, Sequence, Tuple, TypeVar

THREADS_MAX = 4
"""Of those that compute and copy."""
DISK_THREADS = 3
"""Fewer leave a disk idle between two requests; more make no difference."""
HANDED_MAX = 8
"""Chunks that wait for the disk, or were read and wait to be looked at: what bounds the memory for them."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")
Task = Callable[[], None]


class _Stop:
    """Says that whoever waits was interrupted: nothing more is to be begun."""

    def __init__(self) -> None:
        self.error: Optional[BaseException] = None

    def set(self, error: BaseException) -> None:
        self.error = self.error or error


class _Errand(Generic[Result]):
    """Work that another thread does once, in the place of one that waits for it."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_handed = self._is_begun = self._is_ended = False
        # Not an Event: whoever is interrupted as it takes the lock of one leaves it locked.
        self._until_ended = threading.Lock()
        self._until_ended.acquire()
        self._result: List[Result] = []
        self._error: Optional[BaseException] = None

    def run(self) -> None:
        with self._lock:
            if self._is_begun:
                return
            self._is_begun = True
        try:
            self._result.append(self._work())
        except BaseException as error:  # noqa: BLE001 - kept, and raised to whoever waits
            self._error = error
        self._is_ended = True
        self._until_ended.release()

    def wait(self, hand: Callable[[Task], None]) -> None:
        """Hand it over, and wait for its end. Called again after an interruption it goes on."""
        if not self._is_handed:
            hand(self.run)
            self._is_handed = True  # an interruption before this hands it over twice; it is done once
        if not self._is_ended:
            self._until_ended.acquire()

    def result(self) -> Result:
        """Return what the work returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]


class _Batch(Generic[Item, Result]):
    def __init__(self, work: Callable[[int, Item], Result], items: Sequence[Item], stop: _Stop) -> None:
        self._work = work
        self._stop = stop
        self._items = items
        self._lock = threading.Lock()
        self._next = 0
        self._running = 0
        self.results: List[Optional[Result]] = [None] * len(items)
        self.error: Optional[BaseException] = None
        self.ended = threading.Event()

    def run(self) -> None:
        """Do items until none is left, or one failed."""
        with self._lock:
            self._running += 1
        while True:
            with self._lock:
                index = self._next
                if index >= len(self._items) or self.error is not None or self._stop.error is not None:
                    break
                self._next += 1
            try:
                self.results[index] = self._work(index, self._items[index])
            except BaseException as error:  # noqa: BLE001 - kept, and raised to whoever waits for the batch
                self.fail(error)
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self.ended.set()

    def fail(self, error: BaseException) -> None:
        """Begin no further item; the first error counts."""
        with self._lock:
            self.error = self.error or error


class _Handed:
    """Tasks of one batch that were handed to the threads of the disk and are not done: a bounded number of them."""

    def __init__(self, hand: Callable[[Task], None]) -> None:
        self._hand = hand
        self._changed = threading.Condition()
        self._count = 0
        self.error: Optional[BaseException] = None

    def add(self, task: Task) -> None:
        """Hand a task over; waits while there are HANDED_MAX. Once one failed, no other is begun."""
        with self._changed:
            while self._count >= HANDED_MAX:
                self._changed.wait()
            self._hand(partial(self._do, task))
            self._count += 1  # an interruption before this leaves one too few: never one that nobody does

    def _do(self, task: Task) -> None:
        error: Optional[BaseException] = None
        try:
            if self.error is None:
                task()
        except BaseException as raised:  # noqa: BLE001 - kept, and raised to whoever waits for the batch
            error = raised
        with self._changed:
            self._count -= 1
            self.error = self.error or error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what a task failed with."""
        if self.error is not None:
            raise self.error

    def drain(self) -> None:
        """Wait until none is left."""
        with self._changed:
            while self._count > 0:
                self._changed.wait()


class _Ahead(Generic[Item, Value]):
    """Items that are read in order by the threads of the disk, a bounded number of them before they are asked for."""

    def __init__(self, hand: Callable[[Task], None], read: Callable[[Item], Value], items: Sequence[Item]) -> None:
        self._hand = hand
        self._read = read
        self._items = items
        self._changed = threading.Condition()
        self._asked = self._handed = self._done = 0
        self._found: Dict[int, Tuple[Optional[Value], Optional[BaseException]]] = {}
        self._is_stopped = False

    def value(self, index: int) -> Value:
        """Return what was read of an item, each once; raises what its reading failed with."""
        with self._changed:
            while self._asked < min(len(self._items), index + HANDED_MAX):
                self._asked += 1
                self._hand(partial(self._do, self._asked - 1))
                self._handed += 1
            while index not in self._found:
                self._changed.wait()
            value, error = self._found.pop(index)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _do(self, number: int) -> None:
        value: Optional[Value] = None
        error: Optional[BaseException] = None
        try:
            if not self._is_stopped:
                value = self._read(self._items[number])
        except BaseException as raised:  # noqa: BLE001 - kept, and raised to whoever asks for this item
            error = raised
        with self._changed:
            self._found[number] = value, error
            self._done += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Read nothing more, and wait until nothing is being read."""
        self._is_stopped = True
        with self._changed:
            while self._done < self._handed:
                self._changed.wait()


class Crew:
    """Threads that start with the first work and end with the process. The caller computes too, unless it is the main
    thread: signals interrupt that one anywhere, also between two steps that belong together, so there it only waits.

    A crew of one is its caller alone, who does one thing after the other.
    """

    def __init__(self, size: Optional[int] = None) -> None:
        self.size = size or min(THREADS_MAX, 2 + _cores())
        self._computing = min(self.size, _cores())
        self._batches: "queue.SimpleQueue[_Batch[Any, Any]]" = queue.SimpleQueue()
        self._tasks: "queue.SimpleQueue[Task]" = queue.SimpleQueue()
        self._errands: "queue.SimpleQueue[Task]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._process = 0
        self._started = self._started_for_disk = self._started_for_main = 0

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> List[Result]:
        """Return `work(item)` for every item, in order; raises the first error, when no thread is at work any more."""
        self._start()
        return self._apart(lambda stop: self._all(lambda index, item: work(item), items, self.size, stop))

    def store(self, make: Callable[[Item], "Tuple[Result, Optional[Task]]"], items: Sequence[Item]) -> List[Result]:
        """Return the first of what `make` returns for every item, in order; the second is a task that waits for the
        disk, done by other threads. Raises the first error, when no thread is at work any more."""
        hand = self._tasks.put if self._start() else _at_once
        return self._apart(lambda stop: self._stored(hand, make, items, stop))

    def _stored(
        self,
        hand: Callable[[Task], None],
        make: Callable[[Item], "Tuple[Result, Optional[Task]]"],
        items: Sequence[Item],
        stop: _Stop,
    ) -> List[Result]:
        handed = _Handed(hand)

        def work(_: int, item: Item) -> Result:
            handed.check()
            result, task = make(item)
            if task is not None:
                handed.add(task)
            return result

        try:
            results = self._all(work, items, self._computing, stop)
        finally:
            handed.drain()
        handed.check()
        return results

    def fetch(
        self, read: Callable[[Item], Value], use: Callable[[Item, Value], Result], items: Sequence[Item]
    ) -> List[Result]:
        """Return `use(item, read(item))` for every item, in order; other threads read, some items ahead. Raises the
        first error, when no thread is at work any more."""
        if not self._start():
            return self._all(lambda index, item: use(item, read(item)), items, self._computing, _Stop())
        return self._apart(lambda stop: self._fetched(read, use, items, stop))

    def _fetched(
        self, read: Callable[[Item], Value], use: Callable[[Item, Value], Result], items: Sequence[Item], stop: _Stop
    ) -> List[Result]:
        ahead = _Ahead(self._tasks.put, read, items)
        try:
            return self._all(lambda index, item: use(item, ahead.value(index)), items, self._computing, stop)
        finally:
            ahead.stop()

    def _apart(self, work: Callable[[_Stop], List[Result]]) -> List[Result]:
        """Do the caller's share: here, or for the main thread in another one, if there are others at all."""
        stop = _Stop()
        if not self._started_for_main or threading.current_thread() is not threading.main_thread():
            return work(stop)
        errand = _Errand(partial(work, stop))
        _finish(lambda: errand.wait(self._errands.put), stop.set)
        return errand.result()

    def _all(
        self, work: Callable[[int, Item], Result], items: Sequence[Item], threads: int, stop: _Stop
    ) -> List[Result]:
        batch: _Batch[Item, Result] = _Batch(work, items, stop)
        for _ in range(min(self._started, threads - 1, len(items) - 1)):
            self._batches.put(batch)
        batch.run()
        batch.ended.wait()
        if (error := batch.error or stop.error) is not None:
            raise error
        return batch.results  # type: ignore[return-value]

    def _start(self) -> bool:
        """Start what is missing; say whether there are threads that wait for the disk."""
        if self.size == 1:
            return False
        with self._lock:
            if self._process != os.getpid():  # threads do not survive a fork
                self._process = os.getpid()
                self._started = self._started_for_disk = self._started_for_main = 0
                self._batches, self._tasks, self._errands = (queue.SimpleQueue() for _ in range(3))
            try:
                if not self._started_for_main:
                    _start_thread(_serve_tasks, self._errands, "tidegate-for-main")
                    self._started_for_main = 1
                while self._started < self.size - 1:
                    _start_thread(_serve, self._batches, "tidegate-chunks")
                    self._started += 1
                while self._started_for_disk < DISK_THREADS:
                    _start_thread(_serve_tasks, self._tasks, "tidegate-disk")
                    self._started_for_disk += 1
            except RuntimeError:
                pass  # the interpreter ends: those that are there do it, or the caller alone
            return self._started_for_disk > 0


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _at_once(task: Task) -> None:
    task()


def _finish(wait: Callable[[], object], on_interrupt: Callable[[BaseException], None]) -> None:
    """Wait to the end, also where the wait is interrupted: threads still use memory that its owner would let go."""
    interrupted: Optional[BaseException] = None
    while True:
        try:
            wait()
            break
        except BaseException as error:  # noqa: BLE001 - raised below
            interrupted = error
            on_interrupt(error)
    if interrupted is not None:
        raise interrupted


def _start_thread(serve: Callable[[Any], None], jobs: Any, name: str) -> None:
    threading.Thread(target=serve, args=(jobs,), name=name, daemon=True).start()


def _serve(batches: "queue.SimpleQueue[_Batch[Any, Any]]") -> None:
    while True:
        batches.get().run()


def _serve_tasks(tasks: "queue.SimpleQueue[Task]") -> None:
    while True:
        tasks.get()()


SHARED = Crew()
"""The one crew of this process: however many saves and restores it does, they share its threads."""
