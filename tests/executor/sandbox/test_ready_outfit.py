"""What stands ready for members with devices, with mounts inside their image or with a disk of their own."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_executor.sandbox import disk
from tidegate_executor.sandbox.base import Device, DiskLimits, Limits, Mount, SandboxSpec
from tidegate_executor.sandbox.docker import DockerBackend
from tidegate_executor.sandbox.ready import outfit_of
from tidegate_executor.sandbox.shim.guarded import PIDS_AHEAD

from tests.executor.sandbox.conftest import World, backend_of, image_layers, open_world
from tests.executor.sandbox.test_leaks import kin

SLOT = 7
LIMITS = Limits(cpu_millis=1000, memory_mib=128, pids=PIDS_AHEAD)
DISK = DiskLimits(mib=32, inodes=512)
LIBRARY = "/usr/lib/libaccelerator.so.1"
LOOK = f"""
ls -R /dev | grep -v -E '^(pts|ptmx|[0-9]+)'
ls -l /dev/accelerators | cut -c 1-10
head -c 4 /dev/accelerators/one | od -An -tx1
cat {LIBRARY} 2>/dev/null || echo "no library"
(echo x > {LIBRARY}) 2>/dev/null || echo "read-only, or not there"
grep -c -E '(nodev|nosuid).* /dev/accelerators/one|/dev/accelerators/one.*(nodev|nosuid)' /proc/self/mountinfo
true
"""
ROOM = """
df -P /home/job /workspace /var/cache/job | awk 'NR > 1 {print $2}'
df -iP /home/job | awk 'NR > 1 {print $2}'
head -c 64m /dev/zero > /home/job/much 2>/dev/null || echo "not so much"
"""


@pytest.fixture(params=["bwrap", "gvisor"])
async def warm(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if os.geteuid() != 0:
        pytest.skip("only root adds mounts to a sandbox that stands")
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


@pytest.fixture(params=["bwrap", "docker"])
async def cell(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


def mounts_of(world: World) -> int:
    return Path("/proc/self/mountinfo").read_text().count(str(world.directory))


async def look(world: World, spec: SandboxSpec, script: str) -> str:
    made = await world.backend.create(spec)
    exited, output = await world.run(made, world.process("/bin/sh", "-c", script, limits=LIMITS, cwd="/"))
    assert exited.exit_code is not None, output
    await made.destroy()
    return output


async def fresh_and_ready(world: World, script: str, **changes: object) -> tuple[str, str]:
    """What a script sees in a fresh sandbox, and in one that stood ready for its like."""
    backend = backend_of(world)
    fresh = await look(world, world.spec("fresh.1.0", uid_slot=SLOT, **changes), script)
    spec = world.spec("ready.1.0", uid_slot=SLOT, **changes)
    await backend.make_ready(image_layers(), SLOT, outfit_of(spec))
    assert backend.ready.promise(image_layers(), spec.id, devices=bool(spec.devices)) == SLOT
    ready = await look(world, spec, script)
    assert backend.ready.hits == 1
    return fresh, ready


def accelerator(world: World) -> tuple[tuple[Device, ...], tuple[Mount, ...]]:
    node = world.directory / "node"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    node.chmod(0o666)
    library = world.directory / "library"
    library.write_text("the driver's library\n")
    devices = (Device(source=str(node), target="/dev/accelerators/one"),)
    return devices, (Mount(source=str(library), target=LIBRARY),)


async def test_devices_and_what_their_users_need_come_late(cell: World) -> None:
    devices, mounts = accelerator(cell)
    fresh, ready = await fresh_and_ready(cell, LOOK, devices=devices, mounts=mounts)
    assert ready == fresh
    assert "00 00 00 00" in ready
    assert "the driver's library\nread-only" in ready


async def test_devices_come_to_one_that_stood_without_an_image(cell: World) -> None:
    backend = backend_of(cell)
    if not backend.images_come_late:
        pytest.skip("here an image is there from the start")
    devices, mounts = accelerator(cell)
    fresh = await look(cell, cell.spec("fresh.1.0", uid_slot=SLOT, devices=devices, mounts=mounts), LOOK)
    await backend.make_ready((), SLOT)
    assert backend.ready.promise(image_layers(), "late.1.0", devices=True) == SLOT
    late = await look(cell, cell.spec("late.1.0", uid_slot=SLOT, devices=devices, mounts=mounts), LOOK)
    assert (late, backend.ready.hits_without_image) == (fresh, 1)


async def test_what_stands_for_members_with_devices_is_for_no_others(cell: World) -> None:
    backend = backend_of(cell)
    devices, mounts = accelerator(cell)
    like = cell.spec("a.1.0", devices=devices, mounts=mounts)
    await backend.make_ready(image_layers(), SLOT, outfit_of(like))
    assert backend.ready.promise(image_layers(), "plain.1.0") is None
    await backend.make_ready(image_layers(), SLOT + 1)
    assert backend.ready.promise(image_layers(), "plain.1.0") == SLOT + 1
    seen = await look(cell, cell.spec("plain.1.0", uid_slot=SLOT + 1), f"ls -d {LIBRARY} /dev/accelerators")
    assert (seen.count("No such file"), backend.ready.hits) == (2, 1)


async def test_an_engines_container_that_was_made_without_the_devices_is_replaced(cell: World) -> None:
    if not isinstance(cell.backend, DockerBackend):
        pytest.skip("a sandbox of bubblewrap is given its devices late")
    backend = backend_of(cell)
    devices, mounts = accelerator(cell)
    await backend.make_ready(image_layers(), SLOT)
    backend.ready.promise(image_layers(), "late.1.0")
    spec = cell.spec("late.1.0", uid_slot=SLOT, devices=devices, mounts=mounts)
    made = await backend.create(spec)
    for number in range(2):
        process = cell.process("/bin/sh", "-c", LOOK, replica=number, limits=LIMITS, cwd="/")
        exited, output = await cell.run(made, process)
        assert (exited.exit_code, "00 00 00 00" in output, "driver's library" in output) == (0, True, True)
    assert backend.ready.hits == 1


async def test_a_device_that_is_gone_by_then_is_refused_and_nothing_is_left(cell: World) -> None:
    backend = backend_of(cell)
    devices, mounts = accelerator(cell)
    spec = cell.spec("gone.1.0", uid_slot=SLOT, devices=devices, mounts=mounts)
    await backend.make_ready(image_layers(), SLOT, outfit_of(spec))
    backend.ready.promise(image_layers(), spec.id, devices=True)
    os.unlink(devices[0].source)
    with pytest.raises(Exception, match="is no device node"):
        await backend.create(spec)
    assert os.listdir(backend.ready.directory) == []
    assert kin(Path(cell.settings.sandboxes_dir)) == []


async def test_a_disk_of_its_own_is_there_before_it_is_known_whose(warm: World) -> None:
    if why := disk.probe(warm.directory):
        pytest.skip(why)
    fresh, ready = await fresh_and_ready(warm, ROOM, disk=DISK)
    assert ready == fresh
    assert "not so much" in ready
    assert mounts_of(warm) == 0


async def test_one_without_that_disk_is_not_used(warm: World) -> None:
    if why := disk.probe(warm.directory):
        pytest.skip(why)
    backend = backend_of(warm)
    await backend.make_ready(image_layers(), SLOT)
    backend.ready.promise(image_layers(), "disk.1.0")
    seen = await look(warm, warm.spec("disk.1.0", uid_slot=SLOT, disk=DISK), ROOM)
    assert ("not so much" in seen, backend.ready.hits) == (True, 0)
    await backend.make_ready(image_layers(), SLOT, outfit_of(warm.spec("disk.2.0", disk=DISK)))
    await backend.ready.discard()
    assert mounts_of(warm) == 0
    assert os.listdir(backend.ready.directory) == []
