"""Many sandboxes come and go; the machine is as it was."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import Mount, Network, RequestRefusedError
from tidegate_executor.sandbox.docker import DockerBackend
from tidegate_executor.sandbox.launch import READY_PREFIX

from tests.executor.sandbox.conftest import World, left_over

CYCLES = 30
CYCLES_LONG = 200
GIVEN_UP = 20
GIVEN_UP_STEP_SECONDS = 0.002
SPACES_OF_OTHERS_MAX = 8  # waiting shims, and what else of this machine began meanwhile: far fewer than cycles


def mounts(world: World) -> int:
    """How many are the sandboxes' or their engine's; others of this machine may come and go."""
    places = (str(world.directory), os.path.dirname(world.settings.docker_socket), "/.networks/")
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return sum(any(place in line for place in places) for line in lines)


def groups(name: str) -> list[str]:
    """But those of shims that wait for the next sandbox."""
    found = [where for where, _, _ in os.walk("/sys/fs/cgroup") if f"/{name}/" in where]
    return [where for where in found if f"/{READY_PREFIX}" not in where]


def kin(directory: Path) -> list[int]:
    """Living processes of sandboxes below `directory`: shims by their open log, the rest by their group."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            opened = [os.readlink(path) for path in (entry / "fd").iterdir()] if alive else []
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if any(path.startswith(str(directory)) for path in opened):
            found.append(int(entry.name))
    return found


def parents() -> dict[int, int]:
    """The parent of each process, but for those that have ended and that process 1 is to reap, whenever it does."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit():
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z" or int(parent) > 1:
                    found[int(entry.name)] = int(parent)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def may_be_left(pid: int, parent_of: dict[int, int]) -> bool:
    """Whether it is ours, or nobody's: what another process of this machine began is its own."""
    above = parent_of.get(pid, 0)
    if above <= 1:
        return True
    while above > 1 and above != os.getpid():
        above = parent_of.get(above, 0)
    return above == os.getpid()


def namespaces() -> dict[str, str]:
    """Every namespace that such a process is in, and what one of them is."""
    found = {}
    parent_of = parents()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) in parent_of and may_be_left(int(entry.name), parent_of):
            for kind in ("net", "mnt", "pid", "user"):
                try:
                    command = (entry / "cmdline").read_text().replace("\0", " ")[:120]
                    found[os.readlink(entry / "ns" / kind)] = f"{entry.name}: {command}"
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
    return found


def interfaces() -> list[str]:
    return sorted(os.listdir("/sys/class/net"))


async def test_no_leaks(world: World) -> None:
    await come_and_go(world, CYCLES)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_no_leaks_in_the_long_run(cell: World) -> None:
    await come_and_go(cell, CYCLES_LONG)


async def come_and_go(world: World, cycles: int) -> None:
    work = world.directory / "work"
    work.mkdir()
    (work / "code.py").write_text("")
    mount = Mount(source=str(work), target="/inputs/x")

    async def cycle(number: int) -> None:
        network = Network(name=f"cycle.{number}", member=0) if world.isolated and os.geteuid() == 0 else None
        sandbox = await world.create(
            f"cycle.{number}.0", uid_slot=number, workdir=str(work), mounts=(mount,), network=network
        )
        exited, _ = await world.run(sandbox, world.process("true", cwd="/"))
        assert exited.exit_code == 0
        await sandbox.start(world.process("sleep", "600", component="straggler", cwd="/"))
        if number % 2:
            await sandbox.stop(0)
        await sandbox.destroy()

    await cycle(0)
    before = (mounts(world), len(os.listdir("/proc/self/fd")), groups(world.settings.cgroup_name), interfaces())
    spaces = namespaces()
    for number in range(1, cycles + 1):
        await cycle(number)
    assert (mounts(world), len(os.listdir("/proc/self/fd")), groups(world.settings.cgroup_name), interfaces()) == before
    left = {space: what for space, what in namespaces().items() if space not in spaces}
    assert len(left) <= SPACES_OF_OTHERS_MAX, left
    assert kin(Path(world.settings.sandboxes_dir)) == []
    assert left_over(world) == []
    if isinstance(world.backend, DockerBackend):
        assert await world.backend.strays() == ()
    await world.backend.release()
    assert not any(f"/{world.settings.cgroup_name}" in where for where, _, _ in os.walk("/sys/fs/cgroup"))


async def test_starts_that_come_to_nothing_leave_nothing(cell: World) -> None:
    """Refused before it is made, given up at any moment, and a release that comes at once."""

    def groups_left() -> list[str]:
        return [where for where, _, _ in os.walk("/sys/fs/cgroup") if f"/{cell.settings.cgroup_name}" in where]

    for _ in range(5):
        await cell.create("stays.1.0")
        with pytest.raises(RequestRefusedError, match="exists already"):
            await cell.create("stays.1.0")
        assert [(found.sandbox.id, found.condition) for found in await cell.backend.list()] == [
            ("stays.1.0", "running")
        ]
        await cell.backend.sweep(set())
        await cell.backend.release()
        assert groups_left() == []
    for number in range(GIVEN_UP):
        making = asyncio.create_task(cell.create(f"gone.{number}.0"))
        await asyncio.sleep(number * GIVEN_UP_STEP_SECONDS)
        making.cancel()
        done = (await asyncio.gather(making, return_exceptions=True))[0]
        if isinstance(done, asyncio.CancelledError):
            assert left_over(cell) == []
        else:
            await cell.backend.sweep(set())
        await cell.backend.release()
        assert groups_left() == []
