"""The job's half of a hand-back: the lease of a phase is recalled, and leaving the phase in time is the answer."""

from __future__ import annotations

import logging
import threading
import time
from typing import Callable, Optional

_log = logging.getLogger("tidegate.recall")


class Recall:
    """Thread-safe. A recall is known by its deadline: what is said of it again, after a reconnect, is the same one.

    The callback has a thread of its own, so it may take its time, and may save: the one that hears the agent goes on.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._deadline_ns = 0
        self._answered_ns = 0
        self._called_ns = 0
        self._callback: Optional[Callable[[float], object]] = None
        self._thread: Optional[threading.Thread] = None
        self._closed = False

    def on_hand_back(self, deadline_ns: int) -> None:
        """Take the agent's word: the phase is to be left by then (0: nothing is recalled any more)."""
        with self._condition:
            self._deadline_ns = deadline_ns
            self._condition.notify_all()

    @property
    def pending(self) -> bool:
        """Return whether a recall waits for its answer. Cheap: asked at every step."""
        deadline_ns = self._deadline_ns
        return deadline_ns not in (0, self._answered_ns)

    @property
    def seconds_left(self) -> Optional[float]:
        """Return the time until the deadline of the recall that waits for its answer, None where none does."""
        deadline_ns = self._deadline_ns
        if deadline_ns in (0, self._answered_ns):
            return None
        return max(0.0, (deadline_ns - time.time_ns()) / 1e9)

    def answer(self) -> None:
        """The process has left its phase."""
        with self._condition:
            self._answered_ns = self._deadline_ns

    def call(self, callback: Callable[[float], object], *, tell_again: bool = False) -> None:
        """Call this one from now on, instead of an earlier one; at once for a recall that waits and was not told.

        `tell_again`: also if the earlier one was called for it, as that had nothing to answer it with.
        """
        with self._condition:
            self._callback = callback
            if tell_again:  # with one hand: in between, this one would be called for it, and then once more
                self._called_ns = 0
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="tidegate-hand-back", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def tell_again(self) -> None:
        """Call for a recall that waits, if somebody was called for it before who had nothing to answer it with."""
        with self._condition:
            self._called_ns = 0
            self._condition.notify_all()

    def close(self) -> None:
        """Call nobody any more."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._due)
                if self._closed:
                    return
                self._called_ns = self._deadline_ns
                callback, seconds_left = self._callback, self.seconds_left
            assert callback is not None
            try:
                callback(seconds_left or 0.0)
            except Exception:  # noqa: BLE001 - the job's own; shown with its trace, and who polls sees the recall
                _log.exception("the callback of on_hand_back() failed: the recall waits for its answer still")

    @property
    def _due(self) -> bool:
        return self._callback is not None and self.pending and self._called_ns != self._deadline_ns
