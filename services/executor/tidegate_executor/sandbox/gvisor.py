"""Backend `gvisor` (level `guarded`): a guest kernel of its own per replica, no network, limits by control groups."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Set
from pathlib import Path
from typing import Any

from tidegate_executor.cgroups.detect import REMEDY as LIMITS_REMEDY
from tidegate_executor.cgroups.detect import Detected
from tidegate_executor.sandbox.base import (
    BackendUnavailableError,
    FoundSandbox,
    Layer,
    Level,
    ProbeResult,
    RequestRefusedError,
    Sandbox,
    SandboxError,
    SandboxSpec,
)
from tidegate_executor.sandbox.plan import build_etc, mount_plan
from tidegate_executor.sandbox.probe import ProbeFailure, answers_of, probe_sandbox, refuse_connections, refused_port
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.sandbox.shimmed import BASE_NAME, ShimmedSandboxes
from tidegate_executor.sandbox.state import StateDirectory

REMEDY = (
    "Level `guarded` needs gVisor's `runsc` (a release of 2023 or newer, with the platform systrap) on PATH or named "
    "by TIDEGATE_RUNSC, and an agent that runs as root."
)
OVERHEAD_MIB = 256  # the runtime's own commands
OVERHEAD_EACH_MIB = 64  # a guest's kernel, beside what runs in it
OVERHEAD_PIDS = 256
THREADS_PER_PROCESS, THREADS_MORE = 4, 8192  # of the host, for what is one process inside

INSIDE_SCRIPT = """
grep -E '^(Uid|CapEff|NoNewPrivs):' /proc/self/status
echo "Kernel: $(cat /proc/sys/kernel/osrelease 2>/dev/null || uname -r)"
echo "Version: $(cat /proc/version)"
"""


class GvisorBackend:
    """See `SandboxBackend`."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._sandboxes = ShimmedSandboxes(settings, ("gvisor", "guarded"), limits_required=True)
        self._etc: Path | None = None

    @property
    def level(self) -> Level:
        return "guarded"

    def use_limits(self, detected: Detected) -> None:
        """Use control groups that were handed over, instead of detecting them."""
        self._sandboxes.use_limits(detected)

    async def probe(self) -> ProbeResult:
        if os.geteuid() != 0 or find_runsc(self._settings) is None:
            why = "the agent is not root" if os.geteuid() != 0 else "there is no runsc"
            return self._result("none", REMEDY, (why,))
        detected = await self._sandboxes.limits()
        if detected.driver is None:
            return self._result("none", LIMITS_REMEDY, detected.tried)
        kind = detected.driver.kind
        with self._sandboxes.probe_logs() as logs, refused_port() as port:
            spec = SandboxSpec(
                id=f"probe-guarded-{os.getpid()}",
                hostname="probe",
                log_dir=logs,
                uid_slot=self._settings.uid_slots - 1,
                layers=(Layer(source="/usr", target="/usr"),),
            )
            script = INSIDE_SCRIPT + refuse_connections(port)
            try:
                check_inside(await probe_sandbox(self, spec, ("/bin/sh", "-c", script), cwd="/workspace"))
            except (SandboxError, ProbeFailure) as error:
                return self._result(kind, REMEDY, (*detected.tried, str(error)))
        return self._result(kind, "", detected.tried)

    def _result(self, limits: str, remedy: str, notes: tuple[str, ...]) -> ProbeResult:
        return ProbeResult(
            level="guarded", backend="gvisor", available=not remedy, limits=limits, remedy=remedy, notes=notes
        )

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self._sandboxes.create(spec, self._prepare)

    def _prepare(self, spec: SandboxSpec, state: StateDirectory) -> dict[str, Any]:
        binary = find_runsc(self._settings)
        if binary is None or os.geteuid() != 0:
            raise BackendUnavailableError(REMEDY)
        if spec.devices or spec.engine_image:
            raise RequestRefusedError(
                "gVisor passes no device of the host and uses no engine's image; neither is accepted"
            )
        if self._etc is None or not self._etc.is_dir():
            self._etc = build_etc(Path(self._settings.sandboxes_dir, BASE_NAME))
        plan = mount_plan(spec, state.path, self._etc)
        return {
            "bwrap": {"binary": "", "site": [], "hostname": spec.hostname, "plan": plan},
            "guarded": {"binary": binary},
            "pids_max": THREADS_PER_PROCESS * spec.pids_max + THREADS_MORE,
            "overhead_mib": OVERHEAD_MIB,
            "overhead_each_mib": OVERHEAD_EACH_MIB,
            "overhead_pids": OVERHEAD_PIDS,
        }

    async def list(self) -> tuple[FoundSandbox, ...]:
        return await self._sandboxes.find()

    async def sweep(self, keep: Set[str]) -> tuple[str, ...]:
        return await self._sandboxes.sweep(keep)

    async def release(self) -> None:
        await self._sandboxes.release()

    def host_uid(self, uid_slot: int) -> int | None:
        return self._sandboxes.host_uid(uid_slot)

    def path_inside(self, spec: SandboxSpec, target: str) -> str:
        return target


def find_runsc(settings: SandboxSettings) -> str | None:
    """The runtime's program, None where there is none."""
    return shutil.which(settings.runsc)


def check_inside(output: str) -> None:
    """What the probe's script must have seen, or ProbeFailure."""
    seen = answers_of(output)
    for name, value in {"Uid": "1000", "CapEff": "0000000000000000"}.items():
        if seen.get(name, "").split()[:1] != [value]:
            raise ProbeFailure(f"inside, {name} is {seen.get(name)!r}, expected {value}")
    if seen.get("Kernel", "") in ("", platform.release()):
        raise ProbeFailure(f"inside, the kernel is {seen.get('Kernel')!r}: the host's own, not a guest's")
    if seen.get("Connection") == "made":
        raise ProbeFailure("inside, a connection to the host was made")
