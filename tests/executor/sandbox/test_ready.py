"""Sandboxes that stand ready for an image: what one becomes is what a fresh one is, and nothing is left of others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tidegate_executor.sandbox.base import (
    InfrastructureError,
    Layer,
    Limits,
    Mount,
    RequestRefusedError,
    SandboxSpec,
)
from tidegate_executor.sandbox.docker import DockerBackend
from tidegate_executor.sandbox.shim import processes, syscalls
from tidegate_executor.sandbox.shim.guarded import PIDS_AHEAD
from tidegate_executor.sandbox.state import StateDirectory

from tests.executor.sandbox.conftest import World, backend_of, image_layers, open_world, wait_output
from tests.executor.sandbox.test_leaks import kin

SLOT = 7
WAIT_SECONDS = 20.0
POLL_SECONDS = 0.05
LIMITS = Limits(cpu_millis=1000, memory_mib=128, pids=PIDS_AHEAD)
LOOK = """
id -u; id -g; hostname; cat /etc/hostname; echo "$HOSTNAME"; cat /etc/hosts /workspace/code.py /inputs/x/data; pwd
ls -1 / /run/tidegate/agent /workspace /inputs /outputs /home /var/cache /etc /dev /usr
stat -c '%n %A %u %g' / /* /etc/* /usr/* /opt/* /home/job /proc/1/root 2>/dev/null
echo new > /workspace/new && echo more >> /workspace/code.py && cat /workspace/new /workspace/code.py
echo out > /outputs/y/file && cat /outputs/y/file
(echo no > /inputs/x/data) 2>/dev/null || echo "inputs are read-only"
(echo no > /etc/hosts) 2>/dev/null || echo "hosts are read-only"
mkdir /new 2>/dev/null || echo "the root is read-only"
touch /home/job/a /var/cache/job/b /tmp/c && echo "its own are writable"
stat -c %U /workspace/code.py /outputs/y/file
grep -E '^(CapEff|NoNewPrivs)' /proc/self/status
"""

MOUNTS = """
cut -d" " -f5,6 /proc/self/mountinfo | cut -d, -f1 | sort
"""

HOLDS = """
import asyncio, sys
import msgspec
from tidegate_executor.sandbox.base import Layer
from tidegate_executor.sandbox.settings import SandboxSettings
from tests.executor.sandbox.conftest import BACKENDS
async def main():
    backend = BACKENDS[sys.argv[1]](msgspec.json.decode(sys.argv[2], type=SandboxSettings))
    await backend.make_ready((Layer(source="/usr", target="/usr"),), 7)
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.fixture(params=["bwrap", "gvisor", "docker", "docker-guarded"])
async def warm(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Those backends of which sandboxes can stand ready."""
    opened = await open_world(request.param, tmp_path)
    if not backend_of(opened).keeps_ready:
        pytest.skip("only root adds mounts to a sandbox that stands")
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


def spec_of(world: World, sandbox: str, **changes: object) -> SandboxSpec:
    work, read, written = (world.directory / name for name in ("work", "read", f"written-{sandbox}"))
    for directory in (work, read, written):
        directory.mkdir(exist_ok=True)
    (work / "code.py").write_text("code\n")
    (read / "data").write_text("data\n")
    (world.directory / "agent").mkdir(exist_ok=True)
    mounts = (
        Mount(source=str(world.directory / "agent"), target="/run/tidegate/agent"),
        Mount(source=str(read), target="/inputs/x"),
        Mount(source=str(written), target="/outputs/y", writable=True, take_ownership=True),
    )
    fields: dict[str, object] = {"uid_slot": SLOT, "workdir": str(work), "mounts": mounts}
    return world.spec(sandbox, **{**fields, **changes})


def groups_below(world: World) -> list[str]:
    return [where for where, _, _ in os.walk("/sys/fs/cgroup") if f"/{world.settings.cgroup_name}/" in where]


def processes_in(group: str) -> str:
    """An engine leaves groups without any in hierarchies that are not ours."""
    try:
        return Path(group, "cgroup.procs").read_text()
    except OSError:
        return ""


async def look(world: World, sandbox: str, script: str = LOOK, **changes: object) -> list[str]:
    made = await world.backend.create(spec_of(world, sandbox, **changes))
    exited, output = await world.run(made, world.process("/bin/sh", "-c", script, limits=LIMITS, cwd="/workspace"))
    assert exited.exit_code == 0, output
    await made.destroy()
    return output.splitlines()


def rooted(directory: Path) -> tuple[Layer, ...]:
    """An image with a root of its own, and more on it."""
    root, more = directory / "root", directory / "more"
    (root / "etc").mkdir(parents=True)
    (root / "srv").mkdir(mode=0o700)
    (root / "etc" / "release").write_text("own\n")
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "usr").mkdir()
    more.mkdir()
    (more / "tool").write_text("tool\n")
    return (Layer(source=str(root), target="/"), *image_layers(), Layer(source=str(more), target="/opt/more"))


@pytest.mark.parametrize("image", ["usr", "root"])
async def test_any_image_comes_late_to_one_that_stood_without(cell: World, image: str) -> None:
    backend = backend_of(cell)
    if not backend.keeps_ready:
        pytest.skip("only root adds mounts to a sandbox that stands")
    layers = rooted(cell.directory) if image == "root" else image_layers()
    fresh = await look(cell, "fresh.1.0", MOUNTS + LOOK, layers=layers)
    for name in ("late.1.0", "late.2.0"):
        await backend.make_ready((), SLOT)
        assert backend.ready.promise(layers, name) == SLOT
        assert await look(cell, name, MOUNTS + LOOK, layers=layers) == fresh
    assert (backend.ready.hits, backend.ready.hits_without_image) == (0, 2)
    assert "release" in fresh or image == "usr"
    await backend.release()
    assert kin(Path(cell.settings.sandboxes_dir)) == []
    assert groups_below(cell) == []


async def test_one_for_an_image_is_taken_before_one_for_any(cell: World) -> None:
    backend = backend_of(cell)
    if not backend.keeps_ready:
        pytest.skip("only root adds mounts to a sandbox that stands")
    await backend.make_ready((), SLOT)
    await backend.make_ready(image_layers(), SLOT + 1)
    assert backend.ready.promise(image_layers(), "a.1.0") == SLOT + 1
    assert backend.ready.promise(image_layers(), "b.1.0") == SLOT
    assert backend.ready.promise(image_layers(), "c.1.0") is None


async def test_one_that_stood_ready_is_as_a_fresh_one(warm: World) -> None:
    backend = backend_of(warm)
    fresh = await look(warm, "fresh.1.0")
    await backend.make_ready(image_layers(), SLOT)
    assert backend.ready.promise(image_layers(), "ready.1.0") == SLOT
    assert backend.ready.hits == 0
    assert await look(warm, "ready.1.0") == fresh
    assert backend.ready.hits == 1
    assert os.stat(f"{warm.directory}/written-ready.1.0/file").st_uid == backend.host_uid(SLOT)
    await backend.release()
    assert kin(Path(warm.settings.sandboxes_dir)) == []
    assert groups_below(warm) == []


async def test_the_id_of_one_that_lives_is_refused_and_harms_neither(warm: World) -> None:
    backend = backend_of(warm)
    await warm.backend.create(spec_of(warm, "twice.1.0"))
    await backend.make_ready(image_layers(), SLOT + 1)
    assert backend.ready.promise(image_layers(), "twice.1.0") == SLOT + 1
    with pytest.raises(RequestRefusedError, match="exists already"):
        await backend.create(spec_of(warm, "twice.1.0", uid_slot=SLOT + 1))
    found = {each.sandbox.id: each.condition for each in await backend.list()}
    assert found == {"twice.1.0": "running"}
    assert os.listdir(backend.ready.directory) == []


async def test_its_other_replicas_see_the_same(warm: World) -> None:
    backend = backend_of(warm)
    await backend.make_ready(image_layers(), SLOT)
    backend.ready.promise(image_layers(), "two.1.0")
    made = await backend.create(spec_of(warm, "two.1.0"))
    assert backend.ready.hits == 1
    script = "cat /workspace/code.py /inputs/x/data; hostname; echo $1 > /workspace/from.$1; sleep 600"
    for number in range(2):
        argv = ("/bin/sh", "-c", script, "sh", f"{number}")
        await made.start(warm.process(*argv, replica=number, limits=LIMITS, cwd="/workspace"))
        await wait_output(made, "code\ndata\nrank0\n", replica=number)
    both = warm.process("/bin/sh", "-c", "cat /workspace/from.*", component="other", limits=LIMITS, cwd="/workspace")
    assert (await warm.run(made, both))[1] == "0\n1\n"
    limits = await made.resize("main", 0, Limits(cpu_millis=500, memory_mib=96, pids=PIDS_AHEAD))
    assert (limits.cpu_millis, limits.memory_mib) == (500, 96)
    found = {each.sandbox.id: each.condition for each in await backend.list()}
    assert found == {"two.1.0": "running"}
    await made.destroy()
    assert await backend.list() == ()


async def test_one_that_has_ended_is_passed_over(warm: World) -> None:
    backend = backend_of(warm)
    await backend.make_ready(image_layers(), SLOT)
    assert backend.ready.promise(image_layers(), "dead.1.0") == SLOT
    for pid in kin(backend.ready.directory):
        os.kill(pid, signal.SIGKILL)
    await look(warm, "dead.1.0")
    assert backend.ready.hits == 0
    assert os.listdir(backend.ready.directory) == []


def command_of(pid: int) -> bytes:
    """Nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def end_what_waits(state: StateDirectory) -> None:
    """SIGKILL what waits for the sandbox's first command, as the kernel does for want of memory."""
    shim = state.shim()
    assert shim is not None
    deadline = time.monotonic() + WAIT_SECONDS
    waiting: list[int] = []
    while not waiting and time.monotonic() < deadline:
        waiting = [pid for pid in processes.descendants(shim.pid) if command_of(pid) == b"start\0"]
    os.kill(waiting[0], signal.SIGKILL)
    while processes.start_ticks(waiting[0]) is not None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


async def test_one_in_which_nothing_waits_any_more_is_passed_over(cell: World) -> None:
    backend = backend_of(cell)
    if not backend.keeps_ready:
        pytest.skip("only root adds mounts to a sandbox that stands")
    await backend.make_ready(image_layers(), SLOT)
    assert backend.ready.promise(image_layers(), "dead.1.0") == SLOT
    end_what_waits(backend.ready.standing[0].state)
    await look(cell, "dead.1.0")
    assert backend.ready.hits == 0
    assert os.listdir(backend.ready.directory) == []


async def test_what_ends_before_it_is_the_command_is_no_exit_of_the_command(cell: World) -> None:
    sandbox = await cell.create()
    end_what_waits(StateDirectory(cell.settings.sandboxes_dir, sandbox.id))
    with pytest.raises(InfrastructureError, match="ended before"):
        await sandbox.start(cell.process("/bin/sh", "-c", "echo never"))
    exited, output = await cell.run(sandbox, cell.process("/bin/sh", "-c", "echo again"))
    assert (exited.exit_code, output) == (0, "again\n")


async def test_what_it_was_not_built_for_is_built_afresh(cell: World) -> None:
    backend = backend_of(cell)
    if not backend.keeps_ready:
        pytest.skip("only root adds mounts to a sandbox that stands")
    await backend.make_ready(image_layers(), SLOT)
    backend.ready.promise(image_layers(), "inner.1.0")
    inner = Mount(source=str(cell.directory), target="/usr/share/inner")  # no place can be made in a layer later
    made = await backend.create(spec_of(cell, "inner.1.0", mounts=(inner,)))
    exited, output = await cell.run(made, cell.process("/bin/sh", "-c", "stat -c %F /usr/share/inner", cwd="/"))
    assert (exited.exit_code, output, backend.ready.hits) == (0, "directory\n", 0)
    # It has the user of the one that was kept for it, so nobody else may have that one.
    assert backend.ready.promise(image_layers(), "next.1.0") is None
    assert os.listdir(backend.ready.directory) == []
    await made.destroy()


async def test_one_whose_user_another_sandbox_has_is_nobody_elses(warm: World) -> None:
    backend = backend_of(warm)
    await backend.make_ready(image_layers(), SLOT)
    backend.ready.promise(image_layers(), "other.1.0")
    layers = (*image_layers(), Layer(source="/usr", target="/opt/more"))
    await backend.create(spec_of(warm, "other.1.0", layers=layers))
    assert backend.ready.hits == 0
    assert backend.ready.promise(image_layers(), "next.1.0") is None
    assert os.listdir(backend.ready.directory) == []


async def test_one_of_another_user_is_left_alone(warm: World) -> None:
    backend = backend_of(warm)
    await backend.make_ready(image_layers(), SLOT)
    backend.ready.promise(image_layers(), "other.1.0")
    made = await backend.create(spec_of(warm, "other.1.0", uid_slot=SLOT + 1))
    assert backend.ready.hits == 0
    assert backend.ready.layers() == [image_layers()]
    await made.destroy()
    assert backend.ready.promise(image_layers(), "next.1.0") == SLOT, "it still stands for who comes next"
    assert backend.ready.promise(image_layers(), "third.1.0") is None, "it is kept for one"
    await backend.ready.discard()
    assert kin(backend.ready.directory) == []
    assert os.listdir(backend.ready.directory) == []


def hold_and_be_killed(world: World) -> None:
    arguments = [world.name, msgspec.json.encode(world.settings).decode()]
    with subprocess.Popen([sys.executable, "-c", HOLDS, *arguments], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        assert groups_below(world)
        assert kin(backend_of(world).ready.directory)
        holder.kill()
    deadline = time.monotonic() + WAIT_SECONDS
    while kin(backend_of(world).ready.directory) or any(processes_in(where) for where in groups_below(world)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_they_end_with_the_process_that_made_them(warm: World) -> None:
    directory = backend_of(warm).ready.directory
    await asyncio.to_thread(hold_and_be_killed, warm)
    (left,) = os.listdir(directory)  # nobody was there to remove it
    if isinstance(warm.backend, DockerBackend):
        assert await warm.backend.strays() == ()
    stray = await backend_of(warm).limits()
    assert stray.driver is not None
    stray.driver.group("ready-stray").create()
    kept = await warm.backend.create(spec_of(warm, "kept.1.0"))
    assert await backend_of(warm).clear_strays() == ("ready-stray",)
    assert os.listdir(directory) == []
    assert not any(left in where for where in groups_below(warm))
    assert (await warm.run(kept, warm.process("/bin/sh", "-c", "echo up", limits=LIMITS)))[1] == "up\n"


@pytest.mark.parametrize("stands", ["an image", "none"])
async def test_what_is_mounted_after_it_stood_ready_is_seen_in_it(cell: World, stands: str) -> None:
    backend = backend_of(cell)
    if not backend.keeps_ready:
        pytest.skip("only root adds mounts to a sandbox that stands")
    place = cell.directory / "mounted"
    place.mkdir()
    more = Layer(source=str(place), target="/opt/more")
    layers = (*image_layers(), more) if stands == "none" else image_layers()
    await backend.make_ready(() if stands == "none" else layers, SLOT)
    syscalls.mount("tmpfs", str(place), "tmpfs", 0, "mode=755")
    try:
        (place / "file").write_text("there\n")
        assert backend.ready.promise(layers, "late.1.0") == SLOT
        mounts = (Mount(source=str(place), target="/inputs/more"),)
        script = "cat /inputs/more/file" + (" /opt/more/file" if stands == "none" else "")
        output = await look(cell, "late.1.0", script, layers=layers, mounts=mounts)
        assert output == ["there"] * (2 if stands == "none" else 1)
    finally:
        syscalls.unmount(str(place), syscalls.MNT_DETACH)
