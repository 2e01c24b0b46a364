"""Prove a backend by starting a real sandbox with real limits and reading what it says from inside."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate_executor.sandbox.base import (
    ComponentProcess,
    Limits,
    ReplicaExited,
    SandboxBackend,
    SandboxSpec,
)

PROBE_LIMITS = Limits(cpu_millis=1000, memory_mib=64, pids=32)
# bash speaks TCP by itself, so that the image needs no network program; without it this is not tried.
CONNECT_SCRIPT = """
if command -v bash >/dev/null; then
    if bash -c 'exec 3<>/dev/tcp/127.0.0.1/PORT' 2>/dev/null; then said=made; else said=denied; fi
    echo "Connection: $said"
else
    echo 'Connection: untried'
fi
"""
PATH = "/usr/local/bin:/usr/bin:/bin"


class ProbeFailure(Exception):
    """The sandbox started, but it is not what the level promises."""


@contextmanager
def refused_port() -> Iterator[int]:
    """A port of the host that listens, and that no sandbox may reach."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


def refuse_connections(port: int) -> str:
    """What to run inside to see whether that port is reached."""
    return CONNECT_SCRIPT.replace("PORT", str(port))


def answers_of(output: str) -> dict[str, str]:
    """Lines of the form `name: value`."""
    pairs = (line.split(":", 1) for line in output.split("\n") if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


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
