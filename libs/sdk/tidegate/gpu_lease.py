"""The devices of a phase as a lease: freed when the phase ends or is recalled, taken again when it is granted again.

What the job's own hook did not free is never said to be free: the recall stays unanswered then, which is told the
agent, and the job is asked to save and leave.
"""

from __future__ import annotations

import logging
import math
import threading
from types import TracebackType
from typing import Callable, Mapping, NamedTuple, Optional, Protocol, Type

from tidegate.errors import DevicesNotFreedError, TidegateError, UsageError
from tidegate.grant import Grant

_log = logging.getLogger("tidegate.gpu")

AWAY, HELD, HANDED_BACK = "away", "held", "handed back"


class Hooks(NamedTuple):
    """`release(seconds_left)` frees the devices (infinity: nobody waits); `reclaim(grant)` takes those of the grant."""

    release: Callable[[float], object]
    reclaim: Callable[[Grant], object]


class LeasedPhase(Protocol):
    """What a lease needs of the phase that it belongs to."""

    @property
    def recalled(self) -> bool:
        """Return whether a recall waits for its answer still."""

    def handed_back(self) -> None:
        """Say that the phase is left: nothing of its devices is in use."""

    def entered_again(self) -> Mapping[str, str]:
        """Ask for the phase, wait until it is granted, say that it is entered; return what tells the devices.

        Raises TidegateError, also once the phase has ended.
        """

    def not_freed(self, why: str) -> None:
        """Have it reported that the devices are not handed back."""


class GpuLease:
    """What `job.on_gpu` returns. `with lease as grant:` around each use of the devices keeps the hooks out of it.

    It waits while the devices are handed back, and raises what the wait for them ended with: PhaseRefusedError when
    the job is to save and leave. In a phase without devices it does not wait. One user of the devices at a time.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._changed = threading.Condition()
        self._busy = False
        self._user: Optional[int] = None
        self._asking = False
        self._state = AWAY
        self._grant: Optional[Grant] = None
        self._refusal: Optional[BaseException] = None

    @property
    def grant(self) -> Optional[Grant]:
        """Return what the devices are now; None while there are none."""
        return self._grant if self._state == HELD else None

    def __enter__(self) -> Optional[Grant]:
        return self.acquire(threading.get_ident())

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.free()

    def acquire(self, user: Optional[int] = None) -> Optional[Grant]:
        """Wait for the devices and keep the hooks out until `free`; `user` is a thread that would wait for itself."""
        with self._changed:
            self.refuse_own(user)
            self._changed.wait_for(lambda: not self._busy and (self._state != HANDED_BACK or self._refusal is not None))
            if self._refusal is not None:
                raise self._refusal
            self._busy, self._user = True, user
        return self.grant

    def free(self) -> None:
        """The devices are not used any more, for now."""
        with self._changed:
            self._busy, self._user = False, None
            self._changed.notify_all()

    # What a job's phases do with it --------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Return whether there are devices, so that a recall is this lease's to answer."""
        return self._state == HELD

    def refuse_own(self, user: Optional[int]) -> None:
        """Raise UsageError where that thread holds the lease, and would wait for itself."""
        if user is not None and self._user == user:
            raise UsageError(
                "a phase was entered or left, or the lease was taken, inside `with lease:` of the same thread: "
                "end that block first"
            )

    def begin(self, grant: Grant) -> None:
        """The process is in a phase already, with what it has."""
        self._state, self._grant = HELD if grant.gpus else AWAY, grant

    def enter(self, grant: Grant) -> None:
        """A phase was entered: take its devices, if it has any. Raises what the hook raises."""
        if grant.gpus:
            self._exclude()
            try:
                self._take(grant)
            finally:
                self.free()

    def leave(self, phase: LeasedPhase) -> None:
        """The phase ends, and is not asked for any more: free its devices. Raises DevicesNotFreedError."""
        self._exclude()
        try:
            if self._state == HELD and (why := self._release(math.inf)) is not None:
                phase.not_freed(f"{why[0]} at the end of the phase")
                raise DevicesNotFreedError(
                    f"the phase is not left, because its devices may be in use: {why[0]}; the release hook of "
                    "on_gpu() must free them and return"
                ) from why[1]
            self._state, self._grant, self._refusal = AWAY, None, None
        finally:
            self.free()

    def hand_back(self, phase: LeasedPhase, seconds_left: float) -> None:
        """Answer a recall: free the devices, say so, and take them when they are granted again. Returns after that."""
        late = threading.Timer(seconds_left, self._late, (phase, seconds_left))
        late.daemon = True
        late.start()
        try:
            freed = self._freed(phase, seconds_left)
        finally:
            late.cancel()
        if freed:
            try:
                self._take_again(phase)
            finally:
                with self._changed:
                    self._asking = False
                    self._changed.notify_all()

    def _freed(self, phase: LeasedPhase, seconds_left: float) -> bool:
        self._exclude()
        try:
            if self._state != HELD or not phase.recalled:
                return False  # it was left, or may be kept, meanwhile
            if (why := self._release(seconds_left)) is not None:
                phase.not_freed(why[0])
                return False
            self._state, self._asking = HANDED_BACK, True
            phase.handed_back()
            return True
        finally:
            self.free()

    def _take_again(self, phase: LeasedPhase) -> None:
        assert self._grant is not None, "what was handed back had been granted"
        try:
            grant = Grant(self._grant.phase, phase.entered_again())
        except TidegateError as error:
            self._refuse(error)
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
            self._busy = True
        try:
            self._take(grant)
        except Exception as error:  # noqa: BLE001 - the job's own: it meets it where it would use the devices
            _log.exception("the reclaim hook of on_gpu() failed")
            self._refuse(error)
        finally:
            self.free()

    def _take(self, grant: Grant) -> None:
        self._state, self._grant = HELD, grant  # first: what a hook took before it failed is freed with the phase
        self._hooks.reclaim(grant)

    def _release(self, seconds_left: float) -> Optional["tuple[str, Exception]"]:
        """Return why the devices may be in use still, None when they are free."""
        try:
            self._hooks.release(seconds_left)
        except Exception as error:  # noqa: BLE001 - the job's own; whoever asked says what follows from it
            _log.exception("the release hook of on_gpu() failed: the devices are not handed back")
            return f"the release hook raised {error!r}", error
        return None

    @staticmethod
    def _late(phase: LeasedPhase, seconds_left: float) -> None:
        _log.warning("the devices are not free yet, %.1f s after they were recalled", seconds_left)
        phase.not_freed(f"the release hook has not returned within the {seconds_left:.1f} s that there were")

    def _refuse(self, error: BaseException) -> None:
        with self._changed:
            self._refusal = error
            self._changed.notify_all()

    def _exclude(self) -> None:
        """Wait until nobody uses the devices, nor waits for them again, and keep everybody out."""
        with self._changed:
            self.refuse_own(threading.get_ident())
            self._changed.wait_for(lambda: not self._busy and not self._asking)
            self._busy = True
