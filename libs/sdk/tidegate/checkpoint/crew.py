"""A few threads that hash, compress, write and read chunks side by side; all of that leaves Python's lock alone."""

from __future__ import annotations

import os
import queue
import threading
from typing import Callable, Generic, List, Optional, Sequence, TypeVar

THREADS_MAX = 4
"""More do not help: two keep a disk busy while two others hash. On two cores four are faster than three or six."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Batch(Generic[Item, Result]):
    def __init__(self, work: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self._work = work
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
                if index >= len(self._items) or self.error is not None:
                    break
                self._next += 1
            try:
                self.results[index] = self._work(self._items[index])
            except BaseException as error:  # noqa: BLE001 - kept, and raised to whoever waits for the batch
                with self._lock:
                    self.error = self.error or error
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self.ended.set()


class Crew:
    """Threads that start with the first work and end with the process. The caller works too, so none has to start."""

    def __init__(self, size: Optional[int] = None) -> None:
        self.size = size or min(THREADS_MAX, 2 + (os.cpu_count() or 1))
        self._batches: "queue.SimpleQueue[_Batch[object, object]]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._process = 0
        self._started = 0

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> List[Result]:
        """Return `work(item)` for every item, in order; raises the first error, when no thread is at work any more."""
        batch: _Batch[Item, Result] = _Batch(work, items)
        helpers = min(self._start(), len(items) - 1)
        for _ in range(helpers):
            self._batches.put(batch)  # type: ignore[arg-type]
        batch.run()
        batch.ended.wait()
        if batch.error is not None:
            raise batch.error
        return batch.results  # type: ignore[return-value]

    def _start(self) -> int:
        with self._lock:
            if self._process != os.getpid():  # threads do not survive a fork
                self._process, self._started, self._batches = os.getpid(), 0, queue.SimpleQueue()
            while self._started < self.size - 1:
                try:
                    threading.Thread(target=_serve, args=(self._batches,), name="tidegate-chunks", daemon=True).start()
                except RuntimeError:  # the interpreter ends: the caller does all of it
                    break
                self._started += 1
            return self._started


def _serve(batches: "queue.SimpleQueue[_Batch[object, object]]") -> None:
    while True:
        batches.get().run()


SHARED = Crew()
"""The one crew of this process: however many saves and restores it does, they share its threads."""
