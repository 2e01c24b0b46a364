"""A supervised process: ready, started again, given up in a bound, and never longer alive than its supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from tidegate_local import service
from tidegate_local.logfile import LogFile
from tidegate_local.service import Service, ServiceFailedError, ServiceSpec

WAIT_SECONDS_MAX = 20.0


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LogFile]:
    """Yield a log file that is being followed."""
    loop = asyncio.get_running_loop()
    file = LogFile(tmp_path / "service.log")
    file.follow(loop)
    yield file
    file.close(loop)


def spec(tmp_path: Path, script: str) -> ServiceSpec:
    ready = tmp_path / "ready"

    async def is_ready() -> bool:
        return ready.exists()

    return ServiceSpec(
        name="service",
        argv=(sys.executable, "-c", script),
        env={"READY": str(ready), "SECRET": "s3cret"},
        is_ready=is_ready,
        before_start=lambda: ready.unlink(missing_ok=True),
    )


READY_THEN_WAIT = (
    "import os, pathlib, time; pathlib.Path(os.environ['READY']).touch(); print('up', flush=True); time.sleep(60)"
)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_killed_service_comes_back_ready(tmp_path: Path, log: LogFile) -> None:
    watched = Service(spec(tmp_path, READY_THEN_WAIT), log, on_change=lambda: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(watched.run())
        await asyncio.wait_for(watched.ready.wait(), WAIT_SECONDS_MAX)
        first = watched.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: watched.restarts == 1 and watched.ready.is_set())
        second = watched.pid
        assert second not in {0, first}
        await watched.stop()
    assert watched.pid == 0
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
    assert log.path.read_text() == "up\nup\n"


async def test_a_service_that_keeps_ending_is_given_up(
    tmp_path: Path, log: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BACKOFF_SECONDS_FIRST", 0.001)
    watched = Service(spec(tmp_path, "print('no luck', flush=True); raise SystemExit(7)"), log, on_change=lambda: None)
    with pytest.raises(ServiceFailedError, match=r"last exit code 7(.|\n)*no luck"):
        await asyncio.wait_for(watched.run(), WAIT_SECONDS_MAX)
    assert watched.restarts == service.RESTARTS_MAX - 1


async def test_a_service_that_never_gets_ready_is_started_again(
    tmp_path: Path, log: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BACKOFF_SECONDS_FIRST", 0.001)
    never_ready = msgspec.structs.replace(spec(tmp_path, "import time; time.sleep(60)"), ready_seconds_max=0.05)
    watched = Service(never_ready, log, on_change=lambda: None)
    with pytest.raises(ServiceFailedError, match="exit code -9"):
        await asyncio.wait_for(watched.run(), WAIT_SECONDS_MAX)


async def test_a_service_that_is_stuck_is_started_again(
    tmp_path: Path, log: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WATCH_SECONDS", 0.01)
    asked: list[int] = []

    async def is_stuck() -> bool:
        asked.append(watched.pid)
        return len(asked) == 3

    stuck_once = msgspec.structs.replace(spec(tmp_path, READY_THEN_WAIT), is_stuck=is_stuck)
    watched = Service(stuck_once, log, on_change=lambda: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(watched.run())
        await until(lambda: watched.restarts == 1 and watched.ready.is_set() and len(asked) > 3)
        assert asked[0] == asked[2] != asked[-1]
        await watched.stop()


async def test_a_service_that_ignores_the_request_to_end_is_killed(
    tmp_path: Path, log: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "STOP_SECONDS_MAX", 0.1)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY_THEN_WAIT
    watched = Service(spec(tmp_path, deaf), log, on_change=lambda: None)
    async with asyncio.TaskGroup() as group:
        group.create_task(watched.run())
        await asyncio.wait_for(watched.ready.wait(), WAIT_SECONDS_MAX)
        await watched.stop()
    assert watched.pid == 0


async def test_stopping_does_not_wait_for_a_restart(
    tmp_path: Path, log: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "BACKOFF_SECONDS_FIRST", 3600.0)
    monkeypatch.setattr(service, "BACKOFF_SECONDS_MAX", 3600.0)
    watched = Service(spec(tmp_path, "raise SystemExit(1)"), log, on_change=lambda: None)
    running = asyncio.ensure_future(watched.run())
    await until(lambda: watched.pid == 0 and log.path.exists() and not running.done() and bool(watched._ends))
    await watched.stop()
    await asyncio.wait_for(running, WAIT_SECONDS_MAX)


SUPERVISOR = """
import asyncio, sys
from pathlib import Path
from tidegate_local.logfile import LogFile
from tidegate_local.service import Service, ServiceSpec

async def never():
    return False

async def main():
    sleep = (sys.executable, "-c", "import time; time.sleep(120)")
    spec = ServiceSpec(name="child", argv=sleep, env={}, is_ready=never, before_start=lambda: None)
    child = Service(spec, LogFile(Path(sys.argv[1])), on_change=lambda: print(child.pid, flush=True))
    await child.run()

asyncio.run(main())
"""


def test_no_service_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path / "child.log")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert supervisor.stdout is not None
    with supervisor.stdout as answers:
        lines = iter(answers.readline, b"")
        pid = next(int(line) for line in lines if line.strip().isdigit() and int(line))
        child = Path(f"/proc/{pid}/cmdline")
        assert b"time.sleep(120)" in child.read_bytes()
        supervisor.kill()
        supervisor.wait()
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while child.exists() and child.read_bytes() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not child.exists() or not child.read_bytes()
