"""Backend `gvisor` (level `guarded`): a guest kernel of its own per replica, no network, limits by control groups."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Any

import structlog

from tidegate_executor.cgroups.detect import REMEDY as LIMITS_REMEDY
from tidegate_executor.sandbox.base import (
    BackendUnavailableError,
    Layer,
    ProbeResult,
    RequestRefusedError,
    SandboxError,
    SandboxSpec,
)
from tidegate_executor.sandbox.plan import PlanEntry
from tidegate_executor.sandbox.probe import ProbeFailure, answers_of, probe_sandbox, refuse_connections, refused_port
from tidegate_executor.sandbox.resident import keep_resident
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.sandbox.shimmed import ShimmedBackend
from tidegate_executor.sandbox.state import StateDirectory

REMEDY = (
    "Level `guarded` needs gVisor's `runsc` (a release of 2023 or newer, with the platform systrap) on PATH or named "
    "by TIDEGATE_RUNSC, and an agent that runs as root."
)
OVERHEAD_MIB = 256  # the runtime's own commands
OVERHEAD_EACH_MIB = 64  # a guest's kernel, beside what runs in it
OVERHEAD_PIDS = 256
THREADS_PER_PROCESS, THREADS_MORE = 4, 8192  # of the host, for what is one process inside

log = structlog.get_logger()

INSIDE_SCRIPT = """
grep -E '^(Uid|CapEff|NoNewPrivs):' /proc/self/status
echo "Kernel: $(cat /proc/sys/kernel/osrelease 2>/dev/null || uname -r)"
echo "Version: $(cat /proc/version)"
"""


class GvisorBackend(ShimmedBackend):
    """See `SandboxBackend`."""

    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings, ("gvisor", "guarded"), limits_required=True)
        self._not_kept = ""

    async def probe(self) -> ProbeResult:
        if os.geteuid() != 0 or find_runsc(self.settings) is None:
            why = "the agent is not root" if os.geteuid() != 0 else "there is no runsc"
            return self._result("none", REMEDY, (why,))
        detected = await self.limits()
        if detected.driver is None:
            return self._result("none", LIMITS_REMEDY, detected.tried)
        kind = detected.driver.kind
        with self.probe_logs() as logs, refused_port() as port:
            spec = SandboxSpec(
                id=f"probe-guarded-{os.getpid()}",
                hostname="probe",
                log_dir=logs,
                uid_slot=self.settings.uid_slots - 1,
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

    def _describe(self, spec: SandboxSpec, state: StateDirectory, plan: list[PlanEntry]) -> dict[str, Any]:
        if spec.devices or spec.engine_image:
            raise RequestRefusedError(
                "gVisor passes no device of the host and uses no engine's image; neither is accepted"
            )
        binary = find_runsc(self.settings)
        if binary is None or os.geteuid() != 0:
            raise BackendUnavailableError(REMEDY)
        self._keep(binary)
        return {
            "bwrap": {"binary": "", "site": []},
            "plan": plan,
            "guarded": {"binary": binary},
            "pids_max": THREADS_PER_PROCESS * spec.pids_max + THREADS_MORE,
            "overhead_mib": OVERHEAD_MIB,
            "overhead_each_mib": OVERHEAD_EACH_MIB,
            "overhead_pids": OVERHEAD_PIDS,
        }

    def _keep(self, binary: str) -> None:
        """Keep the guests' kernel in memory; where that is not allowed, guests start all the same."""
        try:
            keep_resident(binary)
        except OSError as error:
            if str(error) != self._not_kept:
                self._not_kept = str(error)
                log.warning(
                    "runsc_not_resident", why=self._not_kept, so="a guest out of memory may take minutes to end"
                )


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
