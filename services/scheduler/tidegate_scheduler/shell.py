"""The scheduler's shell: all of its I/O. Follows the journal, and while it leads decides, appends and tells nodes.

It decides only when all its earlier frames are folded back, so that the state a decision was taken on is exactly the
state after `at_seq`, and history can be recomputed from the journal alone. While another one leads it folds and listens
just so, and is ready to go on from there.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events import orders as wire
from tidegate_events import subjects
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.clock import Clock
from tidegate_events.events import AnyEvent, Decision, NodeReachable, NodeUnreachable, QuotaChanged
from tidegate_events.journal.base import Journal, JournalFullError, JournalUnavailableError
from tidegate_events.process import say_ready

from tidegate_scheduler.candidate import Candidate, LeaseLostError
from tidegate_scheduler.decide import decide
from tidegate_scheduler.explain import carry_over
from tidegate_scheduler.fold import Fold, Slice
from tidegate_scheduler.heap import Heap
from tidegate_scheduler.leadership import DeposedError, Leadership
from tidegate_scheduler.lease import LeaseRecord
from tidegate_scheduler.lease_bucket import NatsLeaseBucket
from tidegate_scheduler.liveness import Liveness
from tidegate_scheduler.orders import Holders, in_parts, orders_for
from tidegate_scheduler.questions import Questions
from tidegate_scheduler.settings import Settings
from tidegate_scheduler.state import State

LIVENESS_TICK_SECONDS = 0.5
FULL_WAIT_SECONDS = 1.0
BUCKET_TIMEOUTS_PER_LEASE = 3
"""A renewal that got no answer leaves time to look what became of it before the lease ends."""

log = structlog.get_logger()


class Scheduler:
    """One scheduler process."""

    def __init__(
        self, settings: Settings, client: Client, journal: Journal, clock: Clock, state: State | None = None
    ) -> None:
        """Go on from `state`, that of a snapshot, where there is one."""
        self._settings = settings
        self._client = client
        self._journal = journal
        self._clock = clock
        self._fold = Fold(journal, state)
        bucket = NatsLeaseBucket(client, settings.lease_seconds / BUCKET_TIMEOUTS_PER_LEASE)
        self._candidate = Candidate(bucket, clock, instance=settings.instance, lease_seconds=settings.lease_seconds)
        self._questions = Questions(client, self._fold, clock, self._candidate)
        self._liveness = Liveness(settings.node_silence_seconds, self._now())
        self._heap: Heap | None = None
        self._wake_at_ns: int | None = None
        self._sent: dict[str, tuple[wire.NodeOrders, float]] = {}

    async def run(self) -> None:
        """Lead or stand by until cancelled; the lease is let go of at the end."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fold.run())
                await self._fold.reach(await self._journal.end())
                self._heap = Heap(self._now())
                await self._client.subscribe(subjects.LIVE_ALL, cb=self._on_heartbeat)
                tasks.create_task(self._candidate.run(lambda: self._fold.state.header.epoch))
                tasks.create_task(self._serve())
        finally:
            await self._candidate.release()

    async def _serve(self) -> None:
        while True:
            honour_cancellation()
            term = await self._stand_by()
            try:
                async with self._candidate.bounded(term.epoch):
                    await self._lead(term)
            except (DeposedError, LeaseLostError) as error:
                log.warning("steps_down", epoch=term.epoch, why=str(error))
            except (JournalUnavailableError, JournalFullError) as error:
                log.error("steps_down", epoch=term.epoch, why=str(error))
                say_ready()  # all is well here, and a restart would change nothing
            finally:
                self._candidate.resign()
                await self._questions.end()

    async def _stand_by(self) -> LeaseRecord:
        """Fold and listen until this process has the lease; return the term that it may begin."""
        while (term := self._candidate.term) is None:
            honour_cancellation()
            if self._candidate.other is not None:
                say_ready()
            self._look_at_nodes()
            await self._candidate.changed(LIVENESS_TICK_SECONDS)
        return term

    async def _lead(self, term: LeaseRecord) -> None:
        leadership = Leadership(
            self._journal,
            self._fold,
            (self._settings.instance, term.epoch),
            lambda: self._candidate.holds(term.epoch),
        )
        await leadership.begin(self._clock.now_ns())
        await leadership.set_policy(self._settings.parameters, self._clock.now_ns())
        self._questions.waiting = {}
        self._wake_at_ns = None
        self._sent.clear()
        await self._send_orders(leadership)
        await self._questions.begin()
        say_ready()
        while True:
            honour_cancellation()
            await self._await_change()
            leadership.check()
            try:
                await self._journal_liveness(leadership)
                await self._decide(leadership)
            except JournalFullError as error:
                log.error("journal_full", error=str(error), retry_in_seconds=FULL_WAIT_SECONDS)
                await asyncio.sleep(FULL_WAIT_SECONDS)
            await self._send_orders(leadership)

    async def _await_change(self) -> None:
        """Wait until something was folded, a decision falls due, or it is time to look at the nodes."""
        timeout = LIVENESS_TICK_SECONDS
        if self._wake_at_ns is not None:
            timeout = min(timeout, max(0.0, (self._wake_at_ns - self._clock.now_ns()) / 1e9))
        try:
            async with asyncio.timeout(timeout):
                await self._fold.changed.wait()
        except TimeoutError:
            if self._heap is not None:
                self._heap.idle(self._now())
        finally:
            self._fold.changed.clear()

    def _look_at_nodes(self) -> list[NodeUnreachable | NodeReachable]:
        """Return which nodes fell silent or are heard again; nobody is blamed for what was not listened to."""
        if not self._client.is_connected:
            self._liveness.listen_anew(self._now())
            return []
        return self._liveness.observe(self._fold.state, self._now(), self._clock.now_ns())

    async def _journal_liveness(self, leadership: Leadership) -> None:
        seen = self._look_at_nodes()
        if seen:
            for event in seen:
                log.warning(type(event).__name__, node=event.node)
            await leadership.append(tuple(seen))

    async def _decide(self, leadership: Leadership) -> None:
        started = time.perf_counter()
        with self._candidate.computing():
            result = decide(self._fold.state, self._clock.now_ns())
        self._questions.passes.add(time.perf_counter() - started)
        self._questions.waiting = carry_over(self._fold.state, self._questions.waiting, result)
        self._wake_at_ns = result.wake_at_ns
        if result.events:
            decided = time.perf_counter()
            seq = await leadership.append(result.events)
            log.info(
                "pass",
                seq=seq,
                decisions=len(result.events) - 1,
                decide_ms=round((decided - started) * 1000, 3),
                append_ms=round((time.perf_counter() - decided) * 1000, 3),
            )
            _log_decisions(seq, result.events)

    async def _send_orders(self, leadership: Leadership) -> None:
        """Send each node what is wanted of it where that changed, and every so often anyway."""
        now = self._now()
        turn = Slice()
        holders = Holders(self._fold.state)
        for name in list(self._fold.state.nodes):
            leadership.check()
            orders = orders_for(self._fold.state, self._fold.state.nodes[name], holders)
            sent, sent_at = self._sent.get(name, (None, 0.0))
            fresh = sent is not None and (sent.sandboxes, sent.incarnation) == (orders.sandboxes, orders.incarnation)
            if fresh and now - sent_at < self._settings.orders_resend_seconds:
                continue
            if self._client.is_connected:
                for part in in_parts(orders):
                    await self._client.publish(subjects.order(name), wire.encode(part))
                self._sent[name] = (orders, now)
            await turn.pause()

    async def _on_heartbeat(self, message: Msg) -> None:
        try:
            heartbeat = wire.decode_heartbeat(message.data)
        except msgspec.MsgspecError as error:
            log.warning("heartbeat_unreadable", subject=message.subject, error=str(error))
            return
        self._liveness.hear(heartbeat.node, self._now())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _log_decisions(seq: int, decided: tuple[AnyEvent, ...]) -> None:
    """Log each decision about a job under its job and trace; quotas turn over with every phase, so they are quieter."""
    for event in decided:
        if isinstance(event, Decision):
            reasons = [f"{reason.code}: {reason.detail}" if reason.detail else reason.code for reason in event.reasons]
            write = log.debug if isinstance(event, QuotaChanged) else log.info
            write("decided", kind=type(event).__name__, job=event.job, tenant=event.tenant, seq=seq, reasons=reasons)
