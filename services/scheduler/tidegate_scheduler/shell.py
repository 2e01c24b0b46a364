"""The scheduler's shell: all of its I/O. Follows the journal, and while it leads decides, appends and tells nodes.

It decides only when all its earlier frames are folded back, so that the state a decision was taken on is exactly the
state after `at_seq`, and history can be recomputed from the journal alone. While another one leads it folds and listens
just so, and is ready to go on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events import orders as wire
from tidegate_events import subjects
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.clock import Clock
from tidegate_events.events import (
    AnyEvent,
    Decision,
    JobFailed,
    JobRejected,
    JobRequeued,
    NodeReachable,
    NodeUnreachable,
    PreemptRequested,
    StopRequested,
)
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
from tidegate_scheduler.order_book import OrderBook
from tidegate_scheduler.orders import in_parts
from tidegate_scheduler.policy import registry
from tidegate_scheduler.questions import Questions
from tidegate_scheduler.settings import Settings
from tidegate_scheduler.state import State

LIVENESS_TICK_SECONDS = 0.5
FULL_WAIT_SECONDS = 1.0
NODES_LOGGED_MAX = 5
STRANGERS_SECONDS = 5.0
BUCKET_TIMEOUTS_PER_LEASE = 3
"""A renewal that got no answer leaves time to look what became of it before the lease ends."""

AGAINST_A_JOB = (PreemptRequested, StopRequested, JobRequeued, JobRejected, JobFailed)

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
        self._liveness: Liveness | None = None
        self._heap: Heap | None = None
        self._wake_at_ns: int | None = None
        self._strangers_at = 0.0

    async def run(self) -> None:
        """Lead or stand by until cancelled; the lease is let go of at the end."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fold.run())
                await self._fold.reach(await self._journal.end())
                self._keep_tables()
                self._heap = Heap(self._now())
                self._liveness = Liveness(self._fold.state, self._settings.node_silence_seconds, self._now())
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
            self._keep_tables()
            self._tidy()
            self._idle()
            await self._candidate.changed(LIVENESS_TICK_SECONDS)
        return term

    def _keep_tables(self) -> None:
        """Keep what the policy derives of the state up with it: making it anew takes longer than a lease lasts."""
        state = self._fold.state
        if state.elastic and state.header.policy in registry.POLICIES:
            registry.outlook(state, self._clock.now_ns())

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
        if self._liveness is not None:
            self._liveness.listen_anew(self._now())  # what fell silent before this term has a whole silence once more
        book = OrderBook(
            self._fold.state,
            resend_seconds=self._settings.orders_resend_seconds,
            resends_per_second=self._settings.orders_resends_per_second,
        )
        try:
            await self._send_orders(leadership, book)
            await self._questions.begin()
            say_ready()
            await self._wake_for_ever(leadership, book)
        finally:
            book.close()

    async def _wake_for_ever(self, leadership: Leadership, book: OrderBook) -> None:
        while True:
            honour_cancellation()
            await self._await_change(at_once=book.behind and self._client.is_connected)
            woken = time.perf_counter()
            leadership.check()
            try:
                await self._journal_liveness(leadership)
                await self._decide(leadership)
            except JournalFullError as error:
                log.error("journal_full", error=str(error), retry_in_seconds=FULL_WAIT_SECONDS)
                await asyncio.sleep(FULL_WAIT_SECONDS)
            await self._send_orders(leadership, book)
            await self._ask_strangers(leadership)
            self._questions.wakes.add(time.perf_counter() - woken)
            self._tidy()

    async def _await_change(self, *, at_once: bool = False) -> None:
        """Wait until something was folded, a decision falls due, or it is time to look at the nodes."""
        timeout = 0.0 if at_once else LIVENESS_TICK_SECONDS
        if self._wake_at_ns is not None:
            timeout = min(timeout, max(0.0, (self._wake_at_ns - self._clock.now_ns()) / 1e9))
        try:
            async with asyncio.timeout(timeout):
                await self._fold.changed.wait()
        except TimeoutError:
            if not at_once:
                self._idle()
        finally:
            self._fold.changed.clear()

    def _tidy(self) -> None:
        if self._heap is not None:
            self._heap.tidy(self._now())

    def _idle(self) -> None:
        if self._heap is not None:
            self._heap.idle(self._now())

    def _look_at_nodes(self) -> list[NodeUnreachable | NodeReachable]:
        """Return which nodes fell silent or are heard again; nobody is blamed for what was not listened to."""
        if self._liveness is None:
            return []
        if not self._client.is_connected:
            self._liveness.listen_anew(self._now())
            return []
        return self._liveness.observe(self._now(), self._clock.now_ns())

    async def _journal_liveness(self, leadership: Leadership) -> None:
        seen = self._look_at_nodes()
        if seen:
            _log_liveness(seen)
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
                kinds=dict(Counter(type(event).__name__ for event in result.events[1:])),
                cut=result.cut,
                decide_ms=round((decided - started) * 1000, 3),
                append_ms=round((time.perf_counter() - decided) * 1000, 3),
            )
            _log_decisions(seq, result.events)

    async def _send_orders(self, leadership: Leadership, book: OrderBook) -> None:
        """Tell nodes what is wanted of them where that changed, and every so often anyway; so many at a time."""
        if not self._client.is_connected:
            return
        now = self._now()
        turn = Slice()
        for name in book.due(now):
            leadership.check()
            orders = book.orders(name)
            if orders is not None:
                for part in in_parts(orders):
                    await self._client.publish(subjects.order(name), wire.encode(part))
                book.told(orders, now)
            await turn.pause()

    async def _ask_strangers(self, leadership: Leadership) -> None:
        """Ask agents that are heard and of which the state knows no node, having forgotten it, to join again."""
        now = self._now()
        if self._liveness is None or not self._client.is_connected or now < self._strangers_at:
            return
        self._strangers_at = now + STRANGERS_SECONDS
        state = self._fold.state
        for name in self._liveness.strangers():
            join = wire.NodeOrders(
                node=name,
                incarnation=wire.FORGOTTEN_INCARNATION,
                epoch=leadership.epoch,
                at_seq=state.seq,
                sandboxes=(),
            )
            await self._client.publish(subjects.order(name), wire.encode(join))

    async def _on_heartbeat(self, message: Msg) -> None:
        try:
            heartbeat = wire.decode_heartbeat(message.data)
        except msgspec.MsgspecError as error:
            log.warning("heartbeat_unreadable", subject=message.subject, error=str(error))
            return
        if self._liveness is not None:
            self._liveness.hear(heartbeat.node, self._now())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _log_liveness(seen: Sequence[NodeUnreachable | NodeReachable]) -> None:
    """Say it once for all of a kind: where a rack goes, hundreds go."""
    for kind, what in ((NodeUnreachable, "nodes_silent"), (NodeReachable, "nodes_heard_again")):
        names = [event.node for event in seen if isinstance(event, kind)]
        if names:
            log.warning(what, count=len(names), nodes=names[:NODES_LOGGED_MAX])


def _log_decisions(seq: int, decided: Sequence[AnyEvent]) -> None:
    """Log each decision about a job under its job and trace: the journal has them all.

    What an operator looks for in a log is what went against a job; that it came and went by itself is for who debugs,
    for there may be thousands of those in a second.
    """
    for event in decided:
        if isinstance(event, Decision):
            codes = [reason.code for reason in event.reasons]
            say = log.info if isinstance(event, AGAINST_A_JOB) else log.debug
            say("decided", kind=type(event).__name__, job=event.job, tenant=event.tenant, seq=seq, reasons=codes)
