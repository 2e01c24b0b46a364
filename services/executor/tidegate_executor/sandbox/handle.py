"""The handle of a sandbox, the same for every backend that has a shim."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from tidegate_executor.sandbox import disk
from tidegate_executor.sandbox.base import (
    CPU_MILLIS_MIN,
    GRACE_SECONDS_MAX,
    MEMORY_MIB_MIN,
    ComponentProcess,
    InfrastructureError,
    Limits,
    LogChunk,
    Recorded,
    ReplicaExited,
    ReplicaStarted,
    ReplicaStats,
    RequestRefusedError,
    ResizeRefusedError,
    SandboxEnded,
    SandboxEvent,
    SandboxLostError,
    SandboxStats,
)
from tidegate_executor.sandbox.client import ShimGoneError, ask, connected
from tidegate_executor.sandbox.logs import read_log
from tidegate_executor.sandbox.remains import clear_remains, end_remains
from tidegate_executor.sandbox.shim.layout import FILES_NAME
from tidegate_executor.sandbox.state import ID_PATTERN, StateDirectory

KILL_SECONDS_MAX = 20.0
RECONNECT_SECONDS = 0.2
ARGUMENT_BYTES_MAX = 128 * 1024  # of the environment or arguments: the kernel's own bound for one string


class ShimSandboxHandle:
    """Works in every condition; holds nothing but the place of the state directory."""

    def __init__(self, state: StateDirectory, log_dir: str) -> None:
        self._state = state
        self._log_dir = log_dir

    @property
    def id(self) -> str:
        return self._state.id

    async def start(self, process: ComponentProcess) -> ReplicaStarted:
        check_process(process)
        answer = await ask(
            self._state,
            {
                "op": "start",
                "component": process.component,
                "replica": process.replica,
                "argv": process.argv,
                "env": process.env,
                "secret_env": process.secret_env,
                "cwd": process.cwd,
                "limits": wire_limits(process.limits),
            },
        )
        return msgspec.convert(answer, ReplicaStarted)

    async def resize(self, component: str, replica: int, limits: Limits) -> Limits:
        check_limits(limits)
        request = {"op": "resize", "component": component, "replica": replica, "limits": wire_limits(limits)}
        try:
            answer = await ask(self._state, request)
        except RequestRefusedError as error:
            raise ResizeRefusedError(str(error)) from error
        return msgspec.convert(answer["limits"], Limits)

    async def signal(self, component: str, replica: int, signal: signal.Signals) -> None:
        request = {"op": "signal", "component": component, "replica": replica, "signal": int(signal)}
        await ask(self._state, request)

    async def freeze(self) -> None:
        await ask(self._state, {"op": "freeze"})

    async def thaw(self) -> None:
        await ask(self._state, {"op": "thaw"})

    async def stats(self) -> SandboxStats:
        answer = await ask(self._state, {"op": "stats"})
        replicas = tuple(_replica_stats(found) for found in answer["replicas"])
        record = self._state.record()
        return SandboxStats(
            at_ns=answer["at_ns"],
            limits_enforced=record is not None and record.cgroup is not None,
            frozen=answer["frozen"],
            replicas=replicas,
        )

    async def events(self, offset: int = 0) -> AsyncIterator[Recorded]:
        alive = True
        while alive:
            try:
                async for recorded in self._live(offset):
                    offset = recorded.next_offset
                    yield recorded
                    if isinstance(recorded.event, SandboxEnded):
                        return
            except (ShimGoneError, OSError):
                pass  # it went, and what it recorded before is on disk; or we are short of descriptors
            alive = self._state.shim() is not None  # before the events: its last one may come while we look
            for recorded in self._state.events(offset):
                offset = recorded.next_offset
                yield recorded
                if isinstance(recorded.event, SandboxEnded):
                    return
            if alive:
                await asyncio.sleep(RECONNECT_SECONDS)
        await asyncio.to_thread(end_remains, self._state)
        raise SandboxLostError(f"sandbox {self.id}: its shim is gone and recorded no end")

    async def _live(self, offset: int) -> AsyncIterator[Recorded]:
        async with connected(self._state) as (reader, writer):
            writer.write(msgspec.json.encode({"op": "follow", "offset": offset}) + b"\n")
            while (line := await reader.readline()).endswith(b"\n"):
                message: dict[str, Any] = msgspec.json.decode(line)
                event = msgspec.convert(message["event"], SandboxEvent)
                yield Recorded(next_offset=message["next_offset"], event=event)

    async def logs(self, component: str, replica: int, offset: int = 0, bytes_max: int = 65536) -> LogChunk:
        check_name(component)
        return await asyncio.to_thread(read_log, self._log_dir, component, replica, offset, bytes_max)

    async def disk_full(self) -> str:
        return await asyncio.to_thread(disk.fullness, self._state.path / FILES_NAME)

    async def stop(self, grace_seconds: float) -> tuple[ReplicaExited, ...]:
        if not 0 <= grace_seconds <= GRACE_SECONDS_MAX:
            raise RequestRefusedError(f"grace of {grace_seconds} s refused; accepted: 0..{GRACE_SECONDS_MAX}")
        await self._ask_to_stop(grace_seconds)
        exits: dict[tuple[str, int], ReplicaExited] = {}
        async for recorded in self.events():
            if isinstance(recorded.event, ReplicaExited):
                exits[recorded.event.component, recorded.event.replica] = recorded.event
        return tuple(exits.values())

    async def _ask_to_stop(self, grace_seconds: float) -> None:
        """Return when the shim was told, or is gone: then it ended already, or is lost, and the events tell."""
        while self._state.shim() is not None:
            try:
                await ask(self._state, {"op": "stop", "grace_seconds": grace_seconds})
            except ShimGoneError:
                await asyncio.sleep(RECONNECT_SECONDS)  # its last moments; or we are short of descriptors
            else:
                return

    async def destroy(self) -> None:
        if self._state.shim() is not None:
            try:
                async with asyncio.timeout(KILL_SECONDS_MAX):
                    await self.stop(0)
            except (TimeoutError, InfrastructureError):
                pass  # then it is ended from outside
        await asyncio.to_thread(clear_remains, self._state)


def check_name(component: str) -> None:
    if not ID_PATTERN.fullmatch(component):
        raise RequestRefusedError(f"component {component!r} refused; accepted: {ID_PATTERN.pattern}")


def check_limits(limits: Limits) -> None:
    """Refuse what the kernel would refuse, in the caller's words."""
    for name, least in (("cpu_millis", CPU_MILLIS_MIN), ("memory_mib", MEMORY_MIB_MIN), ("pids", 1)):
        if getattr(limits, name) < least:
            raise RequestRefusedError(f"{name}={getattr(limits, name)} refused; accepted: at least {least}")


def check_process(process: ComponentProcess) -> None:
    check_name(process.component)
    check_limits(process.limits)
    if process.replica < 0:
        raise RequestRefusedError(f"replica {process.replica} refused; accepted: 0 and up")
    if not process.argv or not process.argv[0]:
        raise RequestRefusedError("an empty argv was refused; its first item must name the command")
    if not Path(process.cwd).is_absolute():
        raise RequestRefusedError(f"cwd {process.cwd!r} refused; it must be an absolute path")
    variables = {**process.env, **process.secret_env}
    for what, texts in (
        ("an argument", process.argv),
        ("a variable", (*variables, *variables.values())),
        ("a cwd", (process.cwd,)),
    ):
        for text in texts:
            _check_text(what, text)


def _check_text(what: str, text: str) -> None:
    """Refuse what no process can be given: the kernel takes bytes that end at the first NUL."""
    accepted = f"accepted: up to {ARGUMENT_BYTES_MAX} bytes without NUL"
    try:
        size = len(os.fsencode(text))
    except UnicodeEncodeError:
        raise RequestRefusedError(f"{what} that no file name could be was refused; {accepted}") from None
    if "\0" in text or size > ARGUMENT_BYTES_MAX:
        raise RequestRefusedError(f"{what} of {size} bytes was refused; {accepted}")


def wire_limits(limits: Limits) -> list[int]:
    return [limits.cpu_millis, limits.memory_mib, limits.pids]


def _replica_stats(found: dict[str, Any]) -> ReplicaStats:
    usage = found["usage"] or {}
    return ReplicaStats(
        component=found["component"],
        replica=found["replica"],
        pid=found["pid"],
        cpu_usec=usage.get("cpu_usec", 0),
        memory_bytes=usage.get("memory_bytes", 0),
        memory_peak_bytes=usage.get("memory_peak_bytes", 0),
        processes=usage.get("processes", 0),
        oom_kills=usage.get("oom_kills", 0),
        limits=msgspec.convert(found["limits"], Limits) if found["limits"] else None,
        cpu_periods=usage.get("cpu_periods", 0),
        cpu_throttled_periods=usage.get("cpu_throttled_periods", 0),
        cpu_throttled_usec=usage.get("cpu_throttled_usec", 0),
        memory_limit_hits=usage.get("memory_limit_hits", 0),
        calls_refused=found.get("calls_refused", 0),
    )
