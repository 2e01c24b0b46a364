"""Shims wait ready, are replaced when they are used or killed, and end with the process that had them forked."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import InfrastructureError
from tidegate_executor.sandbox.launch import WAITING_MAX, Zygote, Zygotes, ground_of, take_shim, tell_shim

WAIT_SECONDS = 20
PLAIN = ground_of("process", None)

HOLDS = """
import sys, time
from tidegate_executor.sandbox.launch import Zygote, ground_of
zygote = Zygote(sys.executable)
zygote.refill(ground_of("bwrap", None))
print(zygote.pid, flush=True)
time.sleep(600)
"""


def children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields and fields[0] != "Z" and int(fields[1]) == pid:
            found.append(int(entry.name))
    return found


def until(condition: object) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_waits_for_the_next_start() -> None:
    zygote = Zygote(sys.executable)
    zygote.take(PLAIN).connection.close()
    assert (zygote.prepared, zygote.unprepared) == (0, 1)
    zygote.refill(PLAIN)
    zygote.refill(PLAIN)
    until(lambda: len(children(zygote.pid)) == WAITING_MAX)
    zygote.take(PLAIN).connection.close()
    assert (zygote.prepared, zygote.unprepared) == (1, 1)
    until(lambda: len(children(zygote.pid)) == WAITING_MAX - 1)


def test_one_that_was_killed_is_passed_over() -> None:
    zygote = Zygote(sys.executable)
    zygote.refill(PLAIN)
    until(lambda: len(children(zygote.pid)) == WAITING_MAX)
    for pid in children(zygote.pid):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not children(zygote.pid))
    zygote.take(PLAIN).connection.close()
    assert (zygote.prepared, zygote.unprepared) == (0, 1)


def test_a_killed_zygote_is_replaced() -> None:
    zygotes = Zygotes()
    first = zygotes.get(sys.executable)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: zygotes.living(sys.executable) is None)
    second = zygotes.get(sys.executable)
    assert second.pid != first.pid
    assert zygotes.living(sys.executable) is second


def test_all_that_wait_end_with_who_had_them_forked() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        zygote = int(holder.stdout.readline())
        until(lambda: len(children(zygote)) == WAITING_MAX)
        shims = children(zygote)
        until(lambda: all(len(children(shim)) == 2 for shim in shims))
        below = [pid for shim in shims for pid in children(shim)]
        holder.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (zygote, *shims, *below)))


async def test_what_cannot_be_set_up_says_why(tmp_path: Path) -> None:
    config = {"level": "unisolated", "backend": "process", "state_dir": str(tmp_path / "absent")}
    shim = await take_shim(sys.executable, PLAIN)
    with shim.connection, pytest.raises(InfrastructureError, match="No such file or directory"):
        async with asyncio.timeout(WAIT_SECONDS):
            await tell_shim(shim, config)
