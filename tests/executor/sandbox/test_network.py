"""A job's sandboxes on one node reach each other by a private network; another job's do not; nothing is left of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_executor.sandbox import networks
from tidegate_executor.sandbox.base import ComponentProcess, Layer, Limits, Network, ReplicaExited, Sandbox

from tests.executor.sandbox.conftest import World, image_layers, open_world, output_of, wait_output
from tests.support.libraries import needed

LEARNER = Limits(cpu_millis=2000, memory_mib=1536, pids=256)
DDP_SECONDS_MAX = 120.0

SERVE = (
    "import socket\n"
    "listening = socket.create_server(('0.0.0.0', 7001))\n"
    "print('up')\n"
    "while True:\n"
    "    asked, who = listening.accept()\n"
    "    asked.sendall(who[0].encode())\n"
    "    asked.close()\n"
)
CALL = (
    "import socket\n"
    "try:\n"
    "    print(socket.create_connection(('10.201.0.1', 7001), 2).recv(64).decode())\n"
    "except OSError as error:\n"
    "    print('denied', type(error).__name__)\n"
)


@pytest.fixture(params=["bwrap", "gvisor", "docker"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world(request.param, tmp_path)
    yield opened
    await opened.backend.sweep(set())
    await opened.backend.release()


def switches_mounted(world: World) -> int:
    """Of this world: others of this machine may have some."""
    return Path("/proc/self/mountinfo").read_text().count(f"{world.settings.sandboxes_dir}/.networks/")


async def member(world: World, job: str, rank: int, slot: int) -> Sandbox:
    network = Network(name=f"{job}.1", member=rank)
    return await world.create(f"{job}.1.{rank}", uid_slot=slot, network=network, hostname=f"rank{rank}")


DDP = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 1))
loss = model(torch.full((8, 4), float(dist.get_rank() + 1))).sum()
loss.backward()
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print("sum", total.item(), "gradient", model.module.bias.grad.item(), model.module.weight.grad[0, 0].item())
dist.barrier()
dist.destroy_process_group()
"""


async def test_an_unmodified_torch_script_reduces_across_two_sandboxes(world: World) -> None:
    needed("torch")
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/home/job",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_PORT": "29511",
    }
    layers = (*image_layers(), Layer(source=sys.prefix, target=sys.prefix))
    running = []
    for rank in range(2):
        network = Network(name="ddp.1", member=rank)
        sandbox = await world.create(f"ddp.1.{rank}", network=network, hostname=f"rank{rank}", layers=layers)
        env = {**environment, "RANK": str(rank), "MASTER_ADDR": networks.address(0), "OMP_NUM_THREADS": "1"}
        process = world.process(sys.executable, "-c", DDP, env=env, limits=LEARNER)
        running.append(asyncio.ensure_future(finished(world, sandbox, process)))
    for exited, output in await asyncio.gather(*running):
        assert exited.exit_code == 0, output
        assert "sum 3.0 gradient 8.0 12.0" in output


async def finished(world: World, sandbox: Sandbox, process: ComponentProcess) -> tuple[ReplicaExited, str]:
    await sandbox.start(process)
    async with asyncio.timeout(DDP_SECONDS_MAX):
        async for recorded in sandbox.events():
            if isinstance(recorded.event, ReplicaExited):
                return recorded.event, await output_of(sandbox)
    raise AssertionError("the history ended without the exit")


async def test_members_reach_each_other_and_nobody_else_does(world: World) -> None:
    first, second = await member(world, "job", 0, 0), await member(world, "job", 1, 0)
    other = await member(world, "other", 1, 1)
    outside = await world.create("lone.1.0", uid_slot=2)
    await first.start(world.python(SERVE))
    await wait_output(first, "up")
    _, output = await world.run(second, world.python(CALL))
    assert output == "10.201.0.2\n"
    _, output = await world.run(other, world.python(CALL))
    assert output.startswith("denied"), "another job has a network of its own, where nobody has this address"
    _, output = await world.run(outside, world.python(CALL))
    assert output.startswith("denied")
    assert networks.names(world.settings.sandboxes_dir) == ["job.1", "other.1"]


async def test_a_switch_that_nobody_removed_in_time_is_removed_by_the_next_sweep(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a SIGKILL of the agent between the end of a network's last sandbox and that of the network."""
    before = switches_mounted(world)
    with monkeypatch.context() as patch:
        patch.setattr(networks, "remove", lambda place, name: None)
        await (await member(world, "left", 0, 0)).destroy()
    await member(world, "job", 0, 0)
    assert networks.names(world.settings.sandboxes_dir) == ["job.1", "left.1"]
    await world.backend.sweep({"job.1.0"})
    assert networks.names(world.settings.sandboxes_dir) == ["job.1"]
    assert switches_mounted(world) == before + 1


async def test_a_switch_lives_as_long_as_somebody_is_plugged_in(world: World) -> None:
    before = switches_mounted(world)
    again, second = await member(world, "job", 0, 0), await member(world, "job", 1, 0)
    for _ in range(4):  # in the place of one whose cable the kernel may not have taken away yet
        await again.destroy()
        assert networks.names(world.settings.sandboxes_dir) == ["job.1"]
        again = await member(world, "job", 0, 0)
    await again.start(world.python(SERVE))
    await wait_output(again, "up")
    _, output = await world.run(second, world.python(CALL))
    assert output == "10.201.0.2\n"
    await asyncio.gather(again.destroy(), second.destroy())
    assert networks.names(world.settings.sandboxes_dir) == []
    assert switches_mounted(world) == before
