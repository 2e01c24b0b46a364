"""From inside each level: more than forty attempts at what is not the job's own. Each fails, and the log says so."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tidegate_executor.sandbox.base import CallRefused, Layer, Limits, Mount, Recorded, ReplicaExited, Sandbox
from tidegate_executor.sandbox.shim.guarded import PIDS_AHEAD
from tidegate_executor.sandbox.shimmed import ShimmedBackend

from tests.executor.sandbox.conftest import World, image_layers, wait_output

PROGRAM = Path(__file__).with_name("attempts.py")
LIMITS = Limits(cpu_millis=2000, memory_mib=512, pids=64)
ATTEMPTS_MIN = 40
SECONDS_MAX = 120.0  # a guest's kernel takes its time to open and fork without end
CANARY = "canary-of-the-host"
MARK = "86399.25"  # how long a process of the host sleeps

# What a guest's own kernel does to itself: the host's is not asked, so it is no way out. `attempts.py` looks at what
# could be done with it by the attempts beside.
OF_THE_GUEST = {
    "gvisor": {"raise_file_limit", "lower_oom_score", "read_environment_of_process_1"},
    "docker-guarded": {"lower_oom_score", "read_environment_of_process_1"},
}

# What the filter denies, and so the agent is told of; all else the kernel refuses, or it is not there to be asked for.
CALLS = {
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "open_tree",
    "fsopen",
    "mount_setattr",
    "ptrace",
    "process_vm_readv",
    "bpf",
    "perf_event_open",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "swapon",
    "acct",
    "quotactl",
    "open_by_handle_at",
    "settimeofday",
    "sethostname",
    "setdomainname",
    "reboot",
    "syslog",
    "fanotify_init",
    "vhangup",
    "setns",
    "unshare",
}
BY_ARGUMENT = {"socket(raw)", "socket(17)", "socket(40)", "ioctl(terminal)"}
# A guest's kernel says of these that they make no sense as they were made, or gives a namespace that leads nowhere.
NOT_OF_GUESTS = {"mount_setattr", "open_by_handle_at", "perf_event_open", "setns", "unshare"}
TOLD = {"bwrap": CALLS | BY_ARGUMENT, "gvisor": CALLS - NOT_OF_GUESTS}


def image(directory: Path) -> tuple[Layer, ...]:
    """An image with a set-uid program of root's."""
    own = directory / "image"
    own.mkdir()
    shutil.copy("/usr/bin/id", own / "identity")
    os.chmod(own / "identity", 0o4755)
    return (*image_layers(), Layer(source=str(own), target="/opt/image"))


def own_address() -> str:
    """An address of the host that is not its loopback; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.2"
        return str(asking.getsockname()[0])


async def past(sandbox: Sandbox) -> AsyncIterator[Recorded]:
    """What happened until its replica ended."""
    async for recorded in sandbox.events():
        yield recorded
        if isinstance(recorded.event, ReplicaExited):
            return


async def stands_ready(world: World, layers: tuple[Layer, ...], *, image_late: bool) -> bool:
    """Have one of this image, or without one, stand ready for the sandbox that will be made, where the backend can."""
    backend = world.backend
    assert isinstance(backend, ShimmedBackend)
    if not (backend.images_come_late if image_late else backend.keeps_ready):
        return False
    await backend.make_ready(() if image_late else layers, 0)
    assert backend.ready.promise(layers, world.spec().id) == 0
    return True


@pytest.mark.parametrize("stood_ready", ["", "image", "no image"])
async def test_every_attempt_fails_and_is_logged(world: World, stood_ready: str) -> None:
    secret, inputs, outputs = world.directory / "secret", world.directory / "in", world.directory / "out"
    secret.write_text("of the executor")
    secret.chmod(0o600)
    for place in (inputs, outputs):
        place.mkdir()
    (inputs / "data").write_text("given")
    layers = image(world.directory)
    if stood_ready and not await stands_ready(world, layers, image_late=stood_ready == "no image"):
        pytest.skip("sandboxes of this backend are built when they are needed")
    neighbour = await world.create("other.1.0", uid_slot=1)
    waiting = "open('/workspace/private', 'w').write('x')\nprint('up')\nimport time\ntime.sleep(600)"
    await neighbour.start(world.python(waiting, env={"NEIGHBOUR": "1"}))
    await wait_output(neighbour, "up")
    (private,) = await asyncio.to_thread(lambda: list(Path(world.settings.sandboxes_dir).rglob("private")))
    mounts = (
        Mount(source=str(inputs), target="/inputs/set"),
        Mount(source=str(outputs), target="/outputs/run", writable=True, take_ownership=True),
    )
    sandbox = await world.create(layers=layers, mounts=mounts)
    sleeping = await asyncio.create_subprocess_exec("sleep", MARK)
    with (
        socket.create_server(("0.0.0.0", 0)) as listening,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as abstract,
    ):
        abstract.bind(f"\0{CANARY}")
        abstract.listen()
        host = {
            "secret": str(secret),
            "neighbour_file": str(private),
            "sandboxes": world.settings.sandboxes_dir,
            "own": sandbox.id,
            "canary": CANARY,
            "backwards": MARK[::-1],  # so that the program's own command line does not hold it
            "port": listening.getsockname()[1],
            "address": own_address(),
            "left_out": ["fork_without_end"] if stood_ready else [],  # so many processes need more memory than there is
        }
        code = f"import sys\nsys.argv[1:] = [{json.dumps(host)!r}]\n" + PROGRAM.read_text().replace(
            "from __future__ import annotations\n", ""
        )
        # The guest that stood ready is one for so many processes.
        limits = msgspec.structs.replace(LIMITS, pids=PIDS_AHEAD) if stood_ready else LIMITS
        exited, output = await world.run(sandbox, world.python(code, limits=limits), SECONDS_MAX)
    sleeping.kill()
    await sleeping.wait()
    assert exited.exit_code == 0, output[-3000:]
    outcomes = {found["attempt"]: found["outcome"] for found in map(json.loads, output.splitlines())}
    allowed = OF_THE_GUEST.get(world.name, set())
    succeeded = {name: text for name, text in outcomes.items() if not text.startswith("denied") and name not in allowed}
    assert succeeded == {}
    assert len(outcomes) - len(allowed) >= ATTEMPTS_MIN
    refused = {recorded.event.call async for recorded in past(sandbox) if isinstance(recorded.event, CallRefused)}
    wanted = TOLD.get(world.name, set())
    assert (refused - wanted, wanted - refused) == (set(), set())
    assert (inputs / "data").read_text() == "given"
    left = (outputs / "shell").stat()
    assert (left.st_uid, left.st_mode & 0o4000) == (world.backend.host_uid(0), 0)
    assert (await neighbour.stats()).replicas, "the neighbour still runs"
