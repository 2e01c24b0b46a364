"""A job that fills what it can reach harms itself: it ends for its memory, and its neighbour goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import Limits

from tests.executor.sandbox.conftest import World, open_world, output_of, wait_output

LIMITS = Limits(cpu_millis=1000, memory_mib=128, pids=32)
BEAT = "import time\nwhile True:\n    print('beat')\n    time.sleep(0.1)\n"
FILLINGS = {
    "memory": "held = []\nwhile True: held.append(bytearray(b'x' * (4 << 20)))",
    "tmpfs": "with open('/tmp/fill', 'wb') as writing:\n    while True: writing.write(b'x' * (4 << 20))",
    "shared_memory": "with open('/dev/shm/fill', 'wb') as writing:\n    while True: writing.write(b'x' * (4 << 20))",
}


@pytest.fixture(params=["bwrap", "gvisor", "docker", "docker-guarded"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


async def test_filling_memory_and_what_lies_in_it_ends_oneself_only(world: World) -> None:
    neighbour = await world.create("other.1.0", uid_slot=1)
    await neighbour.start(world.python(BEAT))
    await wait_output(neighbour, "beat")
    for name, code in FILLINGS.items():
        sandbox = await world.create(f"{name}.1.0", uid_slot=2)
        exited, output = await world.run(sandbox, world.python(code, limits=LIMITS))
        assert exited.oom or "No space left on device" in output, (name, exited, output)
        await sandbox.destroy()
        beats = (await output_of(neighbour)).count("beat") + 1
        await wait_output(neighbour, "beat\n" * beats)
