"""Backend `process` (level `unisolated`): plain processes of the agent's user, with limits only where cgroups work.

It is no boundary at all. It must never be offered unless the operator said so; the agent decides that.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from tidegate_executor.sandbox.base import (
    ProbeResult,
    RequestRefusedError,
    SandboxError,
    SandboxSpec,
)
from tidegate_executor.sandbox.plan import PlanEntry
from tidegate_executor.sandbox.probe import ProbeFailure, probe_sandbox
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.sandbox.shimmed import ShimmedBackend
from tidegate_executor.sandbox.state import StateDirectory

# What the sandbox's own directories are called here; see `path_inside`.
OWN_DIRECTORIES = {"/workspace": "workspace", "/tmp": "tmp", "/home/job": "home", "/var/cache/job": "cache"}


class ProcessBackend(ShimmedBackend):
    """See `SandboxBackend`. Layers are ignored: the host's own files are what the job sees."""

    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings, ("process", "unisolated"), limits_required=False)

    async def probe(self) -> ProbeResult:
        detected = await self.limits()
        kind = detected.driver.kind if detected.driver is not None else "none"
        notes = ["no isolation: jobs run as the agent's user and see the host"]
        if detected.driver is None:
            notes += ["limits are not enforced", *detected.tried]
        with self.probe_logs() as logs:
            spec = SandboxSpec(id=f"probe-{os.getpid()}", hostname="probe", log_dir=logs)
            try:
                await probe_sandbox(self, spec, ("sh", "-c", "echo standing"), cwd="/")
            except (SandboxError, ProbeFailure) as error:
                remedy = "Plain processes could not be started; the notes say why."
                return self._result(kind, remedy, (*notes, str(error)), available=False)
        return self._result(kind, "", tuple(notes), available=True)

    def _result(self, limits: str, remedy: str, notes: tuple[str, ...], *, available: bool) -> ProbeResult:
        return ProbeResult(
            level="unisolated", backend="process", available=available, limits=limits, remedy=remedy, notes=notes
        )

    def _plan(self, spec: SandboxSpec, state: StateDirectory) -> list[PlanEntry]:
        return []  # nothing is mounted

    def _describe(self, spec: SandboxSpec, state: StateDirectory, plan: list[PlanEntry]) -> dict[str, Any]:
        if spec.engine_image:
            raise RequestRefusedError("only backend `docker` uses an engine's image; layers are accepted here")
        for name in OWN_DIRECTORIES.values():
            path = state.path / name
            if name == "workspace" and spec.workdir is not None:
                shutil.copytree(spec.workdir, path, symlinks=True)
            else:
                path.mkdir()
        return {}

    def path_inside(self, spec: SandboxSpec, target: str) -> str:
        """The real place of `target`: of the innermost mount or own directory that holds it."""
        state = Path(self.settings.sandboxes_dir, spec.id).absolute()
        places = {own: str(state / name) for own, name in OWN_DIRECTORIES.items()}
        places |= {mount.target: mount.source for mount in spec.mounts}
        for place in sorted(places, key=len, reverse=True):
            if target == place or target.startswith(f"{place}/"):
                return places[place] + target[len(place) :]
        return target
