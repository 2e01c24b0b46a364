"""The part of a Job that is about phases: entering them, what there is in them, and handing back what was lent."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import Callable, ContextManager, Iterator, Mapping, Optional

from tidegate import protocol, validation
from tidegate.environment import Identity
from tidegate.errors import DevicesNotFreedError, JobClosedError, NestedPhaseError, TidegateError, UsageError
from tidegate.gpu_lease import GpuLease, Hooks
from tidegate.grant import Grant
from tidegate.link.base import Link, Patience
from tidegate.member import Member
from tidegate.recall import Recall
from tidegate.stop import StopGate

_log = logging.getLogger("tidegate.phasing")


class _Leased:
    """A phase that was entered, as the lease of its devices sees it. `away`: they are handed back."""

    def __init__(self, link: Link, recall: Recall, name: str, step: Callable[[], Optional[int]]) -> None:
        self._link = link
        self._recall = recall
        self._name = name
        self._step = step
        self.grant = Grant(name, {})
        self.given_up = threading.Event()
        self.away = False

    @property
    def recalled(self) -> bool:
        return self._recall.pending

    def handed_back(self) -> None:
        self.away = True
        self._recall.answer()
        self._link.phase(None, self._step())

    def entered_again(self) -> Mapping[str, str]:
        devices = self._link.ask(self._name, self._step(), Patience(None, self.given_up))
        self._link.phase(self._name, self._step())
        self.away = False
        return devices

    def not_freed(self, why: str) -> None:
        text = why.encode(errors="replace").decode()[: protocol.TEXT_CHARS_MAX]
        try:
            self._link.not_freed({"kind": "not_freed", "at_ns": time.time_ns(), "phase": self._name, "error": text})
        except TidegateError as error:
            _log.warning("the agent is not told that the devices are not handed back: %s", error)


class Phasing(Member):
    """A member that goes through phases. `_open_phase` is entered or waited for, `_phase` the one it is in."""

    def __init__(self, identity: Identity, link: Link, gate: StopGate, recall: Recall) -> None:
        super().__init__(identity)
        self._link = link
        self._gate = gate
        self._recall = recall
        self._lease: Optional[GpuLease] = None
        self._leased: Optional[_Leased] = None
        self._told_of_recall: Optional[Callable[[float], object]] = None
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
        if self._lease is not None:
            self._lease.refuse_own(threading.get_ident())
        patience = Patience(validation.timeout(timeout), given_up)
        with self._lock:
            if self._open_phase is not None:
                doing = "is in" if self._phase is not None else "waits for"
                raise NestedPhaseError(
                    f"phase {name!r} was refused: this process {doing} phase {self._open_phase!r}; leave that one first"
                )
            self._open_phase = name
        leased = _Leased(self._link, self._recall, name, lambda: self._step)
        try:
            devices = self._link.ask(name, self._step, patience)
            self._phase = name
            self._link.phase(name, self._step)
            grant = leased.grant = Grant(name, devices)
            self._leased = leased
            if self._lease is not None:
                self._lease.enter(grant)
                if self._lease.holds and self._recall.pending:  # it came before there was anything to hand back
                    self._recall.tell_again()
            yield grant
        finally:
            leased.given_up.set()
            if self._phase is None:
                self._open_phase = None
            else:
                self._leave(leased)

    def _leave(self, leased: _Leased) -> None:
        """Free the devices, then say that the phase is left; never that it is while they may be in use."""
        if self._lease is not None:
            try:
                self._lease.leave(leased)
            except DevicesNotFreedError:
                if self._gate.reason is None:
                    raise
                _log.exception("the process leaves with devices that it did not free")
                return
        self._phase = self._leased = None
        self._recall.answer()
        if self._ended is None and not leased.away:
            self._link.phase(None, self._step)
        self._open_phase = None

    def on_gpu(self, release: Callable[[float], object], reclaim: Callable[[Grant], object]) -> GpuLease:
        """Have the devices of phases moved on and off by hooks, and handed back by them when they are recalled.

        `reclaim(grant)` is called when a phase with devices is entered and when they are granted again,
        `release(seconds_left)` when it ends (infinity) and when they are recalled: then, in a thread of the SDK's own,
        between two uses of them (`with lease:`). Once it has returned they are handed back, and asked for again.
        """
        self._check_open("on_gpu")
        for name, hook in (("release", release), ("reclaim", reclaim)):
            if not callable(hook):
                raise UsageError(f"on_gpu({name}={hook!r}) was refused: a function is accepted")
        if self._lease is not None:
            raise UsageError("on_gpu() was refused: this process has its hooks already; call it once")
        self._lease = GpuLease(Hooks(release, reclaim))
        if self._leased is not None:
            self._lease.begin(self._leased.grant)
        self._recall.call(self._on_recall, tell_again=True)
        return self._lease

    def _on_recall(self, seconds_left: float) -> None:
        leased = self._leased
        if self._lease is not None and leased is not None and self._lease.holds:
            self._lease.hand_back(leased, seconds_left)
        elif self._told_of_recall is not None:
            self._told_of_recall(seconds_left)

    def on_hand_back(self, callback: Callable[[float], object]) -> None:
        """Have `callback(seconds_left)` called once for each recall of what this phase was lent.

        It is called in a thread of the SDK's own, also for a recall that waits already, and not for one that was
        answered before. It takes the place of an earlier callback. Leaving the phase is the answer. In a phase with
        devices the hooks of `on_gpu` answer instead, where they are given.
        """
        self._check_open("on_hand_back")
        if not callable(callback):
            raise UsageError(
                f"on_hand_back({callback!r}) was refused: a function that takes the seconds left is accepted"
            )
        first, self._told_of_recall = self._told_of_recall is None, callback
        # The hooks of on_gpu() may have been asked before, in a phase without devices.
        self._recall.call(self._on_recall, tell_again=first)

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
