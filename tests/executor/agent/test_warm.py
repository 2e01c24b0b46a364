"""Members whose sandbox stood ready: the second of an image and level gets one, and the metrics say so."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events import subjects, telemetry
from tidegate_events.events import SandboxStarted
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, ResourceRange
from tidegate_events.telemetry import NodeSample, SandboxSample
from tidegate_executor.images import Image
from tidegate_executor.sandbox.base import Device, Layer, Network, SandboxSpec
from tidegate_executor.sandbox.bwrap import BwrapBackend
from tidegate_executor.sandbox.settings import SandboxSettings
from tidegate_executor.sandbox.shimmed import READY_MIB
from tidegate_executor.settings import Settings
from tidegate_executor.starts import Starts
from tidegate_executor.warm_pool import KINDS_MAX, WarmPool

from tests.executor.agent.conftest import NODE, Agent, Scheduler, component, job, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root adds mounts to a sandbox that stands")

SHELL = Component(
    name="main",
    command=("sh", "-c", "echo up > /run/tidegate/checkpoints/seen && sleep 600"),
    resources={"default": ResourceRange(minimum=Resources(500, 128))},
)

NOSY = """
import socket, time
for _ in range(2):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
    except PermissionError:
        pass
time.sleep(600)
"""


def ready(agent: Agent) -> list[str]:
    directory = agent.data_dir / "sandboxes" / ".ready"
    return sorted(os.listdir(directory)) if directory.is_dir() else []


def groups_of(name: str) -> list[str]:
    return [where for where, _, _ in os.walk("/sys/fs/cgroup") if f"/{name}/" in where]


async def test_the_second_member_of_an_image_gets_one_that_stood_ready(
    scheduler: Scheduler, client: Client, make_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    heard: list[NodeSample] = []

    async def on_message(message: Msg) -> None:
        heard.extend(sample for sample in telemetry.decode(message.data) if isinstance(sample, NodeSample))

    def counted() -> tuple[float, ...]:
        names = ("starts_warm", "starts_image_late", "starts_cold")
        return tuple(heard[-1].counters[name] for name in names) if heard else ()

    await client.subscribe(subjects.telemetry(NODE), cb=on_message)
    agent = make_agent(offer_trusted=True, cgroup_name=f"tidegate-warm-{os.getpid()}")
    await scheduler.joined()
    await until(lambda: len(ready(agent)) == 2)
    first = job("first", SHELL, level="trusted")
    scheduler.want(first)
    await scheduler.first(SandboxStarted, "first")
    await until(lambda: counted() == (0, 1, 0))
    await until(lambda: len(ready(agent)) == 3)
    standing = ready(agent)

    scheduler.want(job("second", SHELL, level="trusted"))
    await scheduler.first(SandboxStarted, "second")
    await until(lambda: counted() == (1, 1, 0))
    assert set(os.listdir(agent.data_dir / "sandboxes")) >= {"first.1.0", "second.1.0"}
    await until(lambda: len(ready(agent)) == 3 and ready(agent) != standing)  # another one stands in its place

    agent.end()  # SIGKILL: what was adopted runs on, what stands ready for nobody does not
    agent.start()
    await scheduler.joined(2)
    await until(lambda: not set(ready(agent)) & set(standing))
    scheduler.change(first, desired="stop", deadline_ns=0)
    assert (await scheduler.exit_of("first")).outcome != "lost"
    scheduler.wanted.clear()
    agent.end()
    assert "second.1.0" in agent.sweep()
    assert groups_of(f"tidegate-warm-{os.getpid()}") == []


async def test_what_a_job_is_refused_is_in_the_log_with_whose_it_is(
    scheduler: Scheduler, client: Client, make_agent: Callable[..., Agent]
) -> None:
    heard: list[SandboxSample] = []

    async def on_message(message: Msg) -> None:
        heard.extend(sample for sample in telemetry.decode(message.data) if isinstance(sample, SandboxSample))

    await client.subscribe(subjects.telemetry(NODE), cb=on_message)
    agent = make_agent(offer_trusted=True, cgroup_name=f"tidegate-refused-{os.getpid()}")
    await scheduler.joined()
    scheduler.want(job("nosy", component("main", NOSY), level="trusted"))
    await scheduler.first(SandboxStarted, "nosy")
    await until(lambda: any(sample.counters.get("calls_refused") == 2 for sample in heard))
    lines = [json.loads(line) for line in agent.log.read_text().splitlines() if '"sandbox.refused"' in line]
    line, *later = lines  # the second call is told of by itself, soon after
    assert [(each["call"], each["times"]) for each in later] in ([], [("socket(raw)", 1)])
    assert (line["job"], line["isolation"], line["component"]) == ("nosy", "trusted", "main")
    assert (line["call"], line["times"]) == ("socket(raw)", 1)
    assert line["command"].startswith("python")
    assert line["level"] == "warning"


class Kept:
    """A pool of its own over a real backend."""

    def __init__(self, directory: Path, **changes: int) -> None:
        self.backend = BwrapBackend(
            SandboxSettings(sandboxes_dir=str(directory / "sandboxes"), cgroup_name=f"tidegate-kept-{os.getpid()}")
        )
        plain = Settings(node="n", data_dir=str(directory), hot_dir=str(directory), secrets_dir=str(directory))
        settings = msgspec.structs.replace(plain, **{"warm_without_image": 0} | changes)
        self.pool = WarmPool({"trusted": self.backend}, settings, Starts())
        self.images = []
        for number in range(KINDS_MAX + 1):
            source = directory / f"layer{number}"
            source.mkdir()
            layers = (Layer(source="/usr", target="/usr"), Layer(source=str(source), target="/opt/own"))
            self.images.append(Image(name=f"i{number}", digest=f"b3:{number}", layers=layers, path=()))

    def asked(self, number: int, network: Network | None = None, devices: tuple[Device, ...] = ()) -> None:
        layers = self.images[number].layers
        spec = SandboxSpec(id="a.1.0", hostname="a", log_dir="", layers=layers, network=network, devices=devices)
        self.pool.asked("trusted", self.images[number].digest, spec)

    def promise(self, sandbox: str, number: int = 0, *, devices: bool = False) -> int | None:
        """The user of one of that image that is kept for this member."""
        return self.pool.promise("trusted", self.images[number], sandbox, devices=devices)

    def plugged(self) -> list[bool]:
        """Of each that stands, whether it was made with a cable."""
        return [ready.outfit.plugged for ready in self.backend.ready.standing]

    def standing(self) -> dict[int, int]:
        layers = self.backend.ready.layers()
        counts = {number: layers.count(image.layers) for number, image in enumerate(self.images)}
        return {number: count for number, count in counts.items() if count}


@pytest.fixture
async def keep(tmp_path: Path) -> AsyncIterator[Callable[..., Kept]]:
    made: list[tuple[Kept, asyncio.Task[None]]] = []

    def make(**changes: int) -> Kept:
        kept = Kept(tmp_path, **changes)
        made.append((kept, asyncio.ensure_future(kept.pool.run())))
        return kept

    yield make
    for kept, task in made:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert kept.standing() == {}
        await kept.backend.sweep(frozenset())
        await kept.backend.release()


async def test_what_was_asked_for_last_is_kept_within_its_bounds(keep: Callable[..., Kept]) -> None:
    kept = keep(warm_sandboxes=2, warm_memory_mib=3 * READY_MIB["bwrap", "trusted"])
    kept.asked(0)
    await until(lambda: kept.standing() == {0: 2})
    kept.asked(1)
    await until(lambda: kept.standing() == {0: 1, 1: 2})
    kept.asked(0)
    await until(lambda: kept.standing() == {0: 2, 1: 1})


async def test_what_members_of_gangs_asked_for_stands_with_a_cable(keep: Callable[..., Kept]) -> None:
    kept = keep(warm_sandboxes=1)
    kept.asked(0, Network(name="a.1", member=0))
    kept.asked(1)
    await until(lambda: kept.standing() == {0: 1, 1: 1})
    assert sorted(kept.plugged()) == [False, True]


async def test_an_image_that_leaves_takes_them_along(keep: Callable[..., Kept]) -> None:
    kept = keep(warm_sandboxes=1)
    kept.asked(0)
    kept.asked(1)
    await until(lambda: kept.standing() == {0: 1, 1: 1})
    await kept.pool.leave(kept.images[0].digest)
    assert kept.standing() == {1: 1}
    kept.asked(1)
    await asyncio.sleep(0.2)
    assert kept.standing() == {1: 1}, "none is made of what left"


async def test_users_of_members_are_not_given_to_another(keep: Callable[..., Kept]) -> None:
    kept = keep(warm_sandboxes=1)
    highest = kept.backend.settings.uid_slots - 2
    kept.pool.claimed = lambda: {highest, highest - 1}
    kept.asked(0)
    await until(lambda: kept.standing() == {0: 1})
    assert kept.promise("a.1.0") == highest - 2
    assert kept.promise("b.1.0") is None
    kept.pool.withdraw("trusted", "a.1.0")
    assert kept.promise("b.1.0") == highest - 2


async def test_one_that_ended_by_itself_is_replaced(keep: Callable[..., Kept]) -> None:
    kept = keep(warm_sandboxes=1)
    kept.asked(0)
    await until(lambda: kept.standing() == {0: 1})
    (ready,) = kept.backend.ready.standing
    shim = ready.state.shim()
    assert shim is not None
    os.kill(shim.pid, signal.SIGKILL)
    await until(lambda: not ready.lives)
    assert kept.promise("a.1.0") is None
    kept.asked(0)  # by a member that got a new one
    await until(lambda: [each.lives for each in kept.backend.ready.standing] == [True])
    assert not ready.state.path.exists()
    assert kept.promise("b.1.0") is not None


async def test_none_is_kept_where_none_is_wanted(keep: Callable[..., Kept]) -> None:
    kept = keep(warm_sandboxes=0)
    kept.asked(0)
    await asyncio.sleep(0.2)
    assert kept.standing() == {}
    assert kept.pool.counters() == {"starts_warm": 0.0, "starts_image_late": 0.0, "starts_cold": 0.0}


async def test_what_members_with_devices_asked_for_is_kept_beside(keep: Callable[..., Kept]) -> None:
    kept = keep(warm_sandboxes=1)
    kept.asked(0, devices=(Device(source="/dev/null", target="/dev/own"),))
    await until(lambda: kept.standing() == {0: 1})
    assert kept.promise("a.1.0") is None
    assert kept.promise("b.1.0", devices=True) is not None
    kept.asked(0)
    await until(lambda: kept.standing() == {0: 2})
    assert kept.promise("c.1.0") is not None
    await kept.pool.leave(kept.images[0].digest)
    assert kept.standing() == {}


async def test_some_without_an_image_stand_from_the_start_and_serve_any(keep: Callable[..., Kept]) -> None:
    kept = keep(warm_sandboxes=1, warm_without_image=2, warm_memory_mib=3 * READY_MIB["bwrap", "trusted"])
    await until(lambda: kept.backend.ready.layers() == [(), ()])
    promised = [kept.promise(f"a.{number}.0", number) for number in range(3)]
    assert None not in promised[:2]
    assert (len(set(promised[:2])), promised[2]) == (2, None)
    kept.asked(0, Network(name="a.1", member=0))
    await until(lambda: sorted(map(len, kept.backend.ready.layers())) == [0, 0, 2])
    assert kept.plugged().count(True) == 1, "the two were there before"
