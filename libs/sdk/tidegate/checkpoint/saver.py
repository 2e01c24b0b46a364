"""The background thread that makes saves durable, and the ways its errors reach the training loop.

A failed write is never a success: it is raised by the save's own `wait`, else by the next save, else at exit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, List, Optional, Union

from tidegate.checkpoint import grace
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.gathering import Meeting
from tidegate.checkpoint.grace import Budget
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.nodepart import Spread
from tidegate.checkpoint.occasions import Occasions
from tidegate.checkpoint.root import Stamp
from tidegate.checkpoint.snapshot import Borrowed, Snapshot
from tidegate.checkpoint.store import CheckpointStore, Committed
from tidegate.checkpoint.writing import Kept
from tidegate.errors import SaveFailedError, TidegateError

SAVES_IN_FLIGHT_MAX = 2
"""One being written and one waiting; a third save waits for the first. Each holds a copy of its layers."""
MEASURED_BYTES_MIN = 16 << 20
"""A save of less says how long its fsyncs take, not how fast the disk is."""
SPREAD_FRACTION = 0.5
"""Of the time before a deadline, for storing what is to be brought to a tier and joined with other nodes' parts."""
ARENAS_IDLE_MAX = 2
"""Beside the copy that the next save is compared with: so saves under way never wait for new memory."""

_log = logging.getLogger("tidegate.checkpoint")


@dataclass(frozen=True)
class Done:
    """A save that is durable."""

    committed: Committed
    copy_ms: int
    write_ms: int


class PendingSave:
    """A save under way; `wait` for it, or go on and let the job report its failure."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._event = threading.Event()
        self._done: Optional[Done] = None
        self._error: Optional[BaseException] = None
        self._raised = False
        self._lock = threading.Lock()
        self._stored_bytes = 0
        self._total_bytes = 0

    @property
    def progress(self) -> float:
        """Return which part of it is stored, from 0 to 1; it is durable when `done` says so."""
        if self._done is not None:
            return 1.0
        return self._stored_bytes / self._total_bytes if self._total_bytes else 0.0

    @property
    def done(self) -> bool:
        """Return whether it has ended, durable or failed."""
        return self._event.is_set()

    @property
    def unseen_error(self) -> Optional[BaseException]:
        """Return its failure if nobody was told of it yet."""
        return None if self._raised else self._error

    def wait(self, timeout_seconds: Optional[float] = None) -> Checkpoint:
        """Return the durable checkpoint; raises SaveFailedError when the write failed, or after the timeout."""
        if not self._event.wait(timeout_seconds):
            raise SaveFailedError(f"the save at step {self.step} was not durable after {timeout_seconds} s")
        if self._error is not None:
            self._raised = True
            raise SaveFailedError(f"the checkpoint at step {self.step} was not written: {self._error}") from self._error
        assert self._done is not None
        return Checkpoint(self._done.committed)

    def _on_stored(self, size: int) -> None:
        with self._lock:
            self._stored_bytes += size

    def _end(self, done: Optional[Done], error: Optional[BaseException]) -> None:
        self._done, self._error = done, error
        self._event.set()


@dataclass(frozen=True)
class _Work:
    pending: PendingSave
    snapshot: Snapshot
    stamp: Stamp
    copy_ms: int
    ends_at: Optional[float]
    meeting: Optional[Meeting]
    spread: Optional[Spread]


@dataclass(frozen=True)
class _Refusal:
    """Nothing of a save could be copied: the ranks that `meeting` names wait for this one."""

    step: int
    stamp: Stamp
    why: str
    meeting: Optional[Meeting]
    spread: Optional[Spread]


class Saver:
    """Writes saves one after the other, in a thread that starts with the first one."""

    def __init__(
        self,
        store: CheckpointStore,
        on_saved: Callable[[Done], None],
        on_failed: Callable[[int, str], None],
        occasions: Optional[Occasions] = None,
    ) -> None:
        self._store = store
        self._occasions = occasions or Occasions()
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._condition = threading.Condition()
        self._queue: Deque[Union[_Work, _Refusal]] = deque()
        self._unfinished: List[PendingSave] = []
        self._failed: List[PendingSave] = []
        self._thread: Optional[threading.Thread] = None
        self._arenas = Arenas(ARENAS_IDLE_MAX)
        self._kept: Optional[Kept] = None
        self._bytes_per_second: Optional[float] = None

    def save(
        self,
        step: int,
        layers: Dict[str, Any],
        stamp: Stamp,
        *,
        seconds_left: Optional[float] = None,
        together: bool = False,
        wait: bool = False,
    ) -> PendingSave:
        """Copy layers by name and hand them to the thread; waits first while SAVES_IN_FLIGHT_MAX are under way.

        With `wait` it returns when the save has ended, well or not; then nothing has to be copied before it is stored.
        Where there are only `seconds_left`, the checkpoint holds the layers that could be stored in time. `together`
        with every other rank, which saves as well, it is one checkpoint of all.
        """
        if seconds_left is not None and together and self._occasions.is_spread:
            seconds_left *= SPREAD_FRACTION
        ends_at = None if seconds_left is None else grace.within(seconds_left).ends_at
        pending = PendingSave(step)
        with self._condition:
            while len(self._unfinished) >= SAVES_IN_FLIGHT_MAX:
                self._condition.wait()
            self._unfinished.append(pending)
        # Counted also where this rank's layers are refused: else it would never meet the others again.
        meeting, spread = self._occasions.next(step, stamp) if together else (None, None)
        started = time.monotonic()
        try:
            snapshot = snapshots.take(layers, self._arenas, borrow=wait)
            if not together:
                snapshots.refuse_shards(snapshot)
        except BaseException as error:
            self._refused(pending, _Refusal(step, stamp, f"{type(error).__name__}: {error}", meeting, spread))
            raise
        pending._total_bytes = snapshot.bytes
        copy_ms = int((time.monotonic() - started) * 1000)
        with self._condition:
            self._hand_over(_Work(pending, snapshot, stamp, copy_ms, ends_at, meeting, spread))
        if snapshot.borrowed is not None:
            _await(pending, snapshot.borrowed)
        return pending

    def _hand_over(self, work: Union[_Work, _Refusal]) -> None:
        """Give work to the thread, with the condition held."""
        self._queue.append(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tidegate-saver", daemon=True)
            self._thread.start()
        self._condition.notify_all()

    def _refused(self, pending: PendingSave, refusal: _Refusal) -> None:
        """Nothing was copied: the other ranks, if there are any, hear of it from the thread."""
        with self._condition:
            self._unfinished.remove(pending)
            self._condition.notify_all()
            if refusal.meeting is not None:
                self._hand_over(refusal)

    def raise_failure(self) -> None:
        """Raise the first failure nobody was told of."""
        with self._condition:
            failed, self._failed = self._failed, []
        for pending in failed:
            if pending.unseen_error is not None:
                pending.wait(0)

    def wait(self) -> None:
        """Wait until no save is under way, then raise the first failure nobody was told of."""
        with self._condition:
            while self._unfinished:
                self._condition.wait()
        self.raise_failure()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue:
                    self._condition.wait()
                work = self._queue.popleft()
            if isinstance(work, _Refusal):
                self._tell_others(work)
                continue
            self._write(work)
            with self._condition:
                self._unfinished.remove(work.pending)
                self._condition.notify_all()
            del work  # it may hold what somebody gave to be saved

    def _tell_others(self, refusal: _Refusal) -> None:
        assert refusal.meeting is not None, "somebody is to be told"
        occasion = Occasion(refusal.step, refusal.stamp, None)
        try:
            self._store.refuse_part(occasion, refusal.meeting, refusal.why, refusal.spread)
        except SaveFailedError as told:
            _log.info("the other ranks know that this one saved nothing at step %d: %s", refusal.step, told)
        except (OSError, TidegateError) as error:
            _log.error("the other ranks could not be told that this one saved nothing: %s", error)

    def _write(self, work: _Work) -> None:
        started = time.monotonic()
        try:
            committed = self._committed(work, started)
        except BaseException as error:  # noqa: BLE001 - kept, and raised in the thread that trains
            self._arenas.give_back(work.snapshot.arena)
            self._fail(work.pending, error)
            return
        done = Done(committed, work.copy_ms, int((time.monotonic() - started) * 1000))
        try:
            if work.meeting is None or work.meeting.rank == 0:  # one of several ranks is one checkpoint, told of once
                retain(self._store)
                if work.spread is None:  # else whoever joined it has told of it
                    self._on_saved(done)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(work.pending, error)
        else:
            work.pending._end(done, None)

    def _committed(self, work: _Work, started: float) -> Committed:
        """Write one save durably, and see to it that the memory of what nobody needs any more is used again."""
        before = self._kept
        occasion = Occasion(work.pending.step, work.stamp, before.root_id if before is not None else None)
        budget = None if work.ends_at is None else Budget(work.ends_at, self._bytes_per_second)
        on_stored = work.pending._on_stored
        if work.meeting is not None:
            committed, self._kept = self._store.save_part(
                occasion,
                work.snapshot,
                work.meeting,
                kept=before,
                budget=budget,
                spread=work.spread,
                on_stored=on_stored,
            )
        else:
            committed, self._kept = self._store.save(occasion, work.snapshot, before, on_stored, budget)
        if before is not None:
            self._arenas.give_back(before.snapshot.arena)
        if work.meeting is None and not committed.root.lost:  # else much of the time others were waited for
            self._measure(work.snapshot.bytes, time.monotonic() - started)
        return committed

    def _measure(self, size: int, seconds: float) -> None:
        """Remember how fast layers become durable: what the next save has time for is judged by it."""
        if size >= MEASURED_BYTES_MIN:
            self._bytes_per_second = size / seconds

    def _fail(self, pending: PendingSave, error: BaseException) -> None:
        with self._condition:
            self._failed.append(pending)
        pending._end(None, error)
        self._tell(pending.step, error)

    def _tell(self, step: int, error: BaseException) -> None:
        _log.error("the checkpoint at step %d was not written: %s", step, error)
        try:
            self._on_failed(step, f"{type(error).__name__}: {error}")
        except TidegateError as unreachable:
            _log.warning("the agent could not be told: %s", unreachable)


def _await(pending: PendingSave, borrowed: Borrowed) -> None:
    """Wait until a save has ended. An interruption fails it, unless all was copied by then: its values may change."""
    try:
        pending._event.wait()
    except BaseException:
        borrowed.is_abandoned = True
        raise


def retain(store: CheckpointStore) -> None:
    """Drop what is beyond the ones to keep; that this fails does not make a durable save a failed one."""
    try:
        store.retain()
    except OSError as error:
        _log.warning("old checkpoints were not removed: %s", error)
