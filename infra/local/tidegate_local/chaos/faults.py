"""Doing what the schedule says to the processes of a running stack, and writing down what was hit when."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog
from tidegate_events.journal.base import Journal, JournalError
from tidegate_events.subjects import DECISION

from tidegate_local.chaos.schedule import LEADER, Fault
from tidegate_local.home import Home, StackRecord
from tidegate_local.topology import NATS, SCHEDULER

WHOLE_SECONDS_MAX = 8.0
POLL_SECONDS = 0.1
SETTLE_SECONDS = 2.0
"""A server of the bus that was stopped catches up before it counts as whole."""
LEADER_SECONDS_MAX = 3.0

log = structlog.get_logger()


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A fault as it happened. `led`: it hit the leader; `fair`: another scheduler stood by, the whole bus was up."""

    what: str
    name: str
    at_ns: int
    seconds: float = 0.0
    led: bool = False
    fair: bool = True


Fill = Callable[[asyncio.TaskGroup, float], Awaitable[None]]
"""Fills the journal, for at most so many seconds; what it starts goes into the group."""


class Injector:
    """Hits processes by their current pid, which the stack's record tells."""

    def __init__(self, home: Home, journal: Journal, fill: Fill) -> None:
        self._home = home
        self._journal = journal
        self._fill = fill
        self._stopped: dict[str, int] = {}
        self._bus_away_until = 0.0
        self.hits: list[Hit] = []
        self.skipped = 0

    async def run(self, faults: tuple[Fault, ...]) -> None:
        """Do all of it, each at its time; on the way out everything that was stopped goes on."""
        began = time.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                for fault in faults:
                    await asyncio.sleep(max(0.0, began + fault.at_seconds - time.monotonic()))
                    if fault.what == "fill":
                        tasks.create_task(self._fill_up(tasks, fault))
                    else:
                        await self._hit(tasks, fault)
        finally:
            for pid in self._stopped.values():
                _send(pid, signal.SIGCONT)

    async def _hit(self, tasks: asyncio.TaskGroup, fault: Fault) -> None:
        leader = await self._leader() if fault.target.partition("-")[0] in {LEADER, SCHEDULER} else ""
        name = leader if fault.target == LEADER else fault.target
        if name.startswith(NATS) and not await self._bus_becomes_whole(name):
            self._skip(fault, "another server of the bus is away")
            return
        pid = self._pid(name)
        if not pid:
            self._skip(fault, "it does not run")
            return
        hit = Hit(
            what=fault.what,
            name=name,
            at_ns=time.time_ns(),
            seconds=fault.seconds,
            led=bool(leader) and name == leader,
            fair=self._is_bus_whole(self._record(), "") and self._stands_by(self._record(), name),
        )
        self.hits.append(hit)
        log.info("hit", what=hit.what, name=name, pid=pid, seconds=hit.seconds, led=hit.led)
        if fault.what == "stop":
            tasks.create_task(self._stop(name, pid, fault.seconds))
        else:
            _send(pid, signal.SIGKILL if fault.what == "kill" else signal.SIGINT)

    async def _stop(self, name: str, pid: int, seconds: float) -> None:
        self._stopped[name] = pid
        _send(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            _send(pid, signal.SIGCONT)
            del self._stopped[name]
            if name.startswith(NATS):
                self._bus_away_until = time.monotonic() + SETTLE_SECONDS

    async def _fill_up(self, tasks: asyncio.TaskGroup, fault: Fault) -> None:
        """Keep the keeper from making room while the journal is filled."""
        if not (pid := self._pid(fault.target)):
            self._skip(fault, "it does not run")
            return
        self.hits.append(Hit(what="fill", name=fault.target, at_ns=time.time_ns(), seconds=fault.seconds))
        self._stopped[fault.target] = pid
        _send(pid, signal.SIGSTOP)
        try:
            await self._fill(tasks, fault.seconds)
        finally:
            _send(pid, signal.SIGCONT)
            del self._stopped[fault.target]

    async def _leader(self) -> str:
        """Return the service whose process leads; "" where nobody can be asked."""
        try:
            async with asyncio.timeout(LEADER_SECONDS_MAX):
                last = await self._journal.last(DECISION)
        except (JournalError, TimeoutError) as error:
            log.info("leader_unknown", why=repr(error))
            return ""
        return last.frame.writer.instance if last else ""

    async def _bus_becomes_whole(self, victim: str) -> bool:
        deadline = time.monotonic() + WHOLE_SECONDS_MAX
        while not self._is_bus_whole(self._record(), victim):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def _is_bus_whole(self, record: StackRecord, but: str) -> bool:
        others = [name for name in record.services if name.startswith(NATS) and name != but]
        return (
            time.monotonic() >= self._bus_away_until
            and all(record.services[name].ready for name in others)
            and not any(name in self._stopped for name in others)
        )

    def _stands_by(self, record: StackRecord, leader: str) -> bool:
        """Say whether another scheduler is ready to lead: one that was killed a moment ago is still starting."""
        others = {name: each for name, each in record.services.items() if name.startswith(SCHEDULER) and name != leader}
        return any(each.ready and name not in self._stopped for name, each in others.items())

    def _record(self) -> StackRecord:
        record = self._home.read_record()
        if record is None or record.state != "ready":
            raise RuntimeError(f"the stack in {self._home.root} ended: {record.detail if record else 'no record'}")
        return record

    def _pid(self, name: str) -> int:
        """Return the pid of a process that runs, is a child of the stack's supervisor, and is not stopped by us."""
        record = self._record()
        service = record.services.get(name)
        if service is None or not service.pid or name in self._stopped:
            return 0
        return service.pid if _parent(service.pid) == record.pid else 0

    def _skip(self, fault: Fault, why: str) -> None:
        self.skipped += 1
        log.info("skipped", what=fault.what, name=fault.target, why=why)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
