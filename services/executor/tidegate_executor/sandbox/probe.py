"""Prove a backend by starting a real sandbox with real limits and reading what it says from inside."""

from __future__ import annotations

from tidegate_executor.sandbox.base import (
    ComponentProcess,
    Limits,
    ReplicaExited,
    SandboxBackend,
    SandboxSpec,
)

PROBE_LIMITS = Limits(cpu_millis=1000, memory_mib=64, pids=32)
PATH = "/usr/local/bin:/usr/bin:/bin"


class ProbeFailure(Exception):
    """The sandbox started, but it is not what the level promises."""


async def probe_sandbox(backend: SandboxBackend, spec: SandboxSpec, argv: tuple[str, ...], cwd: str) -> str:
    """Run `argv` to its end in a fresh sandbox; return its output. Raises SandboxError or ProbeFailure."""
    sandbox = await backend.create(spec)
    try:
        process = ComponentProcess(
            component="probe", replica=0, argv=argv, limits=PROBE_LIMITS, env={"PATH": PATH}, cwd=cwd
        )
        await sandbox.start(process)
        async for recorded in sandbox.events():
            if isinstance(recorded.event, ReplicaExited):
                if recorded.event.exit_code != 0:
                    raise ProbeFailure(f"the probe's command ended with {recorded.event}")
                break
        chunk = await sandbox.logs("probe", 0)
        return chunk.data.decode(errors="replace")
    finally:
        await sandbox.destroy()
