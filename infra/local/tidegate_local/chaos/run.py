"""One chaos run against a stack that is up: load and faults side by side, then a bounded drain, then the reckoning."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import structlog
from tidegate_events import bus
from tidegate_events.bus import BusSettings
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.base import Journal, JournalUnavailableError
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.journal.patience import patiently

from tidegate_local.chaos import history, records, remains, schedule, workload
from tidegate_local.chaos.faults import Hit, Injector
from tidegate_local.chaos.history import History
from tidegate_local.chaos.schedule import Fault, Planned
from tidegate_local.home import Home, StackRecord

DRAIN_SECONDS_MAX = 120.0
DRAIN_POLL_SECONDS = 0.5
SETTLE_SECONDS_MAX = 60.0
FILLERS_PER_GENERATION = 1.5
FILLER_BYTES = 96_000
AFTER_FULL_SECONDS = 1.0
SLACK_SECONDS = 30.0
"""What a stage may take beyond its own bounds before the run is given up, on a machine with much else to do."""
ENDED = frozenset({"completed", "failed", "cancelled", "rejected"})

log = structlog.get_logger()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run does; drawn from its seed."""

    seed: int
    seconds: float
    generation_bytes: int
    faults: tuple[Fault, ...]
    jobs: tuple[Planned, ...]


class Outcome(msgspec.Struct, kw_only=True):
    """What was seen of a run while the stack was up; `journal_refusals` are submissions that a full journal refused."""

    acked: dict[str, str]
    unanswered: set[str]
    refusals: Counter[str]
    states: dict[str, str]
    hits: list[Hit]
    skipped: int
    full_seconds: float
    drain_seconds: float
    history: History
    runs: list[records.Run]
    left: list[str]


class Chaos:
    """One run."""

    def __init__(self, home: Home, record: StackRecord, plan: Plan) -> None:
        self._home = home
        self._record = record
        self._plan = plan
        self._submitter = workload.Submitter(record.gateway_url, plan.seed)
        self._fillers = 0
        self._full_seconds = 0.0

    async def run(self) -> Outcome:
        """Do the whole run. Raises what makes it worthless: the stack ended, a job was refused for good, it stalled."""
        login = BusSettings(url=self._record.bus_url, user=self._record.bus_user, password=self._record.bus_password)
        client = await bus.connect(login)
        try:
            journal = NatsJournal(client, ArchiveDirectory(self._home.archive_dir))
            injector = Injector(self._home, journal, self._fill)
            load_seconds_max = self._plan.seconds + workload.SUBMIT_SECONDS_MAX + SLACK_SECONDS
            async with within(load_seconds_max, "load and faults"), asyncio.TaskGroup() as tasks:
                tasks.create_task(injector.run(self._plan.faults))
                for planned in self._plan.jobs:
                    tasks.create_task(self._submit(planned))
            log.info("draining", jobs=len(self._submitter.acked))
            began = time.monotonic()
            states = await self._drain()
            drained = time.monotonic() - began
            return Outcome(
                acked=self._submitter.acked,
                unanswered=self._submitter.unanswered,
                refusals=self._submitter.refusals,
                states=states,
                hits=injector.hits,
                skipped=injector.skipped,
                full_seconds=self._full_seconds,
                drain_seconds=drained,
                left=await remains.settled(self._home),
                history=await self._history(journal),
                runs=records.read(self._home.outputs_dir),
            )
        finally:
            await self._submitter.close()
            await client.close()

    async def _history(self, journal: Journal) -> History:
        """Read the journal; a bus that lost a leader at the very end first elects another one."""

        def away(error: JournalUnavailableError) -> None:
            log.info("journal_away", why=str(error))

        async with within(SETTLE_SECONDS_MAX + SLACK_SECONDS, "reading the journal"):
            return await patiently(lambda: history.read(journal), SETTLE_SECONDS_MAX, away)

    async def _submit(self, planned: Planned) -> None:
        await asyncio.sleep(planned.at_seconds)
        spec = workload.spec_of(planned, self._home.outputs_dir, self._record.level)
        await self._submitter.submit(spec)

    async def _fill(self, tasks: asyncio.TaskGroup, seconds: float) -> None:
        """Submit large jobs until the journal refuses one, and leave it full for a moment."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        most = int(FILLERS_PER_GENERATION * self._plan.generation_bytes / FILLER_BYTES) + 1
        for _ in range(most):
            spec = workload.filler(self._fillers, self._plan.seed, self._home.outputs_dir, self._record.level)
            self._fillers += 1
            if loop.time() - began > seconds:
                return
            await self._submitter.submit(spec, until_refused_with=workload.JOURNAL_FULL)
            if self._submitter.refusals[workload.JOURNAL_FULL]:
                log.info("journal_full", fillers=self._fillers, after_seconds=round(loop.time() - began, 2))
                await asyncio.sleep(AFTER_FULL_SECONDS)
                self._full_seconds = AFTER_FULL_SECONDS
                tasks.create_task(self._submitter.submit(spec))  # taken as soon as there is room
                return

    async def _drain(self) -> dict[str, str]:
        """Wait until every acknowledged job has ended, for a bounded time; return their last states."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DRAIN_SECONDS_MAX
        states = dict.fromkeys(self._submitter.acked, "unknown")
        while True:
            waiting = [name for name, state in states.items() if state not in ENDED]
            if not waiting or loop.time() > deadline:
                return states
            states |= await self._submitter.states(waiting)
            await asyncio.sleep(DRAIN_POLL_SECONDS)


class Stalled(Exception):
    """A stage did not end, though each of its steps is bounded; the cause tells where it stood."""


@asynccontextmanager
async def within(seconds: float, stage: str) -> AsyncIterator[None]:
    """Give a stage up after so long. Raises Stalled."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise Stalled(f"{stage} did not end in {seconds:.0f} s") from error


def plan_of(seed: int, seconds: float, generation_bytes: int, record: StackRecord) -> Plan:
    """Return the plan for this seed and the stack's topology."""
    return Plan(
        seed=seed,
        seconds=seconds,
        generation_bytes=generation_bytes,
        faults=schedule.faults(seed, seconds, record.topology),
        jobs=schedule.jobs(seed, seconds),
    )
