"""The installed projector as a process on a real bus and a real PostgreSQL, and histories written to that bus."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidegate_events.journal.base import Appended, Recorded
from tidegate_events.journal.nats import NatsJournal
from tidegate_gateway.database import generations
from tidegate_gateway.database.connection import Database, DatabaseAwayError
from tidegate_gateway.database.loader import load_view
from tidegate_gateway.view.projection import View

COMMAND = Path(sys.executable).parent / "tidegate-projector"
SECONDS_MAX = 60.0
POLL_SECONDS = 0.05
STOP_SECONDS_MAX = 20


class ProjectorProcess:
    """The command, with its log in a file that outlives it."""

    def __init__(self, directory: Path, bus_url: str, database_url: str) -> None:
        self.log = directory / "projector.log"
        self.environment = {
            **os.environ,
            "TIDEGATE_BUS_URL": bus_url,
            "TIDEGATE_DATABASE_URL": database_url,
            "TIDEGATE_READY_FILE": str(directory / "ready"),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it is not waited for."""
        with self.log.open("ab") as out:
            self._process = subprocess.Popen([COMMAND], stdout=out, stderr=out, env=self.environment)

    @property
    def running(self) -> bool:
        """Say whether it runs."""
        return self._process is not None and self._process.poll() is None

    def end(self, how: signal.Signals) -> int:
        """End it and return its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            os.kill(self._process.pid, how)
        code = self._process.wait(STOP_SECONDS_MAX)
        self._process = None
        return code

    def stop(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self.end(signal.SIGKILL)

    def lines(self) -> list[dict[str, Any]]:
        """Return the whole lines of its log; each must be JSON."""
        return [json.loads(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a subcommand to its end."""
        return self._run([COMMAND, *arguments])

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `tidegate` to its end, on the same bus and database."""
        return self._run([COMMAND.with_name("tidegate"), *arguments])

    def _run(self, command: list[Path | str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )


async def append(journal: NatsJournal, frames: Iterable[Recorded]) -> None:
    """Append frames as they were recorded."""
    for recorded in frames:
        appended = await journal.append(recorded.subject, recorded.frame)
        assert isinstance(appended, Appended)
        assert appended.seq == recorded.seq


def folded(frames: Iterable[Recorded]) -> View:
    """Return the fold of frames."""
    view = View()
    for recorded in frames:
        view.apply(recorded)
    return view


async def until(reached: Callable[[], Any], what: str) -> None:
    """Wait until something holds; what needs the database may find it away."""
    deadline = asyncio.get_running_loop().time() + SECONDS_MAX
    while True:
        try:
            if await reached():
                return
        except DatabaseAwayError:
            pass  # the test took it away; it is asked again
        assert asyncio.get_running_loop().time() < deadline, f"{what} did not come within {SECONDS_MAX:g} s"
        await asyncio.sleep(POLL_SECONDS)


async def position(database: Database) -> int:
    """Return where the active generation stands, -1 where there is none."""
    async with database.connection() as connection:
        active = await generations.active(connection)
        if active is None:
            return -1
        return int(await connection.fetchval(f"SELECT seq FROM {active.schema}.position"))


async def loaded(database: Database) -> View:
    """Return the view that the active generation holds."""
    async with database.transaction(read_only=True) as connection:
        active = await generations.active(connection)
        assert active is not None
        return await load_view(connection, active.schema)
