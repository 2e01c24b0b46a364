"""Gangs on real agents and a real bus: they begin together, and their ranks on two nodes stop at one call."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest_asyncio
from nats.aio.client import Client
from tidegate_events.events import ProgressReported, SandboxExited, SandboxStarted
from tidegate_events.orders import GangPlace, SandboxOrder
from tidegate_executor.environment import master_port

from tests.executor.agent.conftest import Agent, Scheduler, component, job, until

MakeAgent = Callable[..., Agent]
NODES = ("n1", "n2")
GRACE_NS = 20_000_000_000

# No rank waits for the others here: that they stop at one call is the agents' doing alone.
RANK_CODE = """
import os, pathlib, time, tidegate
job = tidegate.init()
pathlib.Path(os.environ["BEGUN"], f"{job.rank}").touch()
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
print([os.environ[name] for name in names], flush=True)
calls = 0
while True:
    calls += 1
    stop = job.should_stop()
    job.report({}, step=calls, progress=min(1.0, calls / 2000))
    if stop:
        break
    time.sleep(0.004 + 0.002 * job.rank)
job.save(state={"calls": calls}, step=calls)
job.exit_suspended()
"""


@pytest_asyncio.fixture
async def second(client: Client) -> AsyncIterator[Scheduler]:
    """Stands for the scheduler at the other node."""
    stand_in = Scheduler(client, "n2")
    task = asyncio.ensure_future(stand_in.run())
    yield stand_in
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def gang(begun: Path, ranks: dict[int, GangPlace]) -> dict[int, SandboxOrder]:
    begun.mkdir(exist_ok=True)
    order = job("gang", component("learn", RANK_CODE, kind="learner"), gang_size=len(ranks), env={"BEGUN": str(begun)})
    return {rank: msgspec.structs.replace(order, rank=rank, gang=place) for rank, place in ranks.items()}


async def exits(scheduler: Scheduler, count: int) -> dict[int, SandboxExited]:
    async def all_of() -> list[SandboxExited] | None:
        found = await scheduler.events(SandboxExited)
        return found if len(found) >= count else None

    return {each.rank: each for each in await until(all_of)}


async def test_ranks_on_two_nodes_stop_at_one_call(
    make_agent: MakeAgent, scheduler: Scheduler, second: Scheduler, tmp_path: Path
) -> None:
    make_agent()
    make_agent(node="n2", data_dir=str(tmp_path / "node2"), rack="r2", switch="s1", address="10.0.0.2")
    await scheduler.joined()
    joined = await second.joined()
    assert (joined.rack, joined.switch, joined.address) == ("r2", "s1", "10.0.0.2")
    ranks = gang(
        tmp_path / "begun",
        {
            0: GangPlace(nodes=NODES, local_size=2),
            1: GangPlace(nodes=NODES, node_rank=1),
            2: GangPlace(nodes=NODES, local_rank=1, local_size=2),
        },
    )
    on = {0: scheduler, 1: second, 2: scheduler}
    for rank, order in ranks.items():
        on[rank].want(order)

    async def far_enough() -> bool:
        return any(told.progress_millis >= 150 for told in await scheduler.events(ProgressReported))

    await until(far_enough)
    deadline_ns = time.time_ns() + GRACE_NS
    for rank, order in ranks.items():  # n1 hears it first: n2 goes on calling meanwhile
        on[rank].change(order, desired="suspend", deadline_ns=deadline_ns, reason="Preempted")
        if rank == 0:
            on[2].change(ranks[2], desired="suspend", deadline_ns=deadline_ns, reason="Preempted")
            await asyncio.sleep(0.5)
    ended = await exits(scheduler, 3)
    assert {(each.outcome, each.acknowledged) for each in ended.values()} == {("suspended", True)}
    assert len({each.last_step for each in ended.values()}) == 1, {rank: end.last_step for rank, end in ended.items()}
    told = [each.progress_millis for each in await scheduler.events(ProgressReported)]
    assert {each.rank for each in await scheduler.events(ProgressReported)} == {0}
    assert all(later - earlier >= 50 for earlier, later in itertools.pairwise(told)), told


async def test_nobody_begins_before_the_last_member_stands(
    make_agent: MakeAgent, scheduler: Scheduler, second: Scheduler, tmp_path: Path
) -> None:
    """The second node is told nothing at first: rank 0 stands and waits, also when its agent starts again."""
    agent = make_agent()
    make_agent(node="n2", data_dir=str(tmp_path / "node2"))
    await scheduler.joined()
    await second.joined()
    places = {0: GangPlace(nodes=NODES), 1: GangPlace(nodes=NODES, node_rank=1)}
    ranks = gang(tmp_path / "begun", places)
    scheduler.want(ranks[0])
    await until(lambda: "SandboxReady" in agent.log.read_text())  # it stands, and is followed
    agent.end()
    agent.start()
    await scheduler.joined(2)
    assert list((tmp_path / "begun").iterdir()) == []
    assert await scheduler.events(SandboxStarted) == []
    second.want(ranks[1])
    await until(lambda: len(list((tmp_path / "begun").iterdir())) == 2)
    for rank, stand_in in ((0, scheduler), (1, second)):
        stand_in.change(ranks[rank], desired="suspend", deadline_ns=time.time_ns() + GRACE_NS)
    ended = await exits(scheduler, 2)
    assert len({each.last_step for each in ended.values()}) == 1
    assert {each.outcome for each in ended.values()} == {"suspended"}


async def test_a_member_that_waits_for_the_others_is_stopped_without_having_begun(
    make_agent: MakeAgent, scheduler: Scheduler, tmp_path: Path
) -> None:
    make_agent()
    await scheduler.joined()
    order = gang(tmp_path / "begun", {0: GangPlace(nodes=NODES), 1: GangPlace(nodes=NODES, node_rank=1)})[0]
    scheduler.want(order)
    await until((tmp_path / "node" / "sandboxes" / "gang.1.0").is_dir)
    scheduler.change(order, desired="stop", deadline_ns=time.time_ns() + GRACE_NS, reason="GangBroken")
    exited = await scheduler.exit_of("gang")
    assert exited.outcome == "stopped"
    assert list((tmp_path / "begun").iterdir()) == []
    assert await scheduler.events(SandboxStarted) == []


async def test_members_on_one_node_need_no_other_agent_to_begin_and_know_their_places(
    make_agent: MakeAgent, scheduler: Scheduler, tmp_path: Path
) -> None:
    agent = make_agent()
    await scheduler.joined()
    places = {rank: GangPlace(nodes=("n1",), local_rank=rank, local_size=2) for rank in (0, 1)}
    ranks = gang(tmp_path / "begun", places)
    scheduler.want(ranks[0])
    await until((agent.data_dir / "sandboxes" / "gang.1.0").is_dir)
    assert list((tmp_path / "begun").iterdir()) == []
    scheduler.want(ranks[1])
    await until(lambda: len(list((tmp_path / "begun").iterdir())) == 2)

    def said(rank: int) -> Any:
        log = agent.data_dir / "logs" / f"gang.1.{rank}"
        return next((text for path in log.iterdir() if (text := path.read_text(errors="replace"))), None)

    port = master_port("gang", 1)
    for rank in (0, 1):
        text = await until(lambda rank=rank: said(rank))
        assert str([str(rank), "2", str(rank), "2", "0", "127.0.0.1", str(port)]) in text
