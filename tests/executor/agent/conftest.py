"""A real bus, a small real image, and agents as real processes, told what to do by orders as a scheduler would."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from nats.aio.client import Client
from tidegate_events import orders, subjects
from tidegate_events.bus import BusSettings, connect
from tidegate_events.events import Event, NodeJoined, Quota, SandboxExited
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.orders import NodeOrders, SandboxOrder
from tidegate_events.resources import Resources
from tidegate_events.spec import Component, JobSpec, ResourceRange

BIN = Path(sys.executable).parent
NODE = "n1"
WAIT_SECONDS = 30


async def until(condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """Return the first true value of `condition`, which may be a coroutine function; fail after a bounded wait."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.03)


class Bus:
    """A nats-server of one test."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config = directory / "nats.conf"
        self._config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{directory}/js", sync_interval: always }}\n'
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [BIN / "nats-server", "--config", self._config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    (tmp_path / "nats").mkdir()
    server = Bus(tmp_path / "nats")
    server.start()
    yield server
    server.kill()


@pytest_asyncio.fixture
async def client(bus: Bus) -> AsyncIterator[Client]:
    connection = await connect(BusSettings(url=bus.url, name="test"))
    await NatsJournal(connection).ensure_stream(max_bytes=64 * 1024 * 1024)
    yield connection
    await connection.close()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An image of an operator's own: a shell, a few tools, and a bare Python, with the libraries they need."""
    root = tmp_path_factory.mktemp("image")
    usr = root / "usr"
    (usr / "bin").mkdir(parents=True)
    python = Path(os.path.realpath(sys.executable))
    shutil.copy(python, usr / "bin" / "python3")
    (usr / "bin" / "python").symlink_to("python3")
    for tool in ("sh", "sleep", "cat", "sync"):
        shutil.copy(os.path.realpath(shutil.which(tool) or ""), usr / "bin" / tool)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ignored = shutil.ignore_patterns("site-packages", "test", "idlelib", "lib2to3", "ensurepip", "__pycache__", "*.a")
    shutil.copytree(sysconfig.get_path("stdlib"), usr / "lib" / version, ignore=ignored, symlinks=False)
    binaries = [usr / "bin" / name for name in ("python3", "sh", "sleep", "cat")]
    binaries += list((usr / "lib" / version / "lib-dynload").glob("*.so"))
    (usr / "lib64").mkdir()
    for library in _libraries(binaries):
        shutil.copy(library, usr / "lib" / Path(library).name)
    loader = next(path for path in (usr / "lib").iterdir() if path.name.startswith("ld-linux"))
    shutil.copy(loader, usr / "lib64" / loader.name)
    return {
        "layers": [{"source": str(usr), "target": "/usr"}],
        "path": ["/usr/bin"],
    }


def _libraries(binaries: list[Path]) -> set[str]:
    found: set[str] = set()
    for binary in binaries:
        output = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False).stdout
        found |= {path for path in re.findall(r"(?:=> )?(/\S+) \(0x", output) if "linux-vdso" not in path}
    return found


class Agent:
    """An agent process on one data directory; it may be killed and started again."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.directory = directory
        self.data_dir = Path(settings["data_dir"])
        self._config = directory / "agent.json"
        self._config.write_text(json.dumps(settings))
        self.log = directory / "agent.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [BIN / "tidegate-executor", "--config", self._config],
                stdout=log,
                stderr=log,
                env={**os.environ, "TIDEGATE_LOG_LEVEL": "DEBUG"},
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self, number: signal.Signals = signal.SIGKILL) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(number)
        return process.wait(timeout=20)

    def sweep(self) -> str:
        done = subprocess.run(
            [BIN / "tidegate-executor", "sweep", "--data-dir", self.data_dir],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout


class Scheduler:
    """Stands for the scheduler: sends one node's desired state again and again, and reads the journal."""

    def __init__(self, client: Client, node: str = NODE) -> None:
        self._client = client
        self.node = node
        self.journal = NatsJournal(client)
        self.wanted: dict[str, SandboxOrder] = {}
        self.prefetch: tuple[str, ...] = ()
        self.incarnation = 0
        self.at_seq = 1
        self.epoch = 1

    async def events(self, kind: type[Event] = Event) -> list[Any]:
        found: list[Any] = []
        async for recorded in self.journal.read(0, await self.journal.end()):
            found += [event for event in recorded.frame.events if isinstance(event, kind)]
        return found

    async def joined(self, times: int = 1) -> NodeJoined:
        async def enough() -> list[NodeJoined] | None:
            joins = [joined for joined in await self.events(NodeJoined) if joined.node == self.node]
            return joins if len(joins) >= times else None

        joins = await until(enough, 20)
        self.incarnation = joins[-1].incarnation
        last: NodeJoined = joins[-1]
        return last

    def want(self, order: SandboxOrder) -> None:
        self.wanted[f"{order.job}.{order.attempt}.{order.rank}"] = order
        self.at_seq += 1

    def change(self, order: SandboxOrder, **changes: Any) -> SandboxOrder:
        changed = msgspec.structs.replace(order, **changes)
        self.want(changed)
        return changed

    async def run(self) -> None:
        while True:
            message = NodeOrders(
                node=self.node,
                incarnation=self.incarnation,
                epoch=self.epoch,
                at_seq=self.at_seq,
                sandboxes=tuple(self.wanted.values()),
                prefetch=self.prefetch,
            )
            if self.incarnation and self._client.is_connected:
                await self._client.publish(subjects.order(self.node), orders.encode(message))
            await asyncio.sleep(0.1)

    async def exit_of(self, job: str) -> SandboxExited:
        async def found() -> SandboxExited | None:
            return next((event for event in await self.events(SandboxExited) if event.job == job), None)

        exited: SandboxExited = await until(found)
        return exited

    async def first(self, kind: type[Event], job: str) -> Any:
        async def found() -> Any:
            return next((event for event in await self.events(kind) if event.job == job), None)  # type: ignore[attr-defined]

        return await until(found)


@pytest_asyncio.fixture
async def scheduler(client: Client) -> AsyncIterator[Scheduler]:
    stand_in = Scheduler(client)
    task = asyncio.ensure_future(stand_in.run())
    yield stand_in
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def make_agent(tmp_path: Path, bus: Bus, image: dict[str, Any]) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(**changes: Any) -> Agent:
        (tmp_path / "secrets").mkdir(exist_ok=True)
        settings = {
            "node": NODE,
            "data_dir": str(tmp_path / "node"),
            "hot_dir": str(tmp_path / "hot"),
            "secrets_dir": str(tmp_path / "secrets"),
            "bus": {"url": bus.url, "name": "agent"},
            "offer_trusted": False,
            "offer_unisolated": True,
            "offer_host_image": False,
            "images": {"tiny": image},
            "cpu_millis": 4000,
            "memory_mib": 2048,
            **changes,
        }
        directory = tmp_path if settings["node"] == NODE else tmp_path / settings["node"]
        directory.mkdir(exist_ok=True)
        agent = Agent(directory, settings)
        made.append(agent)
        agent.start()
        return agent

    yield make
    for agent in made:
        agent.end()
        agent.sweep()


def job(name: str, *components: Component, level: str = "unisolated", **changes: Any) -> SandboxOrder:
    """Return the order to run a job of these components."""
    spec = JobSpec(
        name=name,
        tenant="lab",
        submitter="somebody",
        image="tiny",
        isolation=level,  # type: ignore[arg-type]
        components=components,
        **changes,
    )
    quotas = tuple(Quota(component=c.name, cpu_millis=500, memory_mib=128) for c in components)
    return SandboxOrder(
        job=name, tenant="lab", attempt=1, rank=0, desired="run", spec=spec, quotas=quotas, traceparent=""
    )


def component(name: str, code: str, **changes: Any) -> Component:
    """Return a component that runs Python code."""
    return Component(
        name=name,
        command=("python3", "-c", code),
        resources={"default": ResourceRange(minimum=Resources(500, 128))},
        **changes,
    )
