"""Backends under test, and what a test needs to run something in them.

Where this machine cannot isolate, tests skip with the probe's reason; on CI as root they fail instead.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import (
    ComponentProcess,
    Layer,
    Limits,
    ProbeResult,
    ReplicaExited,
    Sandbox,
    SandboxBackend,
    SandboxSpec,
)
from tidegate_executor.sandbox.bwrap import BwrapBackend
from tidegate_executor.sandbox.docker import DockerBackend
from tidegate_executor.sandbox.gvisor import GvisorBackend
from tidegate_executor.sandbox.process import ProcessBackend
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.sandbox.shimmed import ShimmedBackend

PYTHON = os.path.realpath(sys.executable)
WAIT_SECONDS = 20.0
LIMITS = Limits(cpu_millis=1000, memory_mib=128, pids=64)
BACKENDS: dict[str, Callable[[SandboxSettings], SandboxBackend]] = {
    "bwrap": BwrapBackend,
    "docker": DockerBackend,
    "docker-guarded": lambda settings: DockerBackend(settings, "guarded"),
    "gvisor": GvisorBackend,
    "process": ProcessBackend,
}
probed: dict[str, ProbeResult] = {}


def image_layers() -> tuple[Layer, ...]:
    """/usr, and this Python's prefix where it lies elsewhere."""
    places = {"/usr"} if sys.base_prefix.startswith("/usr") else {"/usr", sys.base_prefix}
    return tuple(Layer(source=place, target=place) for place in sorted(places))


@dataclass
class World:
    """One backend and the directories of one test."""

    backend: SandboxBackend
    settings: SandboxSettings
    probe: ProbeResult
    name: str
    directory: Path

    @property
    def isolated(self) -> bool:
        return self.backend.level != "unisolated"

    def spec(self, sandbox_id: str = "job.1.0", **changes: object) -> SandboxSpec:
        fields: dict[str, object] = {
            "id": sandbox_id,
            "hostname": "rank0",
            "log_dir": str(self.directory / "logs" / sandbox_id),
            "layers": image_layers(),
        }
        return SandboxSpec(**{**fields, **changes})  # type: ignore[arg-type]

    async def create(self, sandbox_id: str = "job.1.0", **changes: object) -> Sandbox:
        return await self.backend.create(self.spec(sandbox_id, **changes))

    def process(self, *argv: str, component: str = "main", replica: int = 0, **changes: object) -> ComponentProcess:
        fields: dict[str, object] = {
            "component": component,
            "replica": replica,
            "argv": argv,
            "limits": LIMITS,
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
            "cwd": self.backend.path_inside(self.spec(), "/workspace"),
        }
        return ComponentProcess(**{**fields, **changes})  # type: ignore[arg-type]

    def python(self, code: str, **changes: object) -> ComponentProcess:
        return self.process(PYTHON, "-I", "-S", "-u", "-c", code, **changes)  # type: ignore[arg-type]

    async def run(
        self, sandbox: Sandbox, process: ComponentProcess, seconds: float = WAIT_SECONDS
    ) -> tuple[ReplicaExited, str]:
        """Start, wait for the exit, return it with the whole output."""
        started = await sandbox.start(process)
        exited = await exit_of(sandbox, process.component, process.replica, after_ns=started.at_ns, seconds=seconds)
        return exited, await output_of(sandbox, process.component, process.replica)


async def exit_of(
    sandbox: Sandbox,
    component: str = "main",
    replica: int = 0,
    *,
    after_ns: int = 0,
    seconds: float = WAIT_SECONDS,
) -> ReplicaExited:
    async with asyncio.timeout(seconds):
        async for recorded in sandbox.events():
            event = recorded.event
            if not isinstance(event, ReplicaExited) or event.at_ns < after_ns:
                continue
            if (event.component, event.replica) == (component, replica):
                return event
    raise AssertionError("the history ended without the exit")


async def output_of(sandbox: Sandbox, component: str = "main", replica: int = 0) -> str:
    offset, parts = 0, []
    while (chunk := await sandbox.logs(component, replica, offset)).data:
        parts.append(chunk.data)
        offset = chunk.next_offset
    return b"".join(parts).decode(errors="replace")


async def wait_output(sandbox: Sandbox, text: str, component: str = "main", replica: int = 0) -> str:
    async with asyncio.timeout(WAIT_SECONDS):
        while text not in (seen := await output_of(sandbox, component, replica)):
            running = {(found.component, found.replica) for found in (await sandbox.stats()).replicas}
            assert (component, replica) in running, f"{component}.{replica} ended early; its output: {seen!r}"
            await asyncio.sleep(0.01)
    return seen


def settings_for(directory: Path) -> SandboxSettings:
    return SandboxSettings(
        sandboxes_dir=str(directory / "sandboxes"),
        cgroup_name=f"tidegate-test-{os.getpid()}",
        docker_socket=os.environ.get("TIDEGATE_DOCKER_SOCKET", "/var/run/docker.sock"),
        runsc=os.environ.get("TIDEGATE_RUNSC", "runsc"),
    )


async def open_world(name: str, directory: Path) -> World:
    settings = settings_for(directory)
    backend = BACKENDS[name](settings)
    if name not in probed:
        probed[name] = await backend.probe()
        await backend.release()
    probe = probed[name]
    if not probe.available:
        reason = f"{name}: {probe.remedy} ({'; '.join(probe.notes)})"
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail(f"CI as root must be able to isolate: {reason}")
        pytest.skip(reason)
    return World(backend, settings, probe, name, directory)


@pytest.fixture(params=list(BACKENDS))
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Each backend in turn; whatever the test leaves is swept."""
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[World]:
    """The isolating backend only."""
    opened = await open_world("bwrap", tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


def backend_of(world: World) -> ShimmedBackend:
    """The backend of that world, which has shims."""
    assert isinstance(world.backend, ShimmedBackend)
    return world.backend


def left_over(world: World) -> list[str]:
    """Sandboxes that still have a state directory."""
    directory = Path(world.settings.sandboxes_dir)
    return (
        sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
        if directory.exists()
        else []
    )


def require_limits(world: World) -> None:
    if world.probe.limits == "none":
        pytest.skip(f"no control groups here: {'; '.join(world.probe.notes)}")
