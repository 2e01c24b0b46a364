"""Scheduler processes for tests: the real command against a real bus, ended by pid, their logs in files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from tidegate_events import bus, subjects
from tidegate_events import events as e
from tidegate_events.journal.base import Recorded
from tidegate_events.journal.nats import NatsJournal

from tests.support.nats import NatsServer

WAIT_SECONDS = 30
POLL_SECONDS = 0.01
STOP_SECONDS = 10


async def create_lease_bucket(client: Client) -> None:
    """Create what the stack's own login creates."""
    await client.jetstream().create_key_value(bucket="LEASE", history=1, direct=False)


class SchedulerProcess:
    """One `tidegate-scheduler`."""

    def __init__(self, directory: Path, url: str, instance: str, **variables: str) -> None:
        self.instance = instance
        self.log_path = directory / f"{instance}.log"
        self._ready_file = directory / f"{instance}.ready"
        self._ready_file.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "TIDEGATE_BUS_URL": url,
            "TIDEGATE_INSTANCE": instance,
            "TIDEGATE_READY_FILE": str(self._ready_file),
            "TIDEGATE_NODE_SILENCE_SECONDS": "120",  # the nodes of these tests say nothing
            **variables,
        }
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).with_name("tidegate-scheduler")],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def ready(self) -> None:
        """Wait until it says that it is ready."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not self._ready_file.exists():
                self.must_run()
                await asyncio.sleep(POLL_SECONDS)

    def must_run(self) -> None:
        """Fail with the end of its log if it has ended."""
        assert self._process.poll() is None, self.log_path.read_text()[-3000:]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it, and to nobody else."""
        os.kill(self._process.pid, number)

    def kill9(self) -> None:
        """End it where it stands."""
        self.signal(signal.SIGKILL)
        self._process.wait(STOP_SECONDS)

    async def stop(self) -> int:
        """End it in good order; return its exit code."""
        self.signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_SECONDS):
            while self._process.poll() is None:  # noqa: ASYNC110 - a process gives no events
                await asyncio.sleep(POLL_SECONDS)
        return self._process.returncode

    def end(self) -> None:
        """End it whatever state it is in."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(STOP_SECONDS)

    def said(self, event: str) -> list[dict[str, Any]]:
        """Return its log lines of that kind."""
        lines = (json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("event") == event]

    async def says(self, event: str) -> dict[str, Any]:
        """Wait for a log line of that kind and return the first."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not (found := self.said(event)):  # noqa: ASYNC110 - files give no events
                await asyncio.sleep(POLL_SECONDS)
        return found[0]


class Stage:
    """A bus, a journal and schedulers on it."""

    def __init__(self, directory: Path, server: NatsServer, client: Client) -> None:
        self.directory = directory
        self.server = server
        self.client = client
        self.journal = NatsJournal(client)
        self.processes: list[SchedulerProcess] = []

    def start(self, instance: str, **variables: str) -> SchedulerProcess:
        """Start one more scheduler."""
        process = SchedulerProcess(self.directory, self.server.url, instance, **variables)
        self.processes.append(process)
        return process

    async def pair(self, **variables: str) -> tuple[SchedulerProcess, SchedulerProcess]:
        """Start two, one after the other: the first one leads, the other stands by."""
        first = self.start("s1", **variables)
        await first.ready()
        second = self.start("s2", **variables)
        await second.ready()
        return first, second

    async def election(self, epoch_above: int) -> tuple[Recorded, e.LeaderElected]:
        """Wait for the first election with an epoch above that one."""
        async with asyncio.timeout(WAIT_SECONDS), contextlib.aclosing(self.journal.follow(0)) as frames:
            async for recorded in frames:
                for event in recorded.frame.events:
                    if isinstance(event, e.LeaderElected) and event.epoch > epoch_above:
                        return recorded, event
        raise AssertionError("the journal ended")

    async def history(self) -> list[Recorded]:
        """Return all frames."""
        return [recorded async for recorded in self.journal.read(0, await self.journal.end())]

    async def leader(self) -> dict[str, Any]:
        """Ask who leads until somebody says so."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                answer = await self.client.request(subjects.ask_scheduler("leader"), b"", timeout=0.5)
                found: dict[str, Any] = json.loads(answer.data)
                return found
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError("nobody says that it leads")


@contextlib.asynccontextmanager
async def on_a_stage(directory: Path) -> AsyncIterator[Stage]:
    """Yield a stage, and leave nothing of it running."""
    server = NatsServer(directory)
    await server.start()
    client = await bus.connect(bus.BusSettings(url=server.url))
    stage = Stage(directory, server, client)
    try:
        await stage.journal.ensure_stream(max_bytes=64 * 1024 * 1024)
        await create_lease_bucket(client)
        yield stage
    finally:
        for process in stage.processes:
            process.end()
        await client.close()
        server.stop()
