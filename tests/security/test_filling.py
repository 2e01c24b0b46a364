"""A job that fills what it can reach harms itself: memory, disk, inodes, handles, processes; its neighbour goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import DiskLimits, Limits, RequestRefusedError

from tests.executor.sandbox.conftest import World, open_world, output_of, wait_output

LIMITS = Limits(cpu_millis=1000, memory_mib=128, pids=32)
BEAT = "import time\nwhile True:\n    print('beat')\n    time.sleep(0.1)\n"
FILLINGS = {
    "memory": "held = []\nwhile True: held.append(bytearray(b'x' * (4 << 20)))",
    "tmpfs": "with open('/tmp/fill', 'wb') as writing:\n    while True: writing.write(b'x' * (4 << 20))",
    "shared_memory": "with open('/dev/shm/fill', 'wb') as writing:\n    while True: writing.write(b'x' * (4 << 20))",
}


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


DISK = DiskLimits(mib=32, inodes=2000)
FILL_DISK = """
import os, sys
place, written = sys.argv[1], 0
try:
    with open(place + "/fill", "wb", buffering=0) as writing:
        while written < 4 << 30:
            written += writing.write(bytes(1 << 20))
except OSError as error:
    print("full", error.errno, written >> 20, flush=True)
print("again", os.path.getsize(place + "/fill") > 0)
"""
FILL_INODES = """
import sys
made = 0
try:
    for made in range(1_000_000):
        open(f"{sys.argv[1]}/{made}", "w").close()
except OSError as error:
    print("full", error.errno, made)
"""
HANDLES = """
import os
held = []
try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print("full", error.errno, len(held) < 1 << 21)
"""
DIRECTORIES = ("/workspace", "/home/job", "/var/cache/job")


@pytest.fixture(params=["bwrap", "gvisor"])
async def limited(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


def disks() -> set[str]:
    """The loop devices that are in use, and the mounts of this namespace."""
    loops = {entry for entry in os.listdir("/sys/block") if os.path.exists(f"/sys/block/{entry}/loop/backing_file")}
    return loops | {line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "/files " in line}


@pytest.mark.parametrize("place", DIRECTORIES)
async def test_filling_the_disk_fills_ones_own(limited: World, place: str) -> None:
    before = await asyncio.to_thread(disks)
    neighbour = await limited.create("other.1.0", uid_slot=1, disk=DISK)
    await neighbour.start(limited.python(BEAT))
    await wait_output(neighbour, "beat")
    sandbox = await limited.create("job.1.0", uid_slot=2, disk=DISK)
    argv = (*limited.python(FILL_DISK).argv, place)
    exited, output = await limited.run(sandbox, limited.process(*argv, limits=LIMITS), 60.0)
    assert (exited.exit_code, exited.oom) == (0, False), output
    number, mib = map(int, output.split()[1:3])
    assert number == 28, "ENOSPC"
    assert 16 <= mib <= DISK.mib
    assert "MiB is full" in await sandbox.disk_full()
    assert await neighbour.disk_full() == ""
    beats = (await output_of(neighbour)).count("beat") + 1
    await wait_output(neighbour, "beat\n" * beats)
    used = os.stat(Path(limited.settings.sandboxes_dir, "job.1.0", "disk")).st_blocks * 512
    assert used <= (DISK.mib + 1) << 20
    for each in (sandbox, neighbour):
        await each.destroy()
    assert await asyncio.to_thread(disks) == before


async def test_filling_inodes_fills_ones_own(limited: World) -> None:
    sandbox = await limited.create(disk=DISK)
    argv = (*limited.python(FILL_INODES).argv, "/workspace")
    exited, output = await limited.run(sandbox, limited.process(*argv, limits=LIMITS), 60.0)
    assert exited.exit_code == 0, output
    number, made = map(int, output.split()[1:3])
    assert (number, 1000 < made <= 2 * DISK.inodes) == (28, True), output
    assert "files are all in use" in await sandbox.disk_full()


async def test_handles_without_end_are_ones_own(world: World) -> None:
    neighbour = await world.create("other.1.0", uid_slot=1)
    await neighbour.start(world.python(BEAT))
    await wait_output(neighbour, "beat")
    sandbox = await world.create("job.1.0", uid_slot=2)
    exited, output = await world.run(sandbox, world.python(HANDLES, limits=LIMITS), 60.0)
    assert exited.oom or "full 24 True" in output, (exited, output)
    beats = (await output_of(neighbour)).count("beat") + 1
    await wait_output(neighbour, "beat\n" * beats)


async def test_an_agent_that_dies_leaves_no_disk(limited: World) -> None:
    """The sandbox is found by another incarnation, and its disk goes with it."""
    before = await asyncio.to_thread(disks)
    sandbox = await limited.create(disk=DISK)
    await sandbox.start(limited.python(BEAT))
    await wait_output(sandbox, "beat")
    assert await asyncio.to_thread(disks) != before
    again = await open_world(limited.name, limited.directory)
    assert await again.backend.sweep(set()) == ("job.1.0",)
    assert await asyncio.to_thread(disks) == before


async def test_a_backend_that_bounds_no_disk_refuses_to(tmp_path: Path) -> None:
    for name in ("docker", "process"):
        world = await open_world(name, tmp_path)
        with pytest.raises(RequestRefusedError, match="bounds no disk"):
            await world.create(disk=DISK)
        await world.backend.release()
