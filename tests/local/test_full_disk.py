"""A bus whose disk was full: it answers and stores nothing until it is started anew, which waits for room."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.errors import TimeoutError as NoAnswerError
from tidegate_events import bus as connecting
from tidegate_local import bus, plan, service
from tidegate_local.home import Home
from tidegate_local.logfile import LogFile
from tidegate_local.permissions import ADMIN
from tidegate_local.service import Service
from tidegate_local.topology import NATS, ONE_OF_EACH

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
(SERVER,) = ONE_OF_EACH.processes(NATS)
SMALL, LARGE = "6m", "40m"
WAIT_SECONDS_MAX = 30.0
ANSWER_SECONDS = 1.0
SUBJECT = "tg.fact.gateway.local"


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Path]:
    """Yield a directory on a file system of its own, of 6 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", directory], check=True)  # noqa: ASYNC221
    try:
        yield directory
    finally:
        subprocess.run(["umount", directory], check=True)  # noqa: ASYNC221


async def test_it_is_started_anew_once_there_is_room(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WATCH_SECONDS", 0.2)
    home = Home(disk)
    home.create()
    made = bus.new_bus((plan.free_port(),))
    bus.write_config(home, made)
    log = LogFile(tmp_path / "nats.log")
    log.follow(asyncio.get_running_loop())
    server = Service(plan.nats_service(home, made, SERVER), log, on_change=lambda: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await server.ready.wait()
            client = await connecting.connect(made.login(ADMIN))
            stored = await _until_full(client)
            assert not await bus.is_stuck(made, SERVER, home.nats_dir), "there is no room yet"
            subprocess.run(["mount", "-o", f"remount,size={LARGE}", disk], check=True)  # noqa: ASYNC221
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while not (server.restarts == 1 and server.ready.is_set()):  # noqa: ASYNC110 - two things change
                    await asyncio.sleep(0.05)
            answer = await _append(client)
            assert b'"seq":' in answer
            info = await client.jetstream().stream_info("JOURNAL_1")
            assert info.state.messages == stored + 1
            await client.close()
        finally:
            await server.stop()
    log.close(asyncio.get_running_loop())


async def test_a_healthy_one_is_left_alone(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    made = bus.new_bus((plan.free_port(),))
    bus.write_config(home, made)
    log = LogFile(tmp_path / "nats.log")
    log.follow(asyncio.get_running_loop())
    server = Service(plan.nats_service(home, made, SERVER), log, on_change=lambda: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run())
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await server.ready.wait()
            assert not await bus.is_stuck(made, SERVER, home.nats_dir)
        finally:
            await server.stop()
    assert not await bus.is_stuck(made, SERVER, home.nats_dir)
    log.close(asyncio.get_running_loop())


async def _append(client: Client) -> bytes:
    answer: bytes = (await client.request(SUBJECT, os.urandom(100_000), timeout=ANSWER_SECONDS)).data
    return answer


async def _until_full(client: Client) -> int:
    """Append until nothing answers any more; return how many were acknowledged."""
    for stored in range(200):
        try:
            answer = await _append(client)
        except (NoAnswerError, TimeoutError):
            return stored
        assert b'"error"' not in answer
    raise AssertionError("the disk took everything")
