"""Which isolation levels this node gives: the backends, the record of them for `sweep`, and what trying them showed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import structlog

from tidegate_executor.sandbox import disk
from tidegate_executor.sandbox.base import FoundSandbox, SandboxBackend
from tidegate_executor.sandbox.bwrap import BwrapBackend
from tidegate_executor.sandbox.docker import DockerBackend
from tidegate_executor.sandbox.gvisor import GvisorBackend
from tidegate_executor.sandbox.process import ProcessBackend
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.sandbox.shimmed import ShimmedBackend
from tidegate_executor.settings import NodePaths, Settings, sandbox_settings
from tidegate_executor.spool.segments import write_durably

log = structlog.get_logger()


class NoLevelError(Exception):
    """The node can give none of the levels that its operator wants to offer; the text holds the remedies."""


def make(settings: SandboxSettings) -> dict[str, SandboxBackend]:
    """Return every backend by its level; which of them are offered is another question."""
    by_docker = settings.trusted_backend == "docker", settings.guarded_backend == "docker"
    return {
        "trusted": DockerBackend(settings, "trusted") if by_docker[0] else BwrapBackend(settings),
        "guarded": DockerBackend(settings, "guarded") if by_docker[1] else GvisorBackend(settings),
        "vm": DockerBackend(settings, "vm"),
        "unisolated": ProcessBackend(settings),
    }


def record(settings: Settings) -> SandboxSettings:
    """Return the sandbox settings, written down so that `sweep` finds what this agent will have made.

    Those written down before win: sandboxes that still run were made with them.
    """
    plan = settings.paths.sweep_plan
    if (known := recorded(settings.paths)) is not None:
        wanted = sandbox_settings(settings)
        if msgspec.structs.replace(known, shim_python="", runsc="") != msgspec.structs.replace(
            wanted, shim_python="", runsc=""
        ):
            log.warning("sandbox_settings_kept", cgroup_name=known.cgroup_name, uid_base=known.uid_base)
        return msgspec.structs.replace(known, shim_python=wanted.shim_python, runsc=wanted.runsc)
    chosen = sandbox_settings(settings)
    write_durably(plan, msgspec.json.encode(chosen))
    return chosen


def recorded(paths: NodePaths) -> SandboxSettings | None:
    """Return the sandbox settings that an agent wrote down in this data directory."""
    if not paths.sweep_plan.exists():
        return None
    return msgspec.json.decode(paths.sweep_plan.read_bytes(), type=SandboxSettings)


async def offered_levels(settings: Settings, backends: Mapping[str, SandboxBackend]) -> frozenset[str]:
    """Return the levels that the operator wants and that really work here. Raises NoLevelError if there are none."""
    wanted = [level for level in backends if getattr(settings, f"offer_{level}")]
    levels = set()
    problems = []
    for level in wanted:
        result = await backends[level].probe()
        if result.available and level != "unisolated" and (why := await _unlimited(settings, result.backend)):
            problems.append(f"{level}: {why}")
            log.error("level_not_available", isolation=level, remedy=why, notes=())
        elif result.available:
            levels.add(level)
            log.info("level_offered", isolation=level, backend=result.backend, limits=result.limits, notes=result.notes)
        else:
            problems.append(f"{level}: {'; '.join(result.notes)}. {result.remedy}")
            log.error("level_not_available", isolation=level, remedy=result.remedy, notes=result.notes)
    if not levels:
        raise NoLevelError(f"no isolation level can be given here. {' '.join(problems)}")
    return frozenset(levels)


async def _unlimited(settings: Settings, backend: str) -> str:
    """Return why the operator's bounds of disk would not hold at this backend; empty where they do, or are none."""
    if not settings.sandbox_disk_mib:
        return ""
    if backend == "docker":
        return "sandbox_disk_mib is set, and backend docker bounds no disk; set it to 0, or use another backend"
    return await asyncio.to_thread(disk.probe, settings.paths.sandboxes)


async def find_all(backends: Mapping[str, SandboxBackend]) -> dict[str, FoundSandbox]:
    """Return every sandbox of this data directory by its id."""
    found = await asyncio.gather(*(backend.list() for backend in backends.values()))
    return {each.sandbox.id: each for of_backend in found for each in of_backend}


async def clear_strays(backends: Mapping[str, SandboxBackend]) -> None:
    """Remove what an earlier agent here had made ahead for nobody, before anything starts."""
    for backend in backends.values():
        if isinstance(backend, ShimmedBackend) and backend.makes_ahead:
            await backend.clear_strays()
