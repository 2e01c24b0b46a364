"""`tidegate-keeper` as a process: ten times a generation's bytes go through, also when it is killed while it rolls."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from tidegate_events.journal.archive import ArchiveDirectory, inspect
from tidegate_events.journal.generations import generations
from tidegate_events.journal.nats import NatsJournal
from tidegate_scheduler.history import verify
from tidegate_scheduler.keeper.settings import CLOSED_MAX, SettingsError, from_environment
from tidegate_scheduler.start import load_state

from tests.scheduler.keeper.bench import GENERATION_BYTES, PADDING_BYTES, History, result
from tests.support.nats import NatsServer

QUOTAS = 10
FRAMES_PER_QUOTA = GENERATION_BYTES // PADDING_BYTES + 1
WAIT_SECONDS = 60
KILLS = 4


class Process:
    """The command, as an operator starts it."""

    def __init__(self, url: str, archive_dir: Path, log: Path) -> None:
        self._log = log
        self._env = {
            **os.environ,
            "TIDEGATE_BUS_URL": url,
            "TIDEGATE_JOURNAL_ARCHIVE_DIR": str(archive_dir),
            "TIDEGATE_GENERATION_BYTES": str(GENERATION_BYTES),
            "TIDEGATE_SNAPSHOT_EVENTS": "20",
            "TIDEGATE_KEEPER_POLL_MILLIS": "50",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "tidegate_scheduler.keeper.main"]
            self._process = subprocess.Popen(command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        code = self._process.wait(timeout=WAIT_SECONDS)
        self._process = None
        return code

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def said(self) -> str:
        return self._log.read_text()


@contextmanager
def running(server: NatsServer, directory: Path) -> Iterator[Process]:
    process = Process(server.url, directory / "archive", directory / "keeper.log")
    process.start()
    try:
        yield process
    finally:
        if not process.ended:
            process.end(signal.SIGKILL)


async def until_archived(client: Client, process: Process) -> None:
    """Wait until the live generation is the only stream."""
    async with asyncio.timeout(WAIT_SECONDS):
        while len(there := await generations(client)) > 1 or not there[0].live:
            assert not process.ended, process.said()[-4000:]
            await asyncio.sleep(0.05)


async def nothing_is_lost(client: Client, history: History, archive_dir: Path) -> None:
    await history.settle()
    found = await result(client, archive_dir)
    journal = NatsJournal(client, ArchiveDirectory(archive_dir))
    seen = []
    async for recorded in journal.read(0, await journal.end()):
        if recorded.frame.writer.service != "keeper":
            seen.append((recorded.seq, recorded.frame.writer.frame_id))
    assert seen == history.acknowledged, "every acknowledged frame, once, in its place"
    numbers = [generation for generation, *_ in found.opened]
    assert numbers == list(range(2, len(numbers) + 2)), "each opening was said once"
    assert [number for number, *_ in found.archived] == [number - 1 for number in numbers]
    report = await verify(journal.read(0, await journal.end()))
    assert report.ok, report.difference
    assert report.decisions_verified == report.decisions >= 15
    assert report.state_digest == found.state_digest == history.state.digest()
    from_snapshot = await load_state(client)
    assert from_snapshot.seq > 0
    tail = await verify(journal.read(from_snapshot.seq, await journal.end()), from_snapshot)
    assert tail.ok, tail.difference
    assert tail.state_digest == report.state_digest


async def test_ten_times_the_quota(client: Client, history: History, server: NatsServer, tmp_path: Path) -> None:
    most = 0
    with running(server, tmp_path) as process:
        for _ in range(QUOTAS * 2):
            await history.run_a_job()
            await history.pad(FRAMES_PER_QUOTA // 2)
            most = max(most, len(await generations(client)))
        await until_archived(client, process)
        assert process.end(signal.SIGTERM) == 0, process.said()[-2000:]
    assert most <= CLOSED_MAX + 1
    assert len(ArchiveDirectory(tmp_path / "archive").list()) >= QUOTAS
    await nothing_is_lost(client, history, tmp_path / "archive")


async def test_killed_while_it_rolls(client: Client, history: History, server: NatsServer, tmp_path: Path) -> None:
    killed_at: list[int] = []
    writing = asyncio.Event()

    async def write() -> None:
        while len(killed_at) < KILLS:
            await history.run_a_job()
            await history.pad(2)
        writing.set()

    async def kill(process: Process) -> None:
        known = 1
        while len(killed_at) < KILLS:
            assert not process.ended, process.said()[-4000:]
            newest = (await generations(client))[-1]
            if newest.live and newest.number == known:
                continue  # each question is a round trip to the server
            process.end(signal.SIGKILL)
            killed_at.append(newest.number)
            known = newest.number if newest.live else newest.number + 1
            process.start()

    with running(server, tmp_path) as process:
        async with asyncio.timeout(2 * WAIT_SECONDS), asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            tasks.create_task(kill(process))
        await history.pad(2)
        await until_archived(client, process)
        assert process.end(signal.SIGTERM) == 0, process.said()[-2000:]
    for archived in ArchiveDirectory(tmp_path / "archive").list():
        inspect(archived.path)
    await nothing_is_lost(client, history, tmp_path / "archive")


def test_settings_that_cannot_be_used_are_refused_with_what_is_accepted() -> None:
    with pytest.raises(SettingsError, match="TIDEGATE_JOURNAL_ARCHIVE_DIR is not set"):
        from_environment({})
    where = {"TIDEGATE_JOURNAL_ARCHIVE_DIR": "/archive"}
    for name, value in {
        "TIDEGATE_GENERATION_BYTES": "1000",
        "TIDEGATE_GENERATION_PERCENT": "100",
        "TIDEGATE_SNAPSHOT_EVENTS": "often",
        "TIDEGATE_SEALED_KEPT": "9",
        "TIDEGATE_INSTANCE": "a b",
    }.items():
        with pytest.raises(SettingsError, match=name):
            from_environment({**where, name: value})
    chosen = from_environment({**where, "TIDEGATE_SNAPSHOT_EVENTS": "9", "TIDEGATE_SEALED_KEPT": "1"})
    assert (chosen.snapshot_events, chosen.sealed_kept, chosen.archive_dir) == (9, 1, Path("/archive"))


def test_the_command_refuses_arguments() -> None:
    command = [sys.executable, "-m", "tidegate_scheduler.keeper.main", "now"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert ended.returncode == 2
    assert "settings are TIDEGATE_* variables" in ended.stderr
