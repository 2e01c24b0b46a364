"""The stack's parent process: starts the bus and the services in order, keeps them running, ends them in order.

When a service cannot be kept running the whole stack ends and says why: half a stack would only look alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import structlog
from tidegate_events.bus import BusUnreachableError
from tidegate_events.journal.base import JournalError

from tidegate_local import plan
from tidegate_local.bus import OPERATOR, create_streams, new_bus, write_config
from tidegate_local.home import LOOPBACK, NODE, Home, ServiceRecord, StackRecord, State
from tidegate_local.leftovers import sweep
from tidegate_local.logfile import LogFile
from tidegate_local.plan import StackOptions
from tidegate_local.service import Service, ServiceFailedError, ServiceSpec

START_SECONDS_MAX = plan.EXECUTOR_READY_SECONDS_MAX + 30.0

log = structlog.get_logger()


class Stack:
    """One stack, for the life of this process. The caller holds the home's lock."""

    def __init__(self, options: StackOptions) -> None:
        self._options = options
        self._home = Home(options.home)
        self._gateway_port = plan.free_port(plan.GATEWAY_PORT_PREFERRED)
        self._bus = new_bus(plan.free_port(), NODE)
        self._services: dict[str, Service] = {}
        self._state: State = "starting"
        self._detail = ""

    @property
    def record(self) -> StackRecord:
        """Return what others may know of this stack now."""
        return StackRecord(
            state=self._state,
            pid=os.getpid(),
            home=str(self._home.root),
            node=NODE,
            level=self._options.level,
            gateway_url=f"http://{LOOPBACK}:{self._gateway_port}",
            bus_url=self._bus.url,
            bus_user=OPERATOR,
            bus_password=self._bus.passwords[OPERATOR],
            ports={plan.NATS: self._bus.port, "gateway": self._gateway_port},
            services={
                name: ServiceRecord(
                    pid=service.pid, ready=service.ready.is_set(), restarts=service.restarts, log=f"logs/{name}.log"
                )
                for name, service in self._services.items()
            },
            detail=self._detail,
        )

    async def run(self, stop_asked: asyncio.Event, on_ready: Callable[[StackRecord], None]) -> int:
        """Run until `stop_asked`, or until a service cannot be kept running; return the exit code."""
        write_config(self._home, self._bus, NODE)
        self._publish("starting")
        with self._log_files() as logs:
            code = await self._supervise(logs, stop_asked, on_ready)
        for failure in await sweep(self._options):
            log.error("sweep_failed", detail=failure.what)
            self._detail, code = failure.what, 1
        self._publish("failed" if code else "stopped")
        log.info("stack_ended", code=code)
        return code

    async def _supervise(
        self, logs: dict[str, LogFile], stop_asked: asyncio.Event, on_ready: Callable[[StackRecord], None]
    ) -> int:
        code = 0
        try:
            async with asyncio.TaskGroup() as group:
                starting = group.create_task(self._start(group, logs))
                starting.add_done_callback(lambda task: self._on_started(task, on_ready))
                await stop_asked.wait()
                self._publish("stopping")
                starting.cancel()
                await self._stop()
        except* (ServiceFailedError, TimeoutError, BusUnreachableError, JournalError, OSError) as failures:
            self._detail = "; ".join(_why(failure) for failure in failures.exceptions)
            log.error("stack_failed", detail=self._detail)
            code = 1
        finally:
            await self._stop()
        return code

    async def _start(self, group: asyncio.TaskGroup, logs: dict[str, LogFile]) -> None:
        async with asyncio.timeout(START_SECONDS_MAX):
            nats = self._add(group, logs, plan.nats_service(self._home, self._bus))
            await nats.ready.wait()
            await create_streams(self._bus)
            clients = [
                self._add(group, logs, plan.bus_client(name, self._options, self._bus, self._gateway_port))
                for name in plan.BUS_CLIENTS
            ]
            for service in clients:
                await service.ready.wait()

    def _add(self, group: asyncio.TaskGroup, logs: dict[str, LogFile], spec: ServiceSpec) -> Service:
        service = Service(spec, logs[spec.name], on_change=self._write)
        self._services[spec.name] = service
        group.create_task(service.run())
        return service

    def _on_started(self, task: asyncio.Task[None], on_ready: Callable[[StackRecord], None]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._publish("ready")
            on_ready(self.record)

    async def _stop(self) -> None:
        for name in plan.STOP_ORDER:
            if service := self._services.get(name):
                await service.stop()

    def _publish(self, state: State) -> None:
        self._state = state
        self._write()

    def _write(self) -> None:
        self._home.write_record(self.record)

    @contextlib.contextmanager
    def _log_files(self) -> Iterator[dict[str, LogFile]]:
        loop = asyncio.get_running_loop()
        logs = {name: LogFile(self._home.logs_dir / f"{name}.log") for name in plan.STOP_ORDER}
        for file in logs.values():
            file.follow(loop)
        try:
            yield logs
        finally:
            for file in logs.values():
                file.close(loop)


def _why(failure: BaseException) -> str:
    if isinstance(failure, TimeoutError):
        return f"not every service was ready within {START_SECONDS_MAX:.0f} s"
    return str(failure) or repr(failure)


async def run_stack(options: StackOptions, on_ready: Callable[[StackRecord], None]) -> int:
    """Hold the home, run the stack until SIGINT, SIGTERM or SIGHUP, and return the exit code.

    Raises HomeInUseError before anything is started.
    """
    home = Home(options.home)
    home.create()
    lock = home.hold()
    try:
        stop_asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop_asked.set)
        return await Stack(options).run(stop_asked, on_ready)
    finally:
        os.close(lock)
