"""The stack's parent process: starts the bus and the services in order, keeps them running, ends them in order.

When a service cannot be kept running the whole stack ends and says why: half a stack would only look alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator

import structlog

from tidegate_local import database, plan, postgres
from tidegate_local.bus import write_config
from tidegate_local.home import Home, ServiceRecord, StackRecord, State
from tidegate_local.leftovers import sweep
from tidegate_local.logfile import LogFile
from tidegate_local.permissions import OPERATOR
from tidegate_local.plan import StackOptions
from tidegate_local.postgres import InitFailedError
from tidegate_local.service import Service, ServiceFailedError, ServiceSpec
from tidegate_local.topology import EXECUTOR, NATS, Process

START_SECONDS_MAX = plan.EXECUTOR_READY_SECONDS_MAX + 30.0

log = structlog.get_logger()


class Stack:
    """One stack, for the life of this process. The caller holds the home's lock."""

    def __init__(self, options: StackOptions) -> None:
        self._options = options
        self._home = Home(options.home)
        self._wiring = plan.new_wiring(options)
        self._services: dict[str, Service] = {}
        self._bus_ready = asyncio.Event()
        self._state: State = "starting"
        self._detail = ""

    @property
    def record(self) -> StackRecord:
        """Return what others may know of this stack now."""
        return StackRecord(
            state=self._state,
            pid=os.getpid(),
            home=str(self._home.root),
            node=",".join(self._options.topology.node_names),
            level=self._options.level,
            gateway_url=self._wiring.ports.gateway_url,
            metrics_url=self._wiring.ports.metrics_url,
            database_url=self._wiring.database.url(database.OPERATOR),
            bus_url=self._wiring.bus.url,
            bus_user=OPERATOR,
            bus_password=self._wiring.bus.passwords[OPERATOR],
            ports=self._wiring.ports.by_name(),
            topology=self._options.topology,
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
        write_config(self._home, self._wiring.bus)
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
        except* (ServiceFailedError, InitFailedError, plan.MigrationFailedError, TimeoutError, OSError) as failures:
            self._detail = "; ".join(_why(failure) for failure in _leaves(failures))
            log.error("stack_failed", detail=self._detail)
            code = 1
        finally:
            await self._stop()
        return code

    async def _start(self, group: asyncio.TaskGroup, logs: dict[str, LogFile]) -> None:
        async with asyncio.timeout(START_SECONDS_MAX), asyncio.TaskGroup() as starting:
            starting.create_task(self._start_bus(group, logs))
            starting.create_task(self._start_database(group, logs))

    async def _start_bus(self, group: asyncio.TaskGroup, logs: dict[str, LogFile]) -> None:
        servers = self._options.topology.processes(NATS)
        started = [self._add(group, logs, plan.nats_service(self._home, self._wiring.bus, each)) for each in servers]
        for server in started:
            await server.ready.wait()
        self._bus_ready.set()
        # One node reads the files of the image; the others find its hashes.
        first, *others = self._options.topology.processes(EXECUTOR)
        kinds = [kind for kind in plan.BUS_CLIENTS if kind != EXECUTOR]
        await self._start_clients(group, logs, (*self._processes(kinds), first))
        await self._start_clients(group, logs, others)

    async def _start_database(self, group: asyncio.TaskGroup, logs: dict[str, LogFile]) -> None:
        await postgres.initialise(self._home, database.new_password)
        server = self._add(group, logs, plan.postgres_service(self._home, self._wiring.database))
        await server.ready.wait()
        await plan.migrate(self._options, self._wiring)
        await self._bus_ready.wait()
        await self._start_clients(group, logs, self._processes(plan.DATABASE_CLIENTS))

    def _processes(self, kinds: Iterable[str]) -> tuple[Process, ...]:
        return tuple(process for kind in kinds for process in self._options.topology.processes(kind))

    async def _start_clients(
        self, group: asyncio.TaskGroup, logs: dict[str, LogFile], processes: Iterable[Process]
    ) -> None:
        clients = [self._add(group, logs, plan.client(process, self._options, self._wiring)) for process in processes]
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
        for kind in plan.STOP_ORDER:
            async with asyncio.TaskGroup() as stopping:
                for process in self._processes((kind,)):
                    if service := self._services.get(process.name):
                        stopping.create_task(service.stop())

    def _publish(self, state: State) -> None:
        self._state = state
        self._write()

    def _write(self) -> None:
        self._home.write_record(self.record)

    @contextlib.contextmanager
    def _log_files(self) -> Iterator[dict[str, LogFile]]:
        loop = asyncio.get_running_loop()
        names = [process.name for process in self._processes(plan.STOP_ORDER)]
        logs = {name: LogFile(self._home.logs_dir / f"{name}.log") for name in names}
        for file in logs.values():
            file.follow(loop)
        try:
            yield logs
        finally:
            for file in logs.values():
                file.close(loop)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for failure in group.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from _leaves(failure)
        else:
            yield failure


def _why(failure: BaseException) -> str:
    if isinstance(failure, TimeoutError):
        return f"not every service was ready within {START_SECONDS_MAX:.0f} s"
    return str(failure) or repr(failure)


async def run_stack(options: StackOptions, on_ready: Callable[[StackRecord], None]) -> int:
    """Hold the home, run the stack until SIGINT, SIGTERM or SIGHUP, and return the exit code.

    Raises HomeError before anything is started.
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
