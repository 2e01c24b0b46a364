"""The part of a Job that is about phases: entering them, what there is in them, and handing back what was lent."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Callable, ContextManager, Iterator, Optional

from tidegate import validation
from tidegate.environment import Identity
from tidegate.errors import JobClosedError, NestedPhaseError, UsageError
from tidegate.grant import Grant
from tidegate.link.base import Link, Patience
from tidegate.member import Member
from tidegate.recall import Recall


class Phasing(Member):
    """A member that goes through phases. `_open_phase` is entered or waited for, `_phase` the one it is in."""

    def __init__(self, identity: Identity, link: Link, recall: Recall) -> None:
        super().__init__(identity)
        self._link = link
        self._recall = recall
        self._lock = threading.Lock()
        self._open_phase: Optional[str] = None
        self._phase: Optional[str] = None
        self._step: Optional[int] = None
        self._ended: Optional[str] = None

    def phase(self, name: str, timeout: Optional[float] = None) -> ContextManager[Grant]:
        """The process is in this phase until the block ends. Phases of one process do not nest.

        Where the job's phases are asked for (`phase_entry: asked`) it waits until what the phase needs is there, for
        at most `timeout` seconds: then PhaseTimeoutError. PhaseRefusedError: it is to save and leave instead.
        """
        return self._in_phase(name, timeout, threading.Event())

    @contextmanager
    def _in_phase(self, name: str, timeout: Optional[float], given_up: threading.Event) -> Iterator[Grant]:
        self._check_open("phase")
        validation.phase(name)
        patience = Patience(validation.timeout(timeout), given_up)
        with self._lock:
            if self._open_phase is not None:
                doing = "is in" if self._phase is not None else "waits for"
                raise NestedPhaseError(
                    f"phase {name!r} was refused: this process {doing} phase {self._open_phase!r}; leave that one first"
                )
            self._open_phase = name
        try:
            devices = self._link.ask(name, self._step, patience)
            self._phase = name
            self._link.phase(name, self._step)
            yield Grant(name, devices)
        finally:
            entered = self._phase is not None
            self._phase = None
            if entered:
                self._recall.answer()
                if self._ended is None:
                    self._link.phase(None, self._step)
            self._open_phase = None

    def on_hand_back(self, callback: Callable[[float], object]) -> None:
        """Have `callback(seconds_left)` called once for each recall of what this phase was lent.

        It is called in a thread of the SDK's own, also for a recall that waits already, and not for one that was
        answered before. It takes the place of an earlier callback. Leaving the phase is the answer.
        """
        self._check_open("on_hand_back")
        if not callable(callback):
            raise UsageError(
                f"on_hand_back({callback!r}) was refused: a function that takes the seconds left is accepted"
            )
        self._recall.call(callback)

    def should_hand_back(self) -> bool:
        """Return True while the phase is to be left, because what it was lent is recalled. Cheap."""
        return self._recall.pending

    @property
    def hand_back_seconds_left(self) -> Optional[float]:
        """Return the time until a recall's deadline, None while there is none: then the job is asked to leave."""
        return self._recall.seconds_left

    def _check_open(self, call: str) -> None:
        if self._ended is None:
            return
        remedy = "call tidegate.init() in the child" if self._ended == "a fork" else "it must be the last call"
        raise JobClosedError(f"{call} was refused after {self._ended}: {remedy}")
