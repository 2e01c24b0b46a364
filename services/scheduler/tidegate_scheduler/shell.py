"""The scheduler's shell: all of its I/O. Follows the journal, decides, appends, and tells nodes what to do.

It decides only when all its earlier frames are folded back, so that the state a decision was taken on is exactly the
state after `at_seq`, and history can be recomputed from the journal alone.
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
from tidegate_events.events import AnyEvent, Decision, QuotaChanged, Reason
from tidegate_events.journal.base import Journal
from tidegate_events.process import say_ready

from tidegate_scheduler.decide import decide
from tidegate_scheduler.explain import count_waiting, explain, queue
from tidegate_scheduler.fold import Fold
from tidegate_scheduler.leadership import Leadership
from tidegate_scheduler.liveness import Liveness
from tidegate_scheduler.orders import in_parts, orders_for
from tidegate_scheduler.pass_times import PassTimes
from tidegate_scheduler.settings import Settings

LIVENESS_TICK_SECONDS = 0.5

log = structlog.get_logger()


class Scheduler:
    """One scheduler process."""

    def __init__(self, settings: Settings, client: Client, journal: Journal, clock: Clock) -> None:
        self._settings = settings
        self._client = client
        self._journal = journal
        self._clock = clock
        self._fold = Fold(journal)
        self._leadership = Leadership(journal, self._fold, settings.instance)
        self._liveness = Liveness(settings.node_silence_seconds, self._now())
        self._waiting: dict[str, Reason] = {}
        self._passes = PassTimes()
        self._wake_at_ns: int | None = None
        self._sent: dict[str, tuple[wire.NodeOrders, float]] = {}

    async def run(self) -> None:
        """Serve until cancelled; raises DeposedError when another scheduler took the lead."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fold.run())
            await self._fold.reach(await self._journal.end())
            await self._client.subscribe(subjects.LIVE_ALL, cb=self._on_heartbeat)
            await self._client.subscribe(subjects.ask_scheduler("explain"), cb=self._on_explain)
            await self._client.subscribe(subjects.ask_scheduler("queue"), cb=self._on_queue)
            await self._client.subscribe(subjects.ask_scheduler("waiting"), cb=self._on_waiting)
            await self._leadership.begin(self._clock.now_ns())
            await self._leadership.set_policy(self._settings.parameters, self._clock.now_ns())
            say_ready()
            tasks.create_task(self._lead())

    async def _lead(self) -> None:
        while True:
            honour_cancellation()
            await self._await_change()
            self._leadership.check()
            await self._journal_liveness()
            await self._decide()
            await self._send_orders()

    async def _await_change(self) -> None:
        """Wait until something was folded, a decision falls due, or it is time to look at the nodes."""
        timeout = LIVENESS_TICK_SECONDS
        if self._wake_at_ns is not None:
            timeout = min(timeout, max(0.0, (self._wake_at_ns - self._clock.now_ns()) / 1e9))
        try:
            async with asyncio.timeout(timeout):
                await self._fold.changed.wait()
        except TimeoutError:
            return
        finally:
            self._fold.changed.clear()

    async def _journal_liveness(self) -> None:
        if not self._client.is_connected:
            self._liveness.listen_anew(self._now())
            return
        seen = self._liveness.observe(self._fold.state, self._now(), self._clock.now_ns())
        if seen:
            for event in seen:
                log.warning(type(event).__name__, node=event.node)
            await self._leadership.append(tuple(seen))

    async def _decide(self) -> None:
        started = time.perf_counter()
        result = decide(self._fold.state, self._clock.now_ns())
        self._passes.add(time.perf_counter() - started)
        self._waiting = result.waiting
        self._wake_at_ns = result.wake_at_ns
        if result.events:
            decided = time.perf_counter()
            seq = await self._leadership.append(result.events)
            log.info(
                "pass",
                seq=seq,
                decisions=len(result.events) - 1,
                decide_ms=round((decided - started) * 1000, 3),
                append_ms=round((time.perf_counter() - decided) * 1000, 3),
            )
            _log_decisions(seq, result.events)

    async def _send_orders(self) -> None:
        """Send each node what is wanted of it where that changed, and every so often anyway."""
        now = self._now()
        for name, node in self._fold.state.nodes.items():
            orders = orders_for(self._fold.state, node)
            sent, sent_at = self._sent.get(name, (None, 0.0))
            fresh = sent is not None and (sent.sandboxes, sent.incarnation) == (orders.sandboxes, orders.incarnation)
            if fresh and now - sent_at < self._settings.orders_resend_seconds:
                continue
            if self._client.is_connected:
                for part in in_parts(orders):
                    await self._client.publish(subjects.order(name), wire.encode(part))
                self._sent[name] = (orders, now)

    async def _on_heartbeat(self, message: Msg) -> None:
        try:
            heartbeat = wire.decode_heartbeat(message.data)
        except msgspec.MsgspecError as error:
            log.warning("heartbeat_unreadable", subject=message.subject, error=str(error))
            return
        self._liveness.hear(heartbeat.node, self._now())

    async def _on_explain(self, message: Msg) -> None:
        try:
            job = msgspec.json.decode(message.data, type=dict[str, str]).get("job", "")
        except msgspec.MsgspecError as error:
            await message.respond(msgspec.json.encode({"error": f'send {{"job": "<id>"}}: {error}'}))
            return
        answer = explain(self._fold.state, self._waiting, job, self._clock.now_ns())
        await message.respond(msgspec.json.encode(answer))

    async def _on_queue(self, message: Msg) -> None:
        answer = queue(self._fold.state, self._waiting, self._clock.now_ns())
        await message.respond(msgspec.json.encode(answer))

    async def _on_waiting(self, message: Msg) -> None:
        answer = {"waiting": count_waiting(self._fold.state, self._waiting), "passes": self._passes}
        await message.respond(msgspec.json.encode(answer))

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
