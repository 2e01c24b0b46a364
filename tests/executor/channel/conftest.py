"""An agent's channel server in a thread of its own, which tests can take away and bring back."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tidegate.environment import read_identity
from tidegate.job import Job
from tidegate.session import open_job
from tidegate_executor.channel.handler import Sandbox
from tidegate_executor.channel.recording import RecordingHandler
from tidegate_executor.channel.server import ChannelServer
from tidegate_executor.channel.stop_group import StopGroup

WAIT_SECONDS = 20.0


class Agent:
    """Serves the sockets of a job's ranks; `handler` outlives a restart, as an agent's spool does."""

    def __init__(self, directory: Path, ranks: int, components: dict[str, int]) -> None:
        self.directory = directory
        self.handler = RecordingHandler()
        self.resume: str | None = None
        self.servers: list[ChannelServer] = []
        self._ranks = ranks
        self._components = components
        self._thread: threading.Thread | None = None

    def path(self, rank: int) -> Path:
        return self.directory / f"rank{rank}.sock"

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="agent")
        self._thread.start()
        assert ready.wait(WAIT_SECONDS)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        group = StopGroup(settle_seconds=0.5)
        self.servers = [
            ChannelServer(Sandbox("j-1", 1, rank), self._components, self.handler, group, self.resume)
            for rank in range(self._ranks)
        ]
        for rank, server in enumerate(self.servers):
            server.open(self.path(rank))
        tasks = [asyncio.create_task(server.run()) for server in self.servers]
        ready.set()
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        group.close()

    def order_stop(self, reason: str = "preemption", seconds: float = 60) -> None:
        deadline_ns = time.time_ns() + int(seconds * 1e9)
        self._loop.call_soon_threadsafe(self.servers[0].stop, reason, deadline_ns)

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(WAIT_SECONDS)
            assert not self._thread.is_alive()
            self._thread = None


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Wait, bounded, until a condition holds."""

    def wait(condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < limit, "waited in vain"
            time.sleep(0.005)

    return wait


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path, 3, {"learner": 1, "simulator": 2})
    agent.start()
    yield agent
    agent.stop()


@pytest.fixture
def join(agent: Agent, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Open a job as the process of a rank would."""
    jobs: list[Job] = []

    def open_one(
        rank: int = 0, component: str = "learner", replica: int = 0, group: str | None = None, **more: str
    ) -> Job:
        environ = {
            "TIDEGATE_JOB_ID": "j-1",
            "TIDEGATE_ATTEMPT": "1",
            "TIDEGATE_RANK": str(rank),
            "TIDEGATE_WORLD_SIZE": "3",
            "TIDEGATE_COMPONENT": component,
            "TIDEGATE_REPLICA": str(replica),
            "TIDEGATE_SOCKET": str(agent.path(rank)),
            "TIDEGATE_CHECKPOINTS": str(tmp_path / "checkpoints"),
            **more,
        }
        job = open_job(read_identity(environ, group))
        jobs.append(job)
        return job

    yield open_one
    for job in jobs:
        job.close()
