"""The metrics service's shell: follows telemetry and the journal, stores batches, gives signals, answers Prometheus.

PostgreSQL is no condition: while it is away, gauges and signals go on, and what is to be stored waits, within bounds.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass

import structlog
from tidegate_events.cancellation import honour_cancellation
from tidegate_events.clock import Clock
from tidegate_events.journal.base import Journal
from tidegate_events.process import say_ready

from tidegate_metrics import http
from tidegate_metrics.database import Database, DatabaseAwayError
from tidegate_metrics.exposition import render
from tidegate_metrics.feed.base import Feed
from tidegate_metrics.ledger import Batch, Ledger, Stored
from tidegate_metrics.polls import Polls
from tidegate_metrics.settings import Settings
from tidegate_metrics.signals import RateWatch, SignalWriter
from tidegate_metrics.state import State

TICK_SECONDS = 1.0
GRACE_SECONDS = 2
"""How long after its end a window is closed: samples are taken once a second, and travel."""
POLL_SECONDS = 5.0
TIDY_SECONDS = 600.0
RETRY_SECONDS = 2.0
FOLDS_BEFORE_YIELD_MAX = 200
NS_PER_SECOND = 1_000_000_000

log = structlog.get_logger()


@dataclass(frozen=True)
class Ports:
    """What the service works on. Without a `database` nothing is stored."""

    journal: Journal
    feed: Feed
    polls: Polls
    database: Database | None
    clock: Clock


class MetricsService:
    """One process of the service."""

    def __init__(self, settings: Settings, ports: Ports) -> None:
        self._settings = settings
        self._journal = ports.journal
        self._feed = ports.feed
        self._polls = ports.polls
        self._database = ports.database
        self._clock = clock = ports.clock
        self.state = State(settings.window_seconds)
        self._watch = RateWatch(self.state.journal, settings.thresholds)
        self._writer = SignalWriter(
            ports.journal, self.state.journal, clock, settings.instance, settings.window_seconds
        )
        self._follow_again = asyncio.Event()
        self.port = 0

    async def run(self) -> None:
        """Serve until cancelled."""
        listener = http.listen(self._settings.port)
        self.port = listener.getsockname()[1]
        server = http.server(lambda: render(self.state, self._clock.now_ns()))
        if self._database is None:
            self.state.ledger = Ledger(Stored(), self._clock.now_ns())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(server.serve(sockets=[listener]))
                tasks.create_task(self._fold_journal(await self._journal.end()))
                tasks.create_task(self._follow_telemetry())
                tasks.create_task(self._tick())
                tasks.create_task(self._poll())
                tasks.create_task(self._writer.run())
                if self._database is not None:
                    tasks.create_task(self._store(self._database))
                log.info("listening", host=http.HOST, port=self.port)
        finally:
            listener.close()

    # ---- journal ----

    async def _fold_journal(self, end: int) -> None:
        """Fold for ever. What cannot be folded ends the service loudly: to skip it would be to count what never was."""
        if end == 0:
            self._catch_up()
        async with aclosing(self._journal.follow(0)) as frames:
            async for recorded in frames:
                self.state.journal.apply(recorded)
                if recorded.seq >= end:
                    self._catch_up()
                if recorded.seq % FOLDS_BEFORE_YIELD_MAX == 0:
                    await asyncio.sleep(0)

    def _catch_up(self) -> None:
        if not self.state.caught_up:
            self.state.caught_up = True
            say_ready()
            log.info("ready", seq=self.state.journal.seq)

    # ---- telemetry ----

    async def _follow_telemetry(self) -> None:
        """Read from a few windows ago, and again from the stored place when that becomes known."""
        while True:
            self._follow_again.clear()
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._hear_since(self._since_ns()))
                await self._follow_again.wait()
                following.cancel()

    async def _hear_since(self, since_ns: int) -> None:
        async with aclosing(self._feed.follow(since_ns)) as messages:
            async for message in messages:
                if self._follow_again.is_set():
                    return  # this one comes again, after those that the ledger has to take before it
                self.state.hear(message, self._clock.now_ns())

    def _since_ns(self) -> int:
        windows = self._settings.thresholds.windows + 2
        since_ns = self._clock.now_ns() - windows * self._settings.window_seconds * NS_PER_SECOND
        ledger = self.state.ledger
        if ledger is not None and ledger.position.stream:
            since_ns = min(since_ns, ledger.position.at_ns)
        return since_ns

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now_ns = self._clock.now_ns()
            closed = self.state.close_windows(now_ns - GRACE_SECONDS * NS_PER_SECOND)
            self.state.readings.forget(now_ns)
            if closed and self.state.caught_up:
                for verdict in self._watch.judge(closed, self.state.readings.node_heard_ns):
                    self._writer.offer(verdict)

    # ---- others ----

    async def _poll(self) -> None:
        while True:
            honour_cancellation()
            self.state.scheduler = await self._polls.scheduler()
            self.state.journal_bytes = await self._polls.journal_bytes()
            await self._polls.count_letters(self.state.letters)
            if self._database is not None:
                try:
                    self.state.projection_lag = await self._database.projection_lag()
                except DatabaseAwayError as error:
                    self.state.projection_lag = None
                    log.debug("projection_lag_unknown", why=str(error))
            await asyncio.sleep(POLL_SECONDS)

    # ---- PostgreSQL ----

    async def _store(self, database: Database) -> None:
        """Take up the stored counters, then store every batch once, in order, waiting out any outage."""
        ledger = await self._load(database)
        waiting: Batch | None = None
        tidied = float("-inf")
        while True:
            honour_cancellation()
            waiting = waiting or ledger.take()
            try:
                if waiting is not None:
                    await database.store(waiting)
                    self.state.rows_written += len(waiting.rows)
                    waiting = None
                if (now := asyncio.get_running_loop().time()) - tidied > TIDY_SECONDS:
                    await self._tidy(database, ledger)
                    tidied = now
                self._database_is(up=True)
            except DatabaseAwayError as error:
                self._database_is(up=False, why=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                await asyncio.sleep(self._settings.flush_seconds)

    async def _load(self, database: Database) -> Ledger:
        while True:
            honour_cancellation()
            try:
                stored = await database.load()
            except DatabaseAwayError as error:
                self._database_is(up=False, why=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._database_is(up=True)
                ledger = self.state.ledger = Ledger(stored, self._clock.now_ns())
                self._follow_again.set()
                log.info("counters_taken_up", position=stored.position.seq, series=len(stored.series))
                return ledger

    async def _tidy(self, database: Database, ledger: Ledger) -> None:
        now_ns = self._clock.now_ns()
        ledger.totals.forget(now_ns)
        if gone := await database.tidy(now_ns, self._settings.retention_days):
            log.info("partitions_dropped", names=gone)

    def _database_is(self, *, up: bool, why: str = "") -> None:
        if self.state.database_up != up:
            self.state.database_up = up
            if up:
                log.info("database_up")
            else:
                log.warning("database_away", why=why)
