"""One checkpoint of a gang on two nodes: real agents and services, a disk for each node, one shared tier."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js.api import StreamConfig
from tidegate_events import deadletter, positions
from tidegate_events.events import (
    CheckpointFailed,
    CheckpointPartSaved,
    CheckpointRef,
    CheckpointSaved,
    SandboxExited,
)
from tidegate_events.orders import GangPlace, SandboxOrder

from tests.executor.agent.conftest import Agent, Bus, Scheduler, component, job, until

MakeAgent = Callable[..., Agent]
NODES = ("n1", "n2")
GRACE_NS = 30_000_000_000
PLACES = {
    0: GangPlace(nodes=NODES, local_size=2),
    1: GangPlace(nodes=NODES, node_rank=1),
    2: GangPlace(nodes=NODES, local_rank=1, local_size=2),
}

RANK_CODE = """
import os, pathlib, time, tidegate
job = tidegate.init()
said = pathlib.Path(os.environ["SAID"])
def say(name, text):
    (said / f"{job.attempt}.{job.rank}.{name}").write_text(str(text))
found = job.restore()
step = found["state"]["step"] if found else 0
say("begins", step)
def save():
    bad = os.environ.get("BAD_RANK") == str(job.rank)
    more = {"experience": {}} if bad else {}
    try:
        saved = job.save(model={"w": [job.rank] * 9}, state={"step": step}, step=step, together=True, wait=True, **more)
        say("saved", saved.wait().id)
    except tidegate.SaveFailedError as error:
        say("failed", error)
save_at = step + 5
while True:
    step += 1
    if step == save_at:
        save()
    stop = job.should_stop()
    if stop:
        break
    time.sleep(0.01)
save()
job.exit_suspended()
"""


class Services:
    """The checkpoint service of each node, as processes that may be killed and begun again."""

    def __init__(self, bus: Bus, directory: Path) -> None:
        self._bus = bus
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str) -> None:
        environment = {
            **os.environ,
            "TIDEGATE_BUS_URL": self._bus.url,
            "TIDEGATE_HOT_DIR": str(self._directory / f"hot-{node}"),
            "TIDEGATE_WARM": str(self._directory / "warm"),
            "TIDEGATE_CHECKPOINT_NODE": node,
            "TIDEGATE_INSTANCE": node,
        }
        command = Path(sys.executable).parent / "tidegate-checkpoint"
        with (self._directory / f"checkpoint-{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen([command], env=environment, stdin=subprocess.DEVNULL, stderr=log)

    def kill(self, node: str) -> None:
        process = self._processes.pop(node)
        process.kill()
        process.wait()

    def end(self) -> None:
        for node in list(self._processes):
            self.kill(node)


@pytest.fixture
def services(bus: Bus, tmp_path: Path) -> Iterator[Services]:
    found = Services(bus, tmp_path)
    for node in NODES:
        (tmp_path / f"hot-{node}").mkdir()
    yield found
    found.end()


@pytest_asyncio.fixture
async def second(client: Client) -> AsyncIterator[Scheduler]:
    """Stands for the scheduler at the other node."""
    for config in (positions.stream_config(max_bytes=1024 * 1024), deadletter.stream_config(max_bytes=1024 * 1024)):
        await client.jetstream().add_stream(StreamConfig.from_response(config))
    stand_in = Scheduler(client, "n2")
    task = asyncio.ensure_future(stand_in.run())
    yield stand_in
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def agents(make_agent: MakeAgent, tmp_path: Path) -> tuple[Agent, Agent]:
    warm = str(tmp_path / "warm")
    return (
        make_agent(hot_dir=str(tmp_path / "hot-n1"), warm=warm),
        make_agent(node="n2", data_dir=str(tmp_path / "node2"), hot_dir=str(tmp_path / "hot-n2"), warm=warm),
    )


class Gang:
    """One attempt of a gang whose ranks stand where `places` says."""

    def __init__(self, said: Path, stand_ins: dict[str, Scheduler], places: dict[int, GangPlace], **more: Any) -> None:
        said.mkdir(exist_ok=True)
        self._said = said
        self._on = {rank: stand_ins[place.nodes[place.node_rank]] for rank, place in places.items()}
        env = {"SAID": str(said)} | more.pop("env", {})
        order = job("gang", component("learn", RANK_CODE, kind="learner"), gang_size=len(places), env=env)
        order = msgspec.structs.replace(order, **more)
        self.orders: dict[int, SandboxOrder] = {
            rank: msgspec.structs.replace(order, rank=rank, gang=place) for rank, place in places.items()
        }
        for rank, each in self.orders.items():
            self._on[rank].want(each)

    async def heard(self, name: str) -> dict[int, str]:
        """Return what every rank said, once all have."""
        files = {rank: self._said / f"{order.attempt}.{rank}.{name}" for rank, order in self.orders.items()}
        await until(lambda: all(file.exists() and file.read_text() for file in files.values()))
        return {rank: file.read_text() for rank, file in files.items()}

    def stop(self) -> None:
        for file in self._said.glob("*.saved"):
            file.unlink()
        deadline_ns = time.time_ns() + GRACE_NS
        for rank, order in self.orders.items():
            self._on[rank].change(order, desired="suspend", deadline_ns=deadline_ns, reason="Preempted")


async def exits(scheduler: Scheduler, count: int) -> list[SandboxExited]:
    async def all_of() -> list[SandboxExited] | None:
        found = await scheduler.events(SandboxExited)
        return found if len(found) >= count else None

    ended: list[SandboxExited] = await until(all_of)
    return ended


async def test_a_gang_saves_is_preempted_and_resumes_elsewhere(
    make_agent: MakeAgent, scheduler: Scheduler, second: Scheduler, services: Services, tmp_path: Path
) -> None:
    agents(make_agent, tmp_path)
    for node in NODES:
        services.start(node)
    await scheduler.joined()
    await second.joined()
    stand_ins = {"n1": scheduler, "n2": second}
    gang = Gang(tmp_path / "said", stand_ins, PLACES)
    assert set((await gang.heard("begins")).values()) == {"0"}
    (saved,) = set((await gang.heard("saved")).values())
    told: CheckpointSaved = await scheduler.first(CheckpointSaved, "gang")
    assert (told.checkpoint.id, told.tier, told.rank, told.node, told.checkpoint.step) == (saved, "warm", 0, "n1", 5)
    gang.stop()
    (last,) = set((await gang.heard("saved")).values())
    assert {(each.outcome, each.acknowledged) for each in await exits(scheduler, 3)} == {("suspended", True)}
    resume: CheckpointRef = next(
        each.checkpoint for each in await scheduler.events(CheckpointSaved) if each.checkpoint.id == last
    )
    assert resume.step > 5
    # Two ranks now, and rank 0 where nothing of it ever was.
    swapped = ("n2", "n1")
    places = {0: GangPlace(nodes=swapped), 1: GangPlace(nodes=swapped, node_rank=1)}
    again = Gang(tmp_path / "said", stand_ins, places, attempt=2, resume=resume)
    assert set((await again.heard("begins")).values()) == {str(resume.step)}
    (second_save,) = set((await again.heard("saved")).values())
    assert second_save not in (saved, last)
    again.stop()
    await exits(scheduler, 5)
    assert list(await scheduler.events(CheckpointFailed)) == []


async def test_whoever_is_killed_in_between_all_ranks_are_told(
    make_agent: MakeAgent, scheduler: Scheduler, second: Scheduler, services: Services, tmp_path: Path
) -> None:
    """The parts are stored while no service runs; an agent is killed, then a service again and again."""
    first, other = agents(make_agent, tmp_path)
    await scheduler.joined()
    await second.joined()
    gang = Gang(tmp_path / "said", {"n1": scheduler, "n2": second}, PLACES)
    await gang.heard("begins")

    async def stored() -> bool:
        return len(await scheduler.events(CheckpointPartSaved)) == 2

    await until(stored)
    for agent, stand_in in ((other, second), (first, scheduler)):
        agent.end()
        agent.start()
        await stand_in.joined(2)
    for _ in range(4):
        for node in NODES:
            services.start(node)
        await asyncio.sleep(0.7)
        for node in NODES:
            services.kill(node)
    for node in NODES:
        services.start(node)
    (saved,) = set((await gang.heard("saved")).values())
    told = [each for each in await scheduler.events(CheckpointSaved) if each.checkpoint.id == saved]
    assert len(told) == 1
    roots = list((tmp_path / "warm" / "lab" / "gang" / "roots").iterdir())
    assert [path.stem for path in roots] == [told[0].checkpoint.directory]
    gang.stop()
    await exits(scheduler, 3)


async def test_a_rank_that_fails_is_named_to_all(
    make_agent: MakeAgent, scheduler: Scheduler, second: Scheduler, services: Services, tmp_path: Path
) -> None:
    agents(make_agent, tmp_path)
    for node in NODES:
        services.start(node)
    await scheduler.joined()
    await second.joined()
    gang = Gang(tmp_path / "said", {"n1": scheduler, "n2": second}, PLACES, env={"BAD_RANK": "1"})
    said = await gang.heard("failed")
    assert all("different layers" in text for text in said.values()), said
    veto: CheckpointFailed = await scheduler.first(CheckpointFailed, "gang")
    assert (veto.stage, veto.reason.code, bool(veto.save)) == ("save", "NotOneCheckpoint", True)
    assert await scheduler.events(CheckpointSaved) == []
    gang.stop()
    await exits(scheduler, 3)
