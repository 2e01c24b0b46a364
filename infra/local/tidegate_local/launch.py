"""Starting a stack that outlives the command which started it, and ending it, from outside its supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from tidegate_local import leftovers, plan
from tidegate_local.home import Home, HomeInUseError, StackRecord
from tidegate_local.leftovers import Leftover
from tidegate_local.plan import StackOptions
from tidegate_local.service import STOP_SECONDS_MAX
from tidegate_local.supervisor import START_SECONDS_MAX

POLL_SECONDS = 0.05
STOP_STACK_SECONDS_MAX = len(plan.STOP_ORDER) * STOP_SECONDS_MAX + leftovers.SWEEP_SECONDS_MAX
SUPERVISOR_LOG = "supervisor.log"
TAIL_BYTES = 2048


class StartFailedError(Exception):
    """The stack did not get ready; the text says why."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How `stop` went."""

    was_running: bool
    leftovers: list[Leftover]


def start_detached(options: StackOptions, on_progress: Callable[[StackRecord], None]) -> StackRecord:
    """Start a supervisor in a session of its own and return once every service is ready.

    `on_progress` is told again and again how far it is.
    Raises HomeError, StartFailedError; then nothing is left running.
    """
    home = Home(options.home)
    home.create()
    os.close(home.hold())  # a quick refusal; the supervisor takes the lock for good
    log_path = home.logs_dir / SUPERVISOR_LOG
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate_local", options.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS_MAX + STOP_STACK_SECONDS_MAX
    while time.monotonic() < deadline:
        record = home.read_record()
        if process.poll() is not None:
            raise StartFailedError(_why(record, process.pid, log_path.read_bytes()[-TAIL_BYTES:]))
        if record and record.pid == process.pid and record.state == "ready":
            return record
        if record and record.pid == process.pid:
            on_progress(record)
        time.sleep(POLL_SECONDS)
    process.kill()
    process.wait()
    raise StartFailedError(f"not ready in time, see {log_path}")


def _why(record: StackRecord | None, pid: int, log_tail: bytes) -> str:
    if record and record.pid == pid and record.detail:
        return record.detail
    return log_tail.decode(errors="replace").strip()


async def stop(home: Home) -> Ended:
    """End the stack in `home`, its sandboxes too, and look at what is left. Idempotent."""
    record = home.read_record()
    if record is None:
        return Ended(was_running=False, leftovers=[])
    was_running = home.is_held()
    failures: list[Leftover] = []
    if was_running:
        failures += await _end_supervisor(home, record.pid)
    options = StackOptions(home=home.root, unisolated=record.level == "unisolated", topology=record.topology)
    failures += await leftovers.sweep(options)
    left = await leftovers.find_settled(home, record.ports)
    if not left and not failures:
        record.state = "stopped"
        home.write_record(record)
    return Ended(was_running=was_running, leftovers=[*failures, *left])


async def _end_supervisor(home: Home, pid: int) -> list[Leftover]:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_STACK_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            os.close(home.hold())
        except HomeInUseError:
            await asyncio.sleep(POLL_SECONDS)
        else:
            return []
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # the kernel then ends its services
    return [Leftover(kind="process", what=f"the supervisor (pid {pid}) did not end in time and was killed")]
