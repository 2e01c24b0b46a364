"""Sandboxes that stand ready come and go, are taken and are not; the machine is as it was, whoever ends when."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import Network
from tidegate_executor.sandbox.docker import DockerBackend
from tidegate_executor.sandbox.ready import Outfit
from tidegate_executor.sandbox.shim.engine import LABEL, Engine
from tidegate_executor.sandbox.shim.processes import start_ticks
from tidegate_executor.sandbox.shimmed import ShimmedBackend
from tidegate_executor.sandbox.state import StateDirectory

from tests.executor.sandbox.conftest import (
    BACKENDS,
    World,
    backend_of,
    image_layers,
    left_over,
    open_world,
    wait_output,
)
from tests.executor.sandbox.test_leaks import SPACES_OF_OTHERS_MAX, interfaces, kin, mounts, namespaces

CYCLES = 15
SLOT = 7


@pytest.fixture(params=["bwrap", "gvisor", "docker", "docker-guarded"])
async def warm(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if os.geteuid() != 0:
        pytest.skip("only root adds mounts to a sandbox that stands")
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


def seen(world: World) -> tuple[object, ...]:
    return mounts(world), len(os.listdir("/proc/self/fd")), interfaces(), kin(Path(world.settings.sandboxes_dir))


async def nothing_is_left(world: World) -> None:
    assert left_over(world) == []
    assert os.listdir(backend_of(world).ready.directory) == []
    assert kin(Path(world.settings.sandboxes_dir)) == []
    if isinstance(world.backend, DockerBackend):
        assert await world.backend.strays() == ()
    await world.backend.release()
    assert not any(f"/{world.settings.cgroup_name}" in where for where, _, _ in os.walk("/sys/fs/cgroup"))


async def test_nothing_is_left_of_those_that_were_taken_nor_of_those_that_were_not(warm: World) -> None:
    backend = backend_of(warm)

    async def cycle(number: int) -> None:
        name = f"cycle.{number}.0"
        await backend.make_ready(image_layers(), SLOT, Outfit(plugged=bool(number % 2)))
        if number % 3 == 2:
            await backend.ready.discard()
            return
        assert backend.ready.promise(image_layers(), name) == SLOT
        network = Network(name=f"cycle.{number}", member=0) if number % 4 else None
        sandbox = await warm.create(name, uid_slot=SLOT, network=network)
        exited, _ = await warm.run(sandbox, warm.process("true", cwd="/"))
        assert exited.exit_code == 0
        await sandbox.start(warm.process("sleep", "600", component="straggler", cwd="/"))
        await sandbox.destroy()

    await cycle(0)
    before, spaces = seen(warm), namespaces()
    for number in range(1, CYCLES + 1):
        await cycle(number)
    assert seen(warm) == before
    left = {space: what for space, what in namespaces().items() if space not in spaces}
    assert len(left) <= SPACES_OF_OTHERS_MAX, left
    assert backend.ready.hits == 1 + CYCLES - CYCLES // 3
    await nothing_is_left(warm)


async def test_what_one_became_is_found_and_removed_by_the_next_agent(warm: World) -> None:
    backend = backend_of(warm)
    await backend.make_ready(image_layers(), SLOT)
    backend.ready.promise(image_layers(), "found.1.0")
    made = await warm.create("found.1.0", uid_slot=SLOT)
    await made.start(warm.process("/bin/sh", "-c", "echo up; sleep 600", cwd="/"))
    await wait_output(made, "up")
    assert backend.ready.hits == 1
    await backend.make_ready(image_layers(), SLOT + 1)
    backend.ready.let_go()  # this agent ends
    following = BACKENDS[warm.name](warm.settings)
    assert isinstance(following, ShimmedBackend)
    await following.clear_strays()
    (found,) = await following.list()
    assert (found.condition, found.sandbox.id) == ("running", "found.1.0")
    assert [each.component for each in (await found.sandbox.stats()).replicas] == ["main"]
    assert await following.sweep(set()) == ("found.1.0",)
    await nothing_is_left(warm)


async def test_what_an_engine_has_of_a_sandbox_that_nobody_knows_is_removed(tmp_path: Path) -> None:
    world = await open_world("docker", tmp_path)
    assert isinstance(world.backend, DockerBackend)
    sandbox = await world.create("forgotten.1.0")
    state = StateDirectory(world.settings.sandboxes_dir, sandbox.id)
    kept = await world.create("kept.1.0", uid_slot=1)
    shim = state.shim()
    assert shim is not None
    os.kill(shim.pid, signal.SIGKILL)
    shutil.rmtree(state.path, ignore_errors=True)  # as a power cut may
    engine = Engine(world.settings.docker_socket)
    volumes = engine.call("GET", "/volumes")["Volumes"]
    assert any("forgotten" in each["Labels"].get(LABEL, "") for each in volumes if each["Labels"])
    assert await world.backend.strays() == ("forgotten.1.0", "kept.1.0")
    assert "forgotten.1.0" in await world.backend.clear_strays()
    assert await world.backend.strays() == ("kept.1.0",)
    await kept.destroy()
    await world.backend.release()
    assert not any(f"/{world.settings.cgroup_name}" in where for where, _, _ in os.walk("/sys/fs/cgroup"))


def end_container(engine: Engine, group: str, part: str) -> None:
    """SIGKILL process 1 of that container of a sandbox, as the kernel does for want of memory."""
    for each in engine.call("GET", "/containers/json"):
        labels = each["Labels"]
        if labels.get("tidegate.part") == part and labels[LABEL].endswith(f"/{group}"):
            pid = engine.call("GET", f"/containers/{each['Id']}/json")["State"]["Pid"]
            os.kill(pid, signal.SIGKILL)
            while start_ticks(pid) is not None:
                time.sleep(0.01)
            return
    raise AssertionError(f"{group} has no container {part}")


@pytest.mark.parametrize("part", ["holder", "first"])
async def test_one_of_which_a_container_has_ended_is_passed_over(tmp_path: Path, part: str) -> None:
    world = await open_world("docker", tmp_path)
    backend = backend_of(world)
    await backend.make_ready(image_layers(), SLOT)
    assert backend.ready.promise(image_layers(), "dead.1.0") == SLOT
    await asyncio.to_thread(
        end_container, Engine(world.settings.docker_socket), backend.ready.standing[0].state.id, part
    )
    made = await world.create("dead.1.0", uid_slot=SLOT)
    exited, output = await world.run(made, world.process("/bin/sh", "-c", "echo up", cwd="/"))
    assert (exited.exit_code, output, backend.ready.hits) == (0, "up\n", 0)
    await made.destroy()
    await nothing_is_left(world)
