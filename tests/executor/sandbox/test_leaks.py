"""Many sandboxes come and go; the machine is as it was."""

from __future__ import annotations

import os
from pathlib import Path

from tidegate_executor.sandbox.base import Mount

from tests.executor.sandbox.conftest import World, left_over

CYCLES = 30


def mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


def groups(name: str) -> list[str]:
    return [where for where, _, _ in os.walk("/sys/fs/cgroup") if f"/{name}/" in where]


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


async def test_no_leaks(world: World) -> None:
    work = world.directory / "work"
    work.mkdir()
    (work / "code.py").write_text("")
    mount = Mount(source=str(work), target="/inputs/x")

    async def cycle(number: int) -> None:
        sandbox = await world.create(f"cycle.{number}.0", uid_slot=number, workdir=str(work), mounts=(mount,))
        exited, _ = await world.run(sandbox, world.process("true", cwd="/"))
        assert exited.exit_code == 0
        await sandbox.start(world.process("sleep", "600", component="straggler", cwd="/"))
        if number % 2:
            await sandbox.stop(0)
        await sandbox.destroy()

    await cycle(0)
    before = (mounts(), len(os.listdir("/proc/self/fd")), groups(world.settings.cgroup_name))
    for number in range(1, CYCLES + 1):
        await cycle(number)
    assert (mounts(), len(os.listdir("/proc/self/fd")), groups(world.settings.cgroup_name)) == before
    assert kin(Path(world.settings.sandboxes_dir)) == []
    assert left_over(world) == []
    await world.backend.release()
    assert not any(f"/{world.settings.cgroup_name}" in where for where, _, _ in os.walk("/sys/fs/cgroup"))
