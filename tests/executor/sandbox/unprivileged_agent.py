"""One sandbox from beginning to end, as a user without root. Argument: a JSON request; prints a JSON report."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tidegate_executor.cgroups.detect import Detected, driver_from
from tidegate_executor.sandbox.base import ComponentProcess, Layer, Limits, Mount, ReplicaExited, SandboxSpec
from tidegate_executor.sandbox.bwrap import BwrapBackend
from tidegate_executor.sandbox.settings import SandboxSettings

SCRIPT = (
    "id -u; echo written >package/new && cat package/new; "
    "grep CapEff /proc/self/status | cut -f2; grep ^Seccomp: /proc/self/status | cut -f2; "
    "hostname; cat /etc/hosts given /inputs/x/given; echo out >/outputs/y/out && cat /outputs/y/out; "
    "(echo no >/inputs/x/no) 2>/dev/null || echo read-only; mkdir /new 2>/dev/null || echo read-only; ls / /workspace; "
    "grep -q master: /proc/self/mountinfo || echo secluded; "
    "exit 3"
)


async def main() -> None:
    request = json.loads(sys.argv[1])
    directory = Path(request["directory"])
    upload = directory / "upload"
    (upload / "package").mkdir(parents=True)
    backend = BwrapBackend(SandboxSettings(sandboxes_dir=str(directory / "sandboxes")))
    backend.use_limits(Detected(driver_from(request["cgroup"]), ()))
    probe = await backend.probe()
    layers = (Layer(source="/usr", target="/usr"),)
    written = directory / "written"
    written.mkdir()
    (upload / "given").write_text("given\n")
    reports = []
    for name, stands_ready in (("fresh.1.0", False), ("ready.1.0", True)):
        spec = SandboxSpec(
            id=name,
            hostname="h",
            log_dir=str(directory / "logs" / name),
            workdir=str(upload),
            mounts=(
                Mount(source=str(upload), target="/inputs/x"),
                Mount(source=str(written), target="/outputs/y", writable=True, take_ownership=True),
            ),
            layers=layers,
        )
        if stands_ready:
            await backend.make_ready(layers, 0)
            backend.ready.promise(layers, name)
        reports.append(await run(backend, spec))
    await backend.make_ready(layers, 0)
    await backend.ready.discard()
    left = [found.sandbox.id for found in await backend.list()] + os.listdir(backend.ready.directory)
    told = {"available": probe.available, "left": left, "hits": backend.ready.hits, "fresh": reports[0]}
    print(json.dumps({**told, "ready": reports[1]}))


async def run(backend: BwrapBackend, spec: SandboxSpec) -> dict[str, object]:
    """What comes of the script in a sandbox like this, to its end."""
    sandbox = await backend.create(spec)
    process = ComponentProcess(
        component="main",
        replica=0,
        argv=("sh", "-c", SCRIPT),
        limits=Limits(cpu_millis=1000, memory_mib=64, pids=16),
        env={"PATH": "/usr/bin:/bin"},
    )
    await sandbox.start(process)
    exit_code = None
    async for recorded in sandbox.events():
        if isinstance(recorded.event, ReplicaExited):
            exit_code = recorded.event.exit_code
            break
    output = (await sandbox.logs("main", 0)).data.decode().split()
    await sandbox.destroy()
    return {"exit_code": exit_code, "output": output}


asyncio.run(main())
