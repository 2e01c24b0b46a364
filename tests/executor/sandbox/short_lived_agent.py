"""An agent that starts a sandbox and waits to be killed. Arguments: a JSON request, the code to run."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import uvloop
from tidegate_executor.sandbox.base import ProbeResult
from tidegate_executor.sandbox.settings import SandboxSettings

from tests.executor.sandbox.conftest import BACKENDS, World


async def main() -> None:
    request = json.loads(sys.argv[1])
    directory = Path(request["directory"])
    settings = msgspec.convert(request["settings"], SandboxSettings)
    name = request["name"]
    probe = ProbeResult(level=request["level"], backend=request["backend"], available=True, limits="unknown")
    world = World(BACKENDS[name](settings), settings, probe, name, directory)
    sandbox = await world.create()
    await sandbox.start(world.python(sys.argv[2]))
    print("started", flush=True)
    await asyncio.sleep(600)


uvloop.run(main())  # what the agent runs on
