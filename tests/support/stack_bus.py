"""The bus as the local stack configures it, for tests of what each login may do there."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tidegate_local import plan
from tidegate_local.bus import Bus, write_config
from tidegate_local.home import Home
from tidegate_local.topology import NATS, ONE_OF_EACH

READY_WAIT_SECONDS = 0.02
STOP_SECONDS_MAX = 10
(SERVER,) = ONE_OF_EACH.processes(NATS)


@asynccontextmanager
async def running(directory: Path, made: Bus) -> AsyncIterator[Bus]:
    """Run the server of `made`, with its streams, on a home in `directory`."""
    home = Home(directory)
    home.create()
    write_config(home, made)
    spec = plan.nats_service(home, made, SERVER)
    with (directory / "nats.log").open("wb") as log:
        process = subprocess.Popen(spec.argv, stdout=log, stderr=log)  # noqa: ASYNC220 - a fork of milliseconds
    try:
        while not await spec.is_ready():
            assert process.poll() is None
            await asyncio.sleep(READY_WAIT_SECONDS)
        yield made
    finally:
        process.terminate()
        process.wait(STOP_SECONDS_MAX)
