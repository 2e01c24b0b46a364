"""Level `guarded` and a gang's private network through a real agent: the SDK's channel, checkpoints, limits, faults."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate_events.events import (
    CheckpointSaved,
    PhaseChanged,
    Quota,
    QuotaApplied,
    SandboxExited,
    SandboxStarted,
)
from tidegate_events.orders import GangPlace
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, ResourceRange

from tests.executor.agent.conftest import Agent, Scheduler, component, job, until
from tests.support.libraries import needed

RUNSC = shutil.which(os.environ.get("TIDEGATE_RUNSC", "runsc"))
pytestmark = pytest.mark.isolation
guarded = pytest.mark.skipif(RUNSC is None or os.geteuid() != 0, reason="there is no runsc, or no root")
GUARDED: dict[str, Any] = {"offer_guarded": True, "offer_unisolated": False, "runsc": RUNSC or ""}
GRACE_NS = 30_000_000_000

LEARNER = """
import os, time, tidegate
job = tidegate.init()
found = job.restore()
step = found["state"]["step"] if found else 0
with job.phase("learning"):
    while not job.should_stop():
        step += 1
        job.report({"loss": 1.0 / step}, step=step)
        if step == 5:
            job.save(state={"step": step}, step=step, wait=True)
        time.sleep(0.02)
job.save(state={"step": step}, step=step)
job.exit_suspended()
"""


@guarded
async def test_a_guarded_job_speaks_saves_survives_its_agent_and_resumes(
    make_agent: Callable[..., Agent], scheduler: Scheduler
) -> None:
    agent = make_agent(**GUARDED)
    await scheduler.joined()
    order = job("learns", component("learn", LEARNER, kind="learner"), level="guarded")
    scheduler.want(order)
    started: SandboxStarted = await scheduler.first(SandboxStarted, "learns")
    assert started.level == "guarded"
    saved: CheckpointSaved = await scheduler.first(CheckpointSaved, "learns")
    assert saved.checkpoint.step == 5
    agent.end()
    agent.start()
    await scheduler.joined(2)
    more = Quota(component="learn", cpu_millis=800, memory_mib=200)
    order = scheduler.change(order, quotas=(more,))

    async def applied() -> bool:
        return any(event.quotas == (more,) for event in await scheduler.events(QuotaApplied))

    await until(applied)
    scheduler.change(order, desired="suspend", deadline_ns=time.time_ns() + GRACE_NS, reason="Preempted")
    exited = await scheduler.exit_of("learns")
    assert (exited.outcome, exited.acknowledged) == ("suspended", True)
    assert (await scheduler.first(PhaseChanged, "learns")).phase == "learning"
    last = (await scheduler.events(CheckpointSaved))[-1].checkpoint
    assert last.step == exited.last_step

    resume = msgspec.structs.replace(order, attempt=2, resume=last, quotas=order.quotas)
    scheduler.want(resume)

    async def again() -> SandboxStarted | None:
        return next((each for each in await scheduler.events(SandboxStarted) if each.attempt == 2), None)

    await until(again)

    async def further() -> bool:
        return any(event.attempt == 2 for event in await scheduler.events(PhaseChanged))

    await until(further)
    scheduler.change(resume, desired="suspend", deadline_ns=time.time_ns() + GRACE_NS, reason="Preempted")

    async def ended() -> SandboxExited | None:
        return next((each for each in await scheduler.events(SandboxExited) if each.attempt == 2), None)

    second: SandboxExited = await until(ended)
    assert second.outcome == "suspended"
    assert second.last_step is not None
    assert second.last_step > last.step


@guarded
async def test_what_a_guarded_job_does_wrong_is_its_own_fault(
    make_agent: Callable[..., Agent], scheduler: Scheduler
) -> None:
    make_agent(**GUARDED)
    await scheduler.joined()
    hoard = "held = []\nwhile True: held.append(bytearray(b'x' * (4 << 20)))"
    wrong = {
        "raises": component("main", "raise SystemExit(3)"),
        "hoards": component("main", hoard),
        "missing": msgspec.structs.replace(component("main", ""), command=("/usr/bin/nothing",)),
    }
    for name, each in wrong.items():
        scheduler.want(job(name, each, level="guarded"))
    ends = {name: await scheduler.exit_of(name) for name in wrong}
    assert {end.outcome for end in ends.values()} == {"failed"}
    assert (ends["raises"].exit_code, ends["hoards"].oom, ends["missing"].exit_code) == (3, True, 127)


DDP = """
import os, torch, torch.distributed as dist, tidegate
from torch.nn.parallel import DistributedDataParallel
job = tidegate.init()
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 1))
model(torch.full((8, 4), float(dist.get_rank() + 1))).sum().backward()
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
gradient = model.module.weight.grad[0, 0].item()
job.finish({"sum": total.item(), "gradient": gradient, "master": os.environ["MASTER_ADDR"]})
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a network")
@pytest.mark.parametrize("level", ["trusted", pytest.param("guarded", marks=guarded)])
async def test_a_gang_trains_across_its_sandboxes_by_its_private_network(
    make_agent: Callable[..., Agent], scheduler: Scheduler, level: str
) -> None:
    needed("torch")
    room = {"offer_trusted": True, "offer_host_image": True, "cpu_millis": 8000, "memory_mib": 8192}
    agent = make_agent(**(GUARDED | room))
    await scheduler.joined()
    learn = Component(
        name="learn",
        kind="learner",
        command=("python", "-c", DDP),
        resources={"default": ResourceRange(minimum=Resources(1000, 1536))},
    )
    order = job("ddp", learn, level=level, gang_size=2, env={"OMP_NUM_THREADS": "1"})
    order = msgspec.structs.replace(order, spec=msgspec.structs.replace(order.spec, image="host"))
    quotas = (Quota(component="learn", cpu_millis=2000, memory_mib=1536),)
    for rank in range(2):
        place = GangPlace(nodes=("n1",), local_rank=rank, local_size=2)
        scheduler.want(msgspec.structs.replace(order, rank=rank, gang=place, quotas=quotas))
    ends: dict[int, SandboxExited] = {}

    async def both() -> bool:
        ends.update({each.rank: each for each in await scheduler.events(SandboxExited)})
        return len(ends) == 2

    await until(both, 150)
    assert [ends[rank].outcome for rank in (0, 1)] == ["completed"] * 2, ends
    for end in ends.values():
        assert end.result == {"sum": 3.0, "gradient": 12.0, "master": "10.201.0.1"}
    await until(lambda: not list(Path(agent.data_dir, "sandboxes", ".networks").glob("ddp*")))
