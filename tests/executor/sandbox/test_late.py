"""Images of any kind, whether they come late or are there from the start: the same is seen, and nothing more."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tidegate_executor.sandbox import disk
from tidegate_executor.sandbox.base import InfrastructureError, Layer, Limits, Mount, RequestRefusedError
from tidegate_executor.sandbox.shim import syscalls

from tests.executor.sandbox.conftest import World, backend_of, image_layers, open_world, wait_output
from tests.executor.sandbox.test_ready import SLOT, rooted

STANDS = ["fresh", "image", "none"]
PROCESS = r"""
grep -E '^(Umask|Uid|Gid|Groups|Sig|Shd|Cap|NoNewPrivs|Seccomp|TracerPid|FDSize|Threads|THP)' /proc/self/status
cat /proc/self/limits /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups
cat /proc/self/oom_score_adj /proc/self/coredump_filter /proc/self/timerslack_ns /proc/self/personality
env | sort; nice; umask
ls -l /proc/self/fd | awk '{print $1, $3, $9, $11}' | sed 's/[0-9]*\]//; s:/proc/[0-9]*:/proc/PID:'
readlink /proc/self/root /proc/self/cwd
readlink /proc/1/root || readlink /proc/1/exe || ls /proc/1/ns || echo "process 1 is closed"
set -- /proc/[0-9]*; echo $#
cut -d' ' -f5-7 /proc/self/mountinfo | sort
find / -xdev -writable 2> /dev/null | sort
"""
BESIDE_FLAGS = (
    ",nosuid,nodev"  # overlays that we mount have them, those that bubblewrap mounts in its namespace need none
)


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[World]:
    if os.geteuid() != 0:
        pytest.skip("only root gives a sandbox that stands its image")
    opened = await open_world("bwrap", tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


async def run(world: World, stands: str, layers: tuple[Layer, ...], script: str, **changes: object) -> str:
    """What the script says in a sandbox of which this stood ready."""
    backend = backend_of(world)
    name = f"{stands}.1.0"
    if stands != "fresh":
        await backend.make_ready(layers if stands == "image" else (), SLOT)
        assert backend.ready.promise(layers, name) == SLOT
    before = backend.ready.hits + backend.ready.hits_without_image
    made = await backend.create(world.spec(name, uid_slot=SLOT, layers=layers, **changes))
    assert backend.ready.hits + backend.ready.hits_without_image == before + (stands != "fresh"), "it was used"
    exited, output = await world.run(made, world.process("/bin/sh", "-c", script, cwd="/"))
    assert exited.exit_code is not None, output
    await made.destroy()
    return output


def more(directory: Path, count: int) -> tuple[Layer, ...]:
    """So many layers with a file each, which lie on each other."""
    for number in range(count):
        (directory / f"{number}").mkdir(parents=True)
        (directory / f"{number}" / f"of.{number}").touch()
    return tuple(Layer(source=str(directory / f"{number}"), target="/opt/more") for number in range(count))


@pytest.mark.parametrize("image", ["usr", "root"])
async def test_what_a_process_is_told_of_itself_is_the_same(cell: World, image: str) -> None:
    layers = rooted(cell.directory) if image == "root" else image_layers()
    work = cell.directory / "work"
    work.mkdir()
    seen = {stands: await run(cell, stands, layers, PROCESS, workdir=str(work)) for stands in STANDS}
    plain = {stands: output.replace(BESIDE_FLAGS, "") for stands, output in seen.items()}
    assert plain["none"].splitlines() == plain["image"].splitlines() == plain["fresh"].splitlines()
    assert "process 1 is closed" in seen["none"]
    assert "Seccomp:\t2" in seen["none"]


@pytest.mark.parametrize("stands", ["fresh", "none"])
@pytest.mark.parametrize("count", [100, 260, 400])
async def test_every_layer_of_many_is_seen(cell: World, stands: str, count: int) -> None:
    layers = (*image_layers(), *more(cell.directory / "more", count))
    assert await run(cell, stands, layers, "ls /opt/more | wc -l") == f"{count}\n"
    assert not backend_of(cell).ready.standing


async def test_none_is_made_ready_of_an_image_that_always_comes_late(cell: World) -> None:
    with pytest.raises(InfrastructureError, match="always comes late"):
        await backend_of(cell).make_ready((*image_layers(), *more(cell.directory / "more", 201)), SLOT)


@pytest.mark.parametrize("stands", STANDS)
async def test_a_layer_that_an_image_has_twice_is_no_hindrance(cell: World, stands: str) -> None:
    first, second = more(cell.directory / "more", 2)
    (Path(second.source) / "of.0").write_text("hidden")
    layers = (*image_layers(), first, second, first)
    assert await run(cell, stands, layers, "ls /opt/more; cat /opt/more/of.0") == "of.0\nof.1\n"


def pipe(place: Path) -> None:
    os.mkfifo(place)


def closed(place: Path) -> None:
    place.write_text("x")
    place.chmod(0)


def of_another(place: Path) -> None:
    place.write_text("x")
    place.chmod(0o600)
    os.chown(place, 5, 5)


def device(place: Path) -> None:
    os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 1))


@pytest.mark.parametrize("there", [pipe, closed, of_another, device])
@pytest.mark.parametrize("stands", ["fresh", "none"])
async def test_what_an_image_has_where_something_is_mounted_is_not_opened(
    cell: World, stands: str, there: object
) -> None:
    layers = rooted(cell.directory)
    assert callable(there)
    for name in ("hosts", "passwd"):
        there(cell.directory / "root" / "etc" / name)
    output = await run(cell, stands, layers, "head -1 /etc/hosts; grep -c job: /etc/passwd")
    assert output == "127.0.0.1 localhost rank0\n1\n"


@pytest.mark.parametrize("stands", ["fresh", "none"])
async def test_an_image_with_a_file_in_the_way_is_refused_and_the_node_is_not_to_blame(
    cell: World, stands: str
) -> None:
    layers = rooted(cell.directory)
    (cell.directory / "root" / "run").touch()
    with pytest.raises(RequestRefusedError, match="a file at /run, where the sandbox mounts /run/tidegate/hold"):
        await run(cell, stands, layers, "true")
    assert list(backend_of(cell).ready.directory.glob("*")) == []


@pytest.mark.parametrize("stands", STANDS)
async def test_what_is_mounted_in_the_sandboxs_own_directories_is_seen(cell: World, stands: str) -> None:
    given = cell.directory / "given"
    given.mkdir()
    (given / "file").write_text("there\n")
    places = ("/home/job/given", "/var/cache/job/given", "/tmp/given", "/workspace/given")
    mounts = tuple(Mount(source=str(given), target=place) for place in places)
    output = await run(
        cell, stands, image_layers(), f"cat {' '.join(f'{place}/file' for place in places)}", mounts=mounts
    )
    assert output == "there\n" * len(places)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory in which mounts are told to those who have copies of it, as in an agent's namespace."""
    place = tmp_path / "shared"
    place.mkdir()
    syscalls.mount(str(place), str(place), None, syscalls.MS_BIND)
    syscalls.mount("none", str(place), None, syscalls.MS_SHARED)
    yield place
    syscalls.unmount(str(place), syscalls.MNT_DETACH)


@pytest.mark.parametrize("stands", STANDS)
async def test_what_the_host_mounts_in_a_source_later_is_not_seen(cell: World, stands: str, shared: Path) -> None:
    """It would be writable in what is read-only, and have set-uid programs and devices."""
    (shared / "in" / "below").mkdir(parents=True)
    (shared / "other").mkdir(mode=0o777)
    (shared / "other").chmod(0o777)
    backend = backend_of(cell)
    layers = image_layers()
    if stands != "fresh":
        await backend.make_ready(layers if stands == "image" else (), SLOT)
        assert backend.ready.promise(layers, "a.1.0") == SLOT
    mounts = (Mount(source=str(shared / "in"), target="/inputs/x"),)
    made = await backend.create(cell.spec("a.1.0", uid_slot=SLOT, layers=layers, mounts=mounts))
    script = "echo up; while [ ! -e /inputs/x/go ]; do sleep 0.02; done; touch /inputs/x/below/new; echo end; sleep 60"
    await made.start(cell.process("/bin/sh", "-c", script, cwd="/"))
    await wait_output(made, "up")
    syscalls.mount(str(shared / "other"), str(shared / "in" / "below"), None, syscalls.MS_BIND)
    try:
        (shared / "in" / "go").touch()
        assert "Read-only file system" in await wait_output(made, "end")
        assert os.listdir(shared / "other") == []
    finally:
        syscalls.unmount(str(shared / "in" / "below"), syscalls.MNT_DETACH)
    await made.destroy()


@pytest.fixture
def half_roots(tmp_path: Path) -> Iterator[Path]:
    """A file system half of which is kept for root."""
    if why := disk.probe(tmp_path):
        pytest.skip(why)
    image, place = tmp_path / "file-system", tmp_path / "mounted"
    place.mkdir()
    with open(image, "wb") as writing:
        writing.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "50", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    yield place
    syscalls.unmount(str(place), syscalls.MNT_DETACH)


@pytest.mark.parametrize("name", ["bwrap", "gvisor"])
@pytest.mark.parametrize("stands", STANDS)
async def test_a_job_cannot_have_what_a_file_system_keeps_for_root(half_roots: Path, name: str, stands: str) -> None:
    world = await open_world(name, half_roots)
    if stands == "none" and not backend_of(world).images_come_late:
        pytest.skip("here an image is there from the start")
    work = half_roots / "work"
    work.mkdir()
    script = "head -c 60m /dev/zero > /workspace/much; stat -c %s /workspace/much; rm /workspace/much"
    output = await run(world, stands, image_layers(), script, workdir=str(work))
    assert "No space left" in output
    assert 10 << 20 < int(output.splitlines()[-1]) < 30 << 20, "half of it is root's"
    await world.backend.release()


@pytest.mark.parametrize("stands", STANDS)
async def test_a_data_directory_may_have_any_name(tmp_path: Path, stands: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a sandbox that stands its image")
    world = await open_world("bwrap", tmp_path / "a,userxattr:b\\c d")
    work = world.directory / "work,x"
    work.mkdir(parents=True)
    (work / "code").write_text("code\n")
    script = "cat /workspace/code; echo more >> /workspace/code; cat /workspace/code"
    assert await run(world, stands, image_layers(), script, workdir=str(work)) == "code\ncode\nmore\n"
    await world.backend.release()


@pytest.mark.parametrize("stands", STANDS)
async def test_a_replica_that_ends_at_once_takes_no_other_along(cell: World, stands: str) -> None:
    """Who mounted late has its descriptors for a moment yet: what is heard of them is of no other's by their number."""
    backend = backend_of(cell)
    layers = image_layers()
    if stands != "fresh":
        await backend.make_ready(layers if stands == "image" else (), SLOT)
        assert backend.ready.promise(layers, "a.1.0") == SLOT
    made = await backend.create(cell.spec("a.1.0", uid_slot=SLOT, layers=layers))
    limits = Limits(cpu_millis=2000, memory_mib=16, pids=16)
    fill = cell.process("/bin/sh", "-c", "head -c 100m /dev/zero > /tmp/much", limits=limits, cwd="/")
    exited, _ = await cell.run(made, fill)
    assert exited.oom
    for number in range(3):
        say = cell.process("/bin/sh", "-c", "echo said; sleep 0.05", component="other", replica=number, cwd="/")
        exited, output = await cell.run(made, say)
        assert (exited.exit_code, output) == (0, "said\n")
    await made.destroy()
