"""The desk: writes what users ask for into the journal, one frame at a time, each request exactly once.

A doubtful append is never written again under another number: the frame may still arrive, and the contract makes a
second submission of the same job void, whoever wins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
import nats.errors
import structlog
from tidegate_events import subjects, trace
from tidegate_events.clock import Clock
from tidegate_events.events import AnyEvent, JobSubmitted
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended, Journal, JournalError, JournalFullError
from tidegate_events.spec import JobSpec

from tidegate_gateway.acts.base import EventMaker
from tidegate_gateway.fold import Fold
from tidegate_gateway.identity import spec_digest
from tidegate_gateway.view.projection import View

APPEND_SECONDS_MAX = 6.0
"""How long a request waits for the journal, a short restart of the bus included."""
FOLD_SECONDS_MAX = 4.0

log = structlog.get_logger()


class BusyError(Exception):
    """Too many requests wait for the journal already. Retriable."""


class JournalAwayError(Exception):
    """The journal did not settle the append within the bound: it may have been written. Retriable with the same key."""


class OtherSpecError(Exception):
    """The idempotency key was used for another specification."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


class Accepted(msgspec.Struct, frozen=True):
    """The job is in the journal; `replayed` says that an earlier request had put it there."""

    job_id: str
    replayed: bool


class Desk:
    """Appends the gateway's facts; `last_seq` is the newest of them, which reads wait for."""

    def __init__(self, journal: Journal, fold: Fold, clock: Clock, *, instance: str, waiting_max: int) -> None:
        self.last_seq = 0
        self._journal = journal
        self._fold = fold
        self._clock = clock
        self._instance = instance
        self._subject = subjects.fact("gateway", instance)
        self._epoch = 0
        self._writer_seq = 0
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._waiting_max = waiting_max

    async def find(self, job_id: str, spec: JobSpec) -> Accepted | None:
        """Return what an earlier request with this key did, as far as the journal knows now.

        Raises OtherSpecError, NotCaughtUpError and JournalAwayError.
        """
        try:
            await self._fold.wait_for_end(FOLD_SECONDS_MAX)
        except (JournalError, nats.errors.Error) as error:
            raise JournalAwayError(str(error)) from error
        return self._known(job_id, spec)

    async def submit(self, job_id: str, spec: JobSpec, *, keyed: bool) -> Accepted:
        """Append the submission, unless it is there.

        Raises OtherSpecError, BusyError, JournalAwayError, JournalFullError and NotCaughtUpError.
        """

        def event(writer: Writer) -> AnyEvent:
            return JobSubmitted(
                id=writer.event_id(0),
                at_ns=self._clock.now_ns(),
                tenant=spec.tenant,
                job=job_id,
                traceparent=trace.traceparent(job_id),
                spec=spec,
            )

        async with self._turn():
            if not keyed:
                await self._append(event)
                return Accepted(job_id, replayed=False)
            await self._fold.wait_for(self.last_seq, FOLD_SECONDS_MAX)
            if (known := self._known(job_id, spec)) is not None:
                return known
            seq = await self._append(event)
            # Another gateway, or an append that was in doubt, may have come first; the journal's order decides.
            await self._fold.wait_for(seq, FOLD_SECONDS_MAX)
            self._known(job_id, spec)
            first = self._fold.view.jobs.get(job_id)
            return Accepted(job_id, replayed=first is not None and first.submitted_seq != seq)

    async def record(self, judge: Callable[[View], EventMaker | None]) -> bool:
        """Append what `judge` makes of the view, which knows all that this gateway wrote; say whether it made anything.

        Raises what `judge` raises, BusyError, JournalAwayError, JournalFullError and NotCaughtUpError.
        """
        async with self._turn():
            await self._fold.wait_for(self.last_seq, FOLD_SECONDS_MAX)
            if (making := judge(self._fold.view)) is None:
                return False
            seq = await self._append(lambda writer: making(id=writer.event_id(0), at_ns=self._clock.now_ns()))
            await self._fold.wait_for(seq, FOLD_SECONDS_MAX)
            return True

    def _known(self, job_id: str, spec: JobSpec) -> Accepted | None:
        view = self._fold.view
        known = view.jobs.get(job_id) or view.forgotten.get(job_id)
        if known is None:
            return None
        if known.spec_digest != spec_digest(spec):
            raise OtherSpecError(job_id)
        return Accepted(job_id, replayed=True)

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None, None]:
        """Give each request its turn: appends are serialised, and who waits is bounded in number and time."""
        if self._waiting >= self._waiting_max:
            raise BusyError(f"{self._waiting} requests wait for the journal already")
        self._waiting += 1
        try:
            async with asyncio.timeout(APPEND_SECONDS_MAX):
                await self._lock.acquire()
        except TimeoutError as error:
            raise JournalAwayError(f"no turn at the journal within {APPEND_SECONDS_MAX:g} s") from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    async def _begin(self) -> None:
        """Take an epoch above that of every process that wrote by this name before, whatever the clock says.

        A frame of an older epoch counts as a late duplicate: it would be acknowledged, and be void.
        """
        await self._fold.wait_caught_up(FOLD_SECONDS_MAX)
        before = self._fold.view.writers.get(("gateway", self._instance))
        self._epoch = max(self._clock.now_ns(), before.epoch + 1 if before is not None else 0)

    async def _append(self, make: Callable[[Writer], AnyEvent]) -> int:
        if not self._epoch:
            await self._begin()
        self._writer_seq += 1
        writer = Writer("gateway", self._instance, self._epoch, self._writer_seq)
        frame = Frame(writer, (make(writer),))
        try:
            async with asyncio.timeout(APPEND_SECONDS_MAX):
                appended = await self._journal.append(self._subject, frame)
        except JournalFullError:
            raise
        except (JournalError, nats.errors.Error, TimeoutError) as error:
            job = getattr(frame.events[0], "job", None)
            log.warning("append_unsettled", job=job, frame=writer.frame_id, error=repr(error))
            why = f": {error}" if isinstance(error, JournalError) else f" within {APPEND_SECONDS_MAX:g} s"
            raise JournalAwayError(f"the journal did not take the request{why}") from error
        if not isinstance(appended, Appended):
            raise JournalAwayError("the journal refused an append that had no guard")
        self.last_seq = max(self.last_seq, appended.seq)
        return appended.seq
