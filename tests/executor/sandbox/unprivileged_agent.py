"""One sandbox from beginning to end, as a user without root. Argument: a JSON request; prints a JSON report."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tidegate_executor.cgroups.detect import Detected, driver_from
from tidegate_executor.sandbox.base import ComponentProcess, Layer, Limits, ReplicaExited, SandboxSpec
from tidegate_executor.sandbox.bwrap import BwrapBackend
from tidegate_executor.sandbox.settings import SandboxSettings

SCRIPT = (
    "id -u; echo written >package/new && cat package/new; "
    "grep CapEff /proc/self/status | cut -f2; grep ^Seccomp: /proc/self/status | cut -f2; exit 3"
)


async def main() -> None:
    request = json.loads(sys.argv[1])
    directory = Path(request["directory"])
    upload = directory / "upload"
    (upload / "package").mkdir(parents=True)
    backend = BwrapBackend(SandboxSettings(sandboxes_dir=str(directory / "sandboxes")))
    backend.use_limits(Detected(driver_from(request["cgroup"]), ()))
    probe = await backend.probe()
    spec = SandboxSpec(
        id="job.1.0",
        hostname="h",
        log_dir=str(directory / "logs"),
        workdir=str(upload),
        layers=(Layer(source="/usr", target="/usr"),),
    )
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
    left = [found.sandbox.id for found in await backend.list()]
    print(json.dumps({"available": probe.available, "exit_code": exit_code, "output": output, "left": left}))


asyncio.run(main())
