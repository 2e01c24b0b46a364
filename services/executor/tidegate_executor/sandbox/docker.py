"""Backend `docker`: one container per replica through a Docker engine, with a runtime that gives the level.

The runtime decides what the level is worth: `runc` is `trusted`, gVisor's `runsc` is `guarded`, Kata's is `vm`. The
probe tells whether a guest really stands by it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import platform
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from tidegate_executor.cgroups.base import CgroupError, Driver
from tidegate_executor.cgroups.detect import REMEDY as LIMITS_REMEDY
from tidegate_executor.cgroups.detect import Detected
from tidegate_executor.cgroups.engine import engine_driver, engine_path, release_elsewhere, remove_elsewhere
from tidegate_executor.sandbox.base import (
    BackendUnavailableError,
    InfrastructureError,
    Layer,
    Level,
    ProbeResult,
    RequestRefusedError,
    SandboxError,
    SandboxSpec,
)
from tidegate_executor.sandbox.cdi import as_docker, known_alike
from tidegate_executor.sandbox.plan import CPU_TOPOLOGY, PlanEntry, checked_devices, unrooted
from tidegate_executor.sandbox.probe import ProbeFailure, answers_of, probe_sandbox, refuse_connections, refused_port
from tidegate_executor.sandbox.ready import Describe
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.sandbox.shim.engine import Engine, EngineError
from tidegate_executor.sandbox.shim.replicas import HOLDER_GROUP
from tidegate_executor.sandbox.shimmed import ShimmedBackend
from tidegate_executor.sandbox.state import StateDirectory

if TYPE_CHECKING:
    import aiodocker

RUNTIMES: dict[Level, str] = {"trusted": "runc", "guarded": "runsc", "vm": "kata-runtime"}
OWN_KERNEL: tuple[Level, ...] = ("guarded", "vm")  # levels at which a job must not meet the host's kernel
CGROUP_DRIVER = "cgroupfs"
OVERHEAD_MIB = 256  # what asks the engine, one per replica, and the container that holds the network
OVERHEAD_PIDS = 1024
# In a replica's control group beside the job: process 1 of its container, what asks the engine, a guest's kernel.
THREADS, THREADS_OF_GUEST = (1, 2), (4, 512)
OVERHEAD_EACH_MIB: dict[Level, int] = {"trusted": 16, "guarded": 64, "vm": 256}
PIDS_OF_GUESTS_MAX = 32768

REMEDY = (
    "Backend `docker` needs a Docker engine (API 1.41 or newer) whose socket TIDEGATE_DOCKER_SOCKET names, with the "
    "control group driver `cgroupfs` and the level's runtime, and an agent that runs as root on the engine's machine."
)

log = structlog.get_logger()

INSIDE_SCRIPT = """
grep -E '^(Uid|CapEff|NoNewPrivs):' /proc/self/status
echo "Kernel: $(uname -r)"
"""


class DockerBackend(ShimmedBackend):
    """See `SandboxBackend`."""

    def __init__(self, settings: SandboxSettings, level: Level = "trusted") -> None:
        super().__init__(settings, ("docker", level), limits_required=True, engine=settings.docker_socket)
        self._runtime = RUNTIMES[level]
        # Nothing of a job is ever in the container that holds the network, so that one needs no guest of its own: the
        # engine's default. Where guests are machines, their network is made for machines.
        self._holder_runtime = "" if level == "guarded" else self._runtime

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[aiodocker.Docker]:
        """The engine. Raises BackendUnavailableError where none answers."""
        socket = self.settings.docker_socket
        if not await asyncio.to_thread(Path(socket).is_socket):
            raise BackendUnavailableError(f"there is no engine's socket at {socket}")
        import aiodocker  # noqa: PLC0415 - it brings an HTTP client, which nodes without an engine need not load

        docker = aiodocker.Docker(url=f"unix://{socket}", api_version="v1.41")
        try:
            yield docker
        finally:
            await docker.close()

    async def _detect(self) -> Detected:
        """Control groups that the engine can be told too."""
        detected = await super()._detect()
        if detected.driver is None:
            return detected
        driver = await asyncio.to_thread(engine_driver, detected.driver, self.settings.cgroup_name)
        if driver is not detected.driver:
            await asyncio.to_thread(detected.driver.release)  # trying it made its place
        return Detected(driver, detected.tried)

    # --- what works here ------------------------------------------------------------------------------------

    async def probe(self) -> ProbeResult:
        detected = await self.limits()
        if detected.driver is None:
            return self._result("none", LIMITS_REMEDY, detected.tried)
        kind = detected.driver.kind
        try:
            await self._check_engine()
            with self.probe_logs() as logs, refused_port() as port:
                spec = SandboxSpec(
                    id=f"probe-docker-{self._level}-{os.getpid()}",
                    hostname="probe",
                    log_dir=logs,
                    uid_slot=self.settings.uid_slots - 1,
                    layers=(Layer(source="/usr", target="/usr"),),
                )
                script = INSIDE_SCRIPT + refuse_connections(port)
                seen = await probe_sandbox(self, spec, ("/bin/sh", "-c", script), cwd="/workspace")
            self._check_inside(seen)
        except (SandboxError, ProbeFailure, CgroupError) as error:
            return self._result(kind, REMEDY, (*detected.tried, str(error)))
        return self._result(kind, "", detected.tried)

    async def _check_engine(self) -> None:
        if os.geteuid() != 0:
            raise BackendUnavailableError("the agent is not root")
        try:
            info = await asyncio.to_thread(Engine(self.settings.docker_socket).call, "GET", "/info")
        except EngineError as error:
            raise BackendUnavailableError(f"the engine does not answer: {error}") from error
        if self._runtime not in info["Runtimes"]:
            known = ", ".join(sorted(info["Runtimes"]))
            raise BackendUnavailableError(f"the engine has no runtime {self._runtime}; it has {known}")
        if info["CgroupDriver"] != CGROUP_DRIVER:
            raise BackendUnavailableError(f"the engine's control group driver is {info['CgroupDriver']}")

    def _check_inside(self, output: str) -> None:
        seen = answers_of(output)
        if seen.get("CapEff", "") != "0000000000000000":
            raise ProbeFailure(f"inside, CapEff is {seen.get('CapEff')!r}, expected none")
        if self._level in OWN_KERNEL and seen.get("Kernel", "") in ("", platform.release()):
            raise ProbeFailure(f"inside, the kernel is {seen.get('Kernel')!r}: the host's own")
        if seen.get("Connection") == "made":
            raise ProbeFailure("inside, a connection to the host was made")

    def _result(self, limits: str, remedy: str, notes: tuple[str, ...]) -> ProbeResult:
        return ProbeResult(
            level=self._level, backend="docker", available=not remedy, limits=limits, remedy=remedy, notes=notes
        )

    # --- sandboxes ------------------------------------------------------------------------------------------

    async def _describing(self, spec: SandboxSpec, group: str) -> Describe:
        from tidegate_executor.sandbox.engine_images import base_image  # noqa: PLC0415 - as in `engine`

        links = await asyncio.to_thread(self._links, spec)
        try:
            async with self.engine() as docker:
                image = spec.engine_image or await base_image(docker, links)
        except OSError as error:
            raise InfrastructureError(f"the engine does not answer: {error}") from error
        detected = await self.limits()
        assert detected.driver is not None, "limits are required, so who has none was refused"
        return functools.partial(self._described, image, f"{engine_path(detected.driver)}/{group}")

    def _described(
        self, image: str, place: str, spec: SandboxSpec, state: StateDirectory, plan: list[PlanEntry]
    ) -> dict[str, Any]:
        """See `Describe`; `place` is the path of its control group. Asks the engine only where there are devices."""
        described = self._describe(spec, state, plan)
        devices = as_docker(checked_devices(spec.devices), self._requested(spec))
        described["docker"] |= {
            "image": image,
            "group": place,
            "holder_group": f"{place}/{HOLDER_GROUP}",
            "devices": devices,
        }
        return described

    def _requested(self, spec: SandboxSpec) -> tuple[str, ...]:
        """The names by which the engine can be asked for the sandbox's devices; none where it must be given nodes."""
        if not spec.devices:
            return ()
        try:
            info = Engine(self.settings.docker_socket).call("GET", "/info")
        except EngineError as error:
            raise InfrastructureError(f"the engine does not answer: {error}") from error
        return known_alike(spec.devices, info.get("CDISpecDirs") or ())

    def _links(self, spec: SandboxSpec) -> list[tuple[str, str]]:
        state = StateDirectory(self.settings.sandboxes_dir, spec.id)
        mounted = self._mounted(spec, self._plan(spec, state))
        return [(source, target) for kind, source, target in mounted if kind == "link"]

    def _mounted(self, spec: SandboxSpec, plan: list[PlanEntry]) -> list[PlanEntry]:
        """What of the plan an engine is told to mount."""
        plan = unrooted(plan)
        own = {"/workspace", CPU_TOPOLOGY}
        if spec.engine_image:
            own |= {target for _, _, target in plan if target == "/etc" or target.startswith("/etc/")}
        return [entry for entry in plan if entry[2] not in own and entry[0] != "device"]

    def _describe(self, spec: SandboxSpec, state: StateDirectory, plan: list[PlanEntry]) -> dict[str, Any]:
        if spec.devices and self._level in OWN_KERNEL:
            raise RequestRefusedError(f"level {self._level} passes no device of the host; accepted: level trusted")
        return {
            "docker": {
                "socket": self.settings.docker_socket,
                "runtime": self._runtime,
                "holder_runtime": self._holder_runtime,
                "workdir": spec.workdir,
                "python": self.settings.shim_python,
                "own_kernel": self._level in OWN_KERNEL,
                "threads": THREADS_OF_GUEST if self._level in OWN_KERNEL else THREADS,
                "overhead_each_mib": OVERHEAD_EACH_MIB[self._level],
            },
            "plan": self._mounted(spec, plan),
            "overhead_mib": OVERHEAD_MIB,
            "overhead_each_mib": 64 + OVERHEAD_EACH_MIB[self._level],
            **({"pids_max": PIDS_OF_GUESTS_MAX} if self._level in OWN_KERNEL else {}),
            "overhead_pids": OVERHEAD_PIDS,
        }

    async def strays(self) -> tuple[str, ...]:
        """Control groups of this agent's sandboxes of which the engine has containers or volumes."""
        detected = await self.limits()
        if detected.driver is None:
            return ()
        return tuple(await asyncio.to_thread(self._in_engine, detected.driver))

    def _in_engine(self, driver: Driver) -> list[str]:
        own = f"{engine_path(driver)}/".removeprefix("/")
        try:
            groups = Engine(self.settings.docker_socket).groups()
        except EngineError as error:
            raise InfrastructureError(f"the engine does not say what it has of ours: {error}") from error
        return sorted(group.removeprefix(own) for group in groups if group.startswith(own))

    def _remove_strays(self, driver: Driver, known: Set[str]) -> Sequence[str]:
        """Of the engine too: it keeps what it has through a power cut that took our directories. Blocks."""
        found = []
        if Path(self.settings.docker_socket).is_socket():
            try:
                found = [group for group in self._in_engine(driver) if group not in known]
                for group in found:
                    Engine(self.settings.docker_socket).remove_all(f"{engine_path(driver)}/{group}")
            except (InfrastructureError, EngineError) as error:  # a node whose engine is down gives its other levels
                log.warning("engine_not_cleared", why=str(error))
        removed = super()._remove_strays(driver, known)
        for group in found:
            remove_elsewhere(engine_path(driver), group)
        return sorted({*removed, *found})

    async def release(self) -> None:
        detected = await self.limits()
        await super().release()
        if detected.driver is not None:
            await asyncio.to_thread(release_elsewhere, engine_path(detected.driver))
