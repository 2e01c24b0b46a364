"""One supervised process: start it, wait until it is ready, start it again when it ends, within a bound.

A service never outlives its supervisor: the kernel kills it when the supervisor's process ends, however that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

from tidegate_local.logfile import LogFile

RESTARTS_MAX = 6
RESTART_WINDOW_SECONDS = 60.0
BACKOFF_SECONDS_FIRST = 0.2
BACKOFF_SECONDS_MAX = 5.0
READY_SECONDS_MAX = 30.0
READY_POLL_SECONDS = 0.05
STOP_SECONDS_MAX = 8.0
WATCH_SECONDS = 2.0
PR_SET_PDEATHSIG = 1

log = structlog.get_logger()
_libc = ctypes.CDLL(None, use_errno=True)

ReadyCheck = Callable[[], Awaitable[bool]]


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run and how to see that it is ready. Secrets belong into `env`, never into `argv`."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    is_ready: ReadyCheck
    before_start: Callable[[], None]
    is_stuck: ReadyCheck | None = None
    """Says of a ready process whether it shall be started anew; asked every WATCH_SECONDS."""
    ready_seconds_max: float = READY_SECONDS_MAX
    stop_signal: signal.Signals = signal.SIGTERM
    become: Callable[[], None] | None = None
    """What the new process does to itself before it executes, for instance take another account."""


class ServiceFailedError(Exception):
    """The service ended too often, or did not get ready in time; the stack cannot go on."""


class Service:
    """A process that is kept running until `stop`."""

    def __init__(self, spec: ServiceSpec, log_file: LogFile, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self.restarts = 0
        self._log_file = log_file
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self._stop_asked = asyncio.Event()
        self._ends: deque[float] = deque(maxlen=RESTARTS_MAX)

    @property
    def pid(self) -> int:
        """Return the pid of the running process, 0 where there is none."""
        return self._process.pid if self._process and self._process.returncode is None else 0

    async def run(self) -> None:
        """Keep the process running until `stop`. Raises ServiceFailedError when it ends too often."""
        while not self._stop_asked.is_set():
            process = await self._start()
            code = await self._watch(process)
            self.ready.clear()
            if self._stop_asked.is_set():
                return
            wait_seconds = self._backoff(code)
            log.warning("service_ended", service=self.spec.name, code=code, restart_in_seconds=wait_seconds)
            self._on_change()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._stop_asked.wait()
            self.restarts += 1

    async def stop(self) -> None:
        """Ask with the service's stop signal, then SIGKILL after STOP_SECONDS_MAX; return when the process is gone."""
        self._stop_asked.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(self.spec.stop_signal)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        except TimeoutError:
            log.warning("service_killed", service=self.spec.name, after_seconds=STOP_SECONDS_MAX)
            process.kill()
            await process.wait()
        log.info("service_stopped", service=self.spec.name, seconds=round(time.monotonic() - began, 2))

    async def _start(self) -> asyncio.subprocess.Process:
        self.spec.before_start()
        self._process = await asyncio.create_subprocess_exec(
            *self.spec.argv,
            env=self.spec.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self._log_file.write_end,
            stderr=self._log_file.write_end,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which ends the rest in order
            preexec_fn=_before_execution(self.spec.become, os.getpid()),
        )
        log.info("service_started", service=self.spec.name, pid=self._process.pid)
        self._on_change()
        return self._process

    async def _watch(self, process: asyncio.subprocess.Process) -> int:
        """Wait for the end of the process, and look after it meanwhile; return its exit code."""
        async with asyncio.TaskGroup() as group:
            attending = group.create_task(self._attend(process))
            code = await process.wait()
            attending.cancel()
        return code

    async def _attend(self, process: asyncio.subprocess.Process) -> None:
        await self._become_ready(process)
        while self.spec.is_stuck is not None and self.ready.is_set():
            await asyncio.sleep(WATCH_SECONDS)
            if await self.spec.is_stuck():
                log.error("service_stuck", service=self.spec.name, pid=process.pid)
                process.send_signal(self.spec.stop_signal)  # counts as an end: it is started again, within the bound
                return

    async def _become_ready(self, process: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + self.spec.ready_seconds_max
        while not await self.spec.is_ready():
            if time.monotonic() > deadline:
                log.error("service_not_ready", service=self.spec.name, after_seconds=self.spec.ready_seconds_max)
                process.kill()  # counts as an end: it is started again, within the bound
                return
            await asyncio.sleep(READY_POLL_SECONDS)
        self.ready.set()
        self._on_change()
        log.info("service_ready", service=self.spec.name, pid=process.pid)

    def _backoff(self, code: int) -> float:
        now = time.monotonic()
        self._ends.append(now)
        if len(self._ends) == RESTARTS_MAX and now - self._ends[0] < RESTART_WINDOW_SECONDS:
            raise ServiceFailedError(
                f"{self.spec.name} ended {RESTARTS_MAX} times within {RESTART_WINDOW_SECONDS:.0f} s "
                f"(last exit code {code}). The end of its log:\n{self._log_file.tail()}"
            )
        recent = sum(now - end < RESTART_WINDOW_SECONDS for end in self._ends)
        return min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS_FIRST * 2.0 ** (recent - 1))


def _before_execution(become: Callable[[], None] | None, parent: int) -> Callable[[], Any]:
    """Return what the new process does before exec: take its account, ask the kernel for SIGKILL at its parent's end.

    In this order, because the kernel forgets the wish when a process changes its account.
    """

    def prepare() -> None:
        if become is not None:
            become()
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)

    return prepare
