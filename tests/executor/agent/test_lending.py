"""A phase that is asked for, granted and handed back: a real job, and an agent that is killed in between."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tidegate_events.events import (
    CheckpointSaved,
    HandBackFailed,
    PhaseChanged,
    PhaseRequested,
    Quota,
    QuotaApplied,
    SandboxExited,
    SandboxStarted,
    ShrinkRefused,
)
from tidegate_events.orders import SandboxOrder
from tidegate_events.resources import Resources
from tidegate_events.spec import PathBinding, ResourceRange

from tests.executor.agent.conftest import Agent, Scheduler, component, job, until

NEEDS = {
    "default": ResourceRange(minimum=Resources(500, 128)),
    "learning": ResourceRange(minimum=Resources(500, 256, gpus=1)),
}

BORROWER = """
import os, pathlib, time, tidegate
here = pathlib.Path(os.environ["HERE"])
def note(name, text):
    (here / (name + ".new")).write_text(text)
    (here / (name + ".new")).rename(here / name)
job = tidegate.init()
job.on_hand_back(lambda seconds_left: note("recalled", str(seconds_left)))
note("began", os.environ["CUDA_VISIBLE_DEVICES"])
with job.phase("learning") as grant:
    note("granted", ",".join(grant.gpus) + " " + grant.environment()["CUDA_VISIBLE_DEVICES"])
    while not (job.should_hand_back() and (here / "recalled").exists()):  # who leaves first is not called any more
        time.sleep(0.02)
note("left", "")
try:
    with job.phase("learning"):
        note("again", "")
except tidegate.PhaseRefusedError as error:
    note("refused", str(error))
    job.save(state={"step": 1}, step=1)
    job.exit_suspended()
"""


async def decide(scheduler: Scheduler, order: SandboxOrder, **changes: Any) -> SandboxOrder:
    """Give an order as a scheduler that has folded the whole journal."""
    scheduler.at_seq = max(scheduler.at_seq, await scheduler.journal.end())
    return scheduler.change(order, **changes)


async def requested(scheduler: Scheduler, times: int) -> list[str]:
    async def enough() -> list[str] | None:
        phases = [event.phase for event in await scheduler.events(PhaseRequested)]
        return phases if len(phases) >= times else None

    phases: list[str] = await until(enough)
    return phases


async def test_a_phase_is_asked_for_granted_and_handed_back_whenever_the_agent_dies(
    make_agent: Callable[..., Agent], scheduler: Scheduler, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()

    def noted(name: str) -> str | None:
        return (here / name).read_text() if (here / name).exists() else None

    agent = make_agent()
    await scheduler.joined()
    learn = msgspec.structs.replace(component("learn", BORROWER, kind="learner"), resources=NEEDS)
    order = await decide(scheduler, job("lend", learn, phase_entry="asked", borrows=True, env={"HERE": str(here)}))
    await scheduler.first(SandboxStarted, "lend")
    assert await requested(scheduler, 1) == ["learning"]
    assert noted("began") == ""
    agent.end()
    agent.start()
    await scheduler.joined(2)
    order = await decide(scheduler, order, phase="learning", quotas=memory(order, 256), gpu_indices=(3,))
    await until(lambda: noted("granted") == "3 3")
    phase: PhaseChanged = await scheduler.first(PhaseChanged, "lend")
    assert phase.phase == "learning"
    facts = await scheduler.events()
    applied = next(e for e in facts if isinstance(e, QuotaApplied) and e.quotas[0].memory_mib == 256)
    assert facts.index(applied) < facts.index(phase)

    agent.end()  # what is recalled is told by the next agent
    deadline_ns = time.time_ns() + 60_000_000_000
    agent.start()
    await scheduler.joined(3)
    order = await decide(scheduler, order, phase="", hand_back_ns=deadline_ns)
    await until(lambda: noted("left") is not None)
    assert 0 < float(await until(lambda: noted("recalled"))) <= 60
    assert await requested(scheduler, 2) == ["learning", "learning"]
    assert [event.phase for event in await scheduler.events(PhaseChanged)] == ["learning", "default"]
    agent.end()
    agent.start()
    await scheduler.joined(4)
    await decide(scheduler, order, hand_back_ns=0, desired="suspend", deadline_ns=deadline_ns, reason="Preempted")
    exited = await scheduler.exit_of("lend")
    assert (exited.outcome, exited.acknowledged, exited.exit_code) == ("suspended", True, 75)
    assert "asked to leave (Preempted); save and call exit_suspended()" in str(noted("refused"))
    assert noted("again") is None
    assert [event.checkpoint.step for event in await scheduler.events(CheckpointSaved)] == [1]
    assert await requested(scheduler, 2) == ["learning", "learning"], "told once, whenever the agent was killed"


HOARDER = """
import os, pathlib, time
hoard = bytearray(os.urandom(1 << 20)) * 150
pathlib.Path("/outputs/here/hoards").write_text("")
while not pathlib.Path("/outputs/here/leave").exists():
    time.sleep(0.05)
hoard = None
time.sleep(120)
"""


@pytest.mark.isolation
async def test_memory_that_is_in_use_is_not_taken_and_that_is_told_once(
    make_agent: Callable[..., Agent], scheduler: Scheduler, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    make_agent(offer_trusted=True, offer_unisolated=False, output_roots=[str(tmp_path)])
    await scheduler.joined()
    outputs = (PathBinding(name="here", source=str(here)),)
    order = job("hoard", component("main", HOARDER), level="trusted", phase_entry="asked", outputs=outputs)
    order = await decide(scheduler, msgspec.structs.replace(order, quotas=memory(order, 300)))
    await until((here / "hoards").exists)
    await scheduler.first(SandboxStarted, "hoard")
    order = await decide(scheduler, order, quotas=memory(order, 100))
    refused: ShrinkRefused = await scheduler.first(ShrinkRefused, "hoard")
    assert [quota.memory_mib for quota in refused.quotas] == [300]
    (here / "leave").touch()

    async def applied() -> bool:
        return (await scheduler.events(QuotaApplied))[-1].quotas[0].memory_mib == 100

    await until(applied)
    assert len(await scheduler.events(ShrinkRefused)) == 1
    assert await scheduler.events(SandboxExited) == []


def memory(order: SandboxOrder, memory_mib: int) -> tuple[Quota, ...]:
    return tuple(msgspec.structs.replace(quota, memory_mib=memory_mib) for quota in order.quotas)


HOOKED = """
import json, os, pathlib, time, tidegate
here = pathlib.Path(os.environ["HERE"])
nodes = {each["name"]: each["containerEdits"]["deviceNodes"][0]["hostPath"]
         for each in json.loads((here / "cdi.json").read_text())["devices"]}
job, device = tidegate.init(), None
def release(seconds_left):
    if (here / "fail").exists():
        raise RuntimeError("a kernel is running")
    device.close()
def reclaim(grant):
    global device
    device = open(nodes[grant.gpus[0]], "rb", buffering=0)
lease, step = job.on_gpu(release=release, reclaim=reclaim), 0
with job.phase("learning"):
    while not job.should_stop():
        try:
            with lease:
                assert device.read(4) == bytes(4)
                step += 1
        except tidegate.PhaseRefusedError:
            break
        time.sleep(0.01)
    job.save(state={"step": step}, step=step, wait=True)
job.exit_suspended()
"""


def stand_ins(here: Path, indices: tuple[int, ...]) -> dict[int, Path]:
    """Device nodes that stand for GPUs, and a CDI file that names them."""
    nodes = {index: here / f"gpu{index}" for index in indices}
    for path in nodes.values():
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    devices = [
        {"name": str(index), "containerEdits": {"deviceNodes": [{"path": f"/dev/gpu{index}", "hostPath": str(path)}]}}
        for index, path in nodes.items()
    ]
    (here / "cdi.json").write_text(
        json.dumps({"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": {}})
    )
    return nodes


def open_anywhere(path: Path) -> bool:
    """Say whether any process of the machine has the file open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(path):
                return True
        except OSError:
            continue  # it ended, or closed it
    return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
async def test_hooks_hand_back_a_device_take_another_and_say_when_they_cannot(
    make_agent: Callable[..., Agent], scheduler: Scheduler, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    nodes = stand_ins(here, (1, 3))
    agent = make_agent()
    await scheduler.joined()
    learn = msgspec.structs.replace(component("learn", HOOKED, kind="learner"), resources=NEEDS)
    order = await decide(scheduler, job("hooked", learn, phase_entry="asked", borrows=True, env={"HERE": str(here)}))
    await requested(scheduler, 1)
    order = await decide(scheduler, order, phase="learning", quotas=memory(order, 256), gpu_indices=(3,))
    await until(lambda: open_anywhere(nodes[3]))

    deadline_ns = time.time_ns() + 60_000_000_000
    order = await decide(scheduler, order, phase="", hand_back_ns=deadline_ns)

    async def phases(number: int) -> list[str] | None:
        said = [event.phase for event in await scheduler.events(PhaseChanged)]
        return said if len(said) >= number else None

    assert await until(lambda: phases(2)) == ["learning", "default"]
    assert not open_anywhere(nodes[3]), "it is free before it is said to be"
    assert await requested(scheduler, 2) == ["learning", "learning"], "and wanted again, without the loop's doing"
    agent.end()
    agent.start()
    await scheduler.joined(2)
    order = await decide(scheduler, order, phase="learning", hand_back_ns=0, gpu_indices=(1,))
    await until(lambda: open_anywhere(nodes[1]))
    assert await until(lambda: phases(3)) == ["learning", "default", "learning"]

    (here / "fail").touch()
    again_ns = time.time_ns() + 60_000_000_000
    order = await decide(scheduler, order, phase="", hand_back_ns=again_ns)
    failed: HandBackFailed = await scheduler.first(HandBackFailed, "hooked")
    assert (failed.rank, failed.phase, failed.reason.code) == (0, "learning", "DevicesNotFreed")
    assert failed.reason.detail == "the release hook raised RuntimeError('a kernel is running')"
    assert open_anywhere(nodes[1]), "its own until it has left"
    await decide(scheduler, order, desired="suspend", deadline_ns=again_ns, reason="LeaseNotReturned")
    exited = await scheduler.exit_of("hooked")
    assert (exited.outcome, exited.acknowledged, exited.exit_code) == ("suspended", True, 75)
    (saved,) = await scheduler.events(CheckpointSaved)
    assert saved.checkpoint.step > 0
    assert len(await scheduler.events(HandBackFailed)) == 1
