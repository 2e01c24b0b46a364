"""A sandbox that stood ready with a cable: its job's network is as any other's, and nothing is left of either."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_executor.sandbox import networks
from tidegate_executor.sandbox.base import Network, Sandbox
from tidegate_executor.sandbox.ready import Outfit
from tidegate_executor.sandbox.shimmed import ShimmedBackend
from tidegate_executor.sandbox.state import StateDirectory

from tests.executor.sandbox.conftest import World, image_layers, open_world, wait_output
from tests.executor.sandbox.test_leaks import kin
from tests.executor.sandbox.test_network import CALL, SERVE, switches_mounted

INTERFACES = "print(sorted(line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line))"


@pytest.fixture(params=["bwrap", "gvisor"])
async def plugged(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if os.geteuid() != 0:
        pytest.skip("only root makes networks")
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


async def taken(world: World, name: str, slot: int, network: Network | None) -> Sandbox:
    """One that stood ready with a cable."""
    backend = world.backend
    assert isinstance(backend, ShimmedBackend)
    await backend.make_ready(image_layers(), slot, Outfit(plugged=True))
    assert backend.ready.promise(image_layers(), name) == slot
    before = backend.ready.hits
    sandbox = await world.create(name, uid_slot=slot, network=network, hostname="rank")
    assert backend.ready.hits == before + 1
    return sandbox


async def member(world: World, job: str, rank: int, slot: int) -> Sandbox:
    return await taken(world, f"{job}.1.{rank}", slot, Network(name=f"{job}.1", member=rank))


async def test_members_reach_each_other_and_nobody_else_does(plugged: World) -> None:
    first, second = await member(plugged, "job", 0, 0), await member(plugged, "job", 1, 1)
    later = await plugged.create("job.1.2", uid_slot=2, network=Network(name="job.1", member=2))
    other = await member(plugged, "other", 1, 3)
    await first.start(plugged.python(SERVE))
    await wait_output(first, "up")
    for sandbox, wanted in ((second, "10.201.0.2\n"), (later, "10.201.0.3\n")):
        _, output = await plugged.run(sandbox, plugged.python(CALL))
        assert output == wanted
    _, output = await plugged.run(other, plugged.python(CALL))
    assert output.startswith("denied"), "another job has a network of its own, where nobody has this address"
    assert networks.names(plugged.settings.sandboxes_dir) == ["job.1", "other.1"]


async def test_a_member_comes_back_to_its_place(plugged: World) -> None:
    again, second = await member(plugged, "job", 0, 0), await member(plugged, "job", 1, 1)
    for _ in range(3):  # in the place of one whose cable the kernel may not have taken away yet
        await again.destroy()
        again = await member(plugged, "job", 0, 0)
    await again.start(plugged.python(SERVE))
    await wait_output(again, "up")
    _, output = await plugged.run(second, plugged.python(CALL))
    assert output == "10.201.0.2\n"
    await asyncio.gather(again.destroy(), second.destroy())
    assert networks.names(plugged.settings.sandboxes_dir) == []
    assert switches_mounted(plugged) == 0


async def test_a_job_without_a_network_sees_no_cable(plugged: World) -> None:
    sandbox = await taken(plugged, "lone.1.0", 0, None)
    _, output = await plugged.run(sandbox, plugged.python(INTERFACES))
    assert output == "['lo']\n"


async def test_nothing_is_kept_of_a_cable_that_was_used_or_that_nobody_took(plugged: World) -> None:
    backend = plugged.backend
    assert isinstance(backend, ShimmedBackend)
    await backend.make_ready(image_layers(), 0, Outfit(plugged=True))
    await backend.ready.discard()
    descriptors = len(os.listdir("/proc/self/fd"))  # with those of the shims that wait
    for number in range(5):
        sandbox = await member(plugged, f"job{number}", 0, 0)
        shim = StateDirectory(plugged.settings.sandboxes_dir, sandbox.id).shim()
        assert shim is not None
        held = [os.readlink(f"/proc/{shim.pid}/fd/{each}") for each in os.listdir(f"/proc/{shim.pid}/fd")]
        assert sum(each.startswith("net:[") for each in held) == 1, "its own, and no switch's"
        assert switches_mounted(plugged) == 1
        await sandbox.destroy()
        await backend.make_ready(image_layers(), 0, Outfit(plugged=True))
        await backend.ready.discard()
    assert (switches_mounted(plugged), networks.names(plugged.settings.sandboxes_dir)) == (0, [])
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert kin(Path(plugged.settings.sandboxes_dir)) == []
