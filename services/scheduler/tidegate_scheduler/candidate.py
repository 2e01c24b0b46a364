"""Stands for the lead: takes the lease when it is free, keeps it while this process has it, lets go of it at the end.

One task does all the reading and writing, so that no two writes of one process are ever under way.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.clock import Clock

from tidegate_scheduler.lease import Lease, LeaseRecord, Write
from tidegate_scheduler.lease_bucket import LeaseBucket, LeaseUnavailableError

RETRIES_PER_RENEWAL = 3
RELEASE_TRIES_MAX = 2
RELEASE_SECONDS_MAX = 0.5
HOLDER_BYTES = 8

log = structlog.get_logger()


class LeaseLostError(Exception):
    """The term's lease ended before it could be renewed; another scheduler may lead by now."""


def running_seconds() -> float:
    """Return a clock that goes on while this process is stopped and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Candidate:
    """One scheduler process as it stands for the lead."""

    def __init__(
        self,
        bucket: LeaseBucket,
        clock: Clock,
        *,
        instance: str,
        lease_seconds: float,
        now: Callable[[], float] = running_seconds,
    ) -> None:
        self._bucket = bucket
        self._clock = clock
        self._now = now
        self._lease = Lease(f"{instance}-{secrets.token_hex(HOLDER_BYTES)}", instance, lease_seconds)
        self._nudged = asyncio.Event()
        self._moved = asyncio.Event()
        self._bound: tuple[int, asyncio.Timeout] | None = None
        self._resigned = False
        self._unavailable = False

    @property
    def term(self) -> LeaseRecord | None:
        """Return the term for which this process has the lease now; not one that it was resigned while asking for."""
        return self._lease.held if not self._resigned and self._lease.holds(self._now()) else None

    @property
    def other(self) -> LeaseRecord | None:
        """Return the term of another process that has the lease, as far as was seen."""
        return self._lease.other_leads(self._now())

    def holds(self, epoch: int) -> bool:
        """Say whether this process has the lease for the term `epoch`."""
        term = self.term
        return term is not None and term.epoch == epoch

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Measure what is computed at one stretch, during which nothing is renewed: leases become long enough for it.

        Only this thread's own time counts: to have been stopped from outside is no reason for longer leases.
        """
        began = time.thread_time()
        yield
        self._lease.on_computed(time.thread_time() - began, self._now())

    def resign(self) -> None:
        """Let go of the lease, and let others go first."""
        self._lease.resign(self._now())
        self._resigned = True
        self._nudged.set()

    async def changed(self, timeout_seconds: float) -> None:
        """Wait until the lease has changed hands, or for that long."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._moved.wait()
        except TimeoutError:
            return
        finally:
            self._moved.clear()

    @asynccontextmanager
    async def bounded(self, epoch: int) -> AsyncIterator[None]:
        """Run the body no longer than the lease for `epoch` lasts; every renewal gives it more time.

        Raises LeaseLostError when the lease has ended.
        """
        loop = asyncio.get_running_loop()
        bound = asyncio.timeout_at(loop.time() if not self.holds(epoch) else loop.time() + self._remaining())
        try:
            async with bound:
                self._bound = (epoch, bound)
                yield
        except TimeoutError as error:
            if bound.expired():
                raise LeaseLostError(f"the lease for epoch {epoch} was not renewed in time") from error
            raise
        finally:
            self._bound = None

    async def run(self, epoch_folded: Callable[[], int]) -> None:
        """Stand for the lead for ever; `epoch_folded` gives the newest term in the journal."""
        await self._bucket.watch(self._nudged.set)
        while True:
            honour_cancellation()
            await self._wait()
            before = self.term
            try:
                await self._turn(epoch_folded())
                if self._unavailable:
                    self._unavailable = False
                    log.info("lease_available")
            except LeaseUnavailableError as error:
                if not self._unavailable:
                    self._unavailable = True
                    log.warning("lease_unavailable", error=str(error))
                await asyncio.sleep(self._lease.renewal_seconds / RETRIES_PER_RENEWAL)
            self._after_turn(before)

    async def release(self) -> None:
        """Tell the others that this process leads no more; without an answer they find out by themselves."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS_MAX):
                for _ in range(RELEASE_TRIES_MAX):
                    write = self._lease.propose_release(self._now())
                    if write is None or await self._write(write):
                        return
                    self._lease.on_read(await self._bucket.read(), self._now())
        except (LeaseUnavailableError, TimeoutError) as error:
            log.warning("lease_not_released", error=repr(error))

    async def _wait(self) -> None:
        due_seconds = self._lease.due_in(self._now())
        if self._resigned or (self._lease.wants_read() and self._nudged.is_set()):
            due_seconds = 0.0
        self._nudged.clear()
        if due_seconds > 0:
            try:
                async with asyncio.timeout(due_seconds):
                    await self._nudged.wait()
            except TimeoutError:
                return

    async def _turn(self, epoch_folded: int) -> None:
        if self._resigned:
            self._resigned = False
            await self.release()
        if self._lease.wants_read():
            self._lease.on_read(await self._bucket.read(), self._now())
        write = self._lease.propose(self._now(), epoch_folded=epoch_folded, now_ns=self._clock.now_ns())
        if write is not None:
            await self._write(write)

    async def _write(self, write: Write) -> bool:
        """Say whether it is written. Raises LeaseUnavailableError where that is not known."""
        self._lease.on_doubt()
        revision = await self._bucket.write(write)
        if revision is None:
            return False
        self._lease.on_written(write, revision, self._now())
        return True

    def _after_turn(self, before: LeaseRecord | None) -> None:
        term = self.term
        if (term.epoch if term else 0) != (before.epoch if before else 0) or self._lease.other_leads(self._now()):
            self._moved.set()
        if term is not None and self._bound is not None:
            epoch, bound = self._bound
            if epoch == term.epoch and not bound.expired():
                bound.reschedule(asyncio.get_running_loop().time() + self._remaining())

    def _remaining(self) -> float:
        return max(0.0, self._lease.deadline - self._now())
