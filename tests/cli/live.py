"""The real gateway on a journal in memory, with the scheduler's real core behind it, on a port of this machine."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvicorn
from tidegate_events import subjects
from tidegate_events.clock import SystemClock
from tidegate_events.journal.memory import MemoryJournal
from tidegate_events.telemetry import Sample
from tidegate_gateway.asks.memory import MemoryAsker
from tidegate_gateway.http.app import application
from tidegate_gateway.settings import Settings
from tidegate_gateway.shell import build
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.explain import explain, queue

from tests.support.cluster import Cluster

T = TypeVar("T")
SECONDS_MAX = 20.0


class LiveGateway:
    """Serves in a thread of its own. `cluster` tells the story; `publish` brings both journals level."""

    def __init__(self, data_dir: Path) -> None:
        self.cluster = Cluster()
        self.telling = threading.Lock()
        """Held by a thread that goes on with the story beside commands: questions about it are answered in another."""

        self.cluster.now = time.time_ns()
        self.asker = MemoryAsker()
        self._appended = self._port = 0
        self.logs: dict[tuple[str, int, str], bytes] = {}
        self.gaps: dict[tuple[str, int, str], tuple[int, int]] = {}
        """(begin, end) of what a log lost: what `logs` has beyond `begin` follows at `end`"""
        self.asker.answerers[subjects.ask_scheduler("explain")] = self._explain
        self.asker.answerers[subjects.ask_scheduler("queue")] = self._queue
        self.asker.answerers[subjects.ask_scheduler("leader")] = lambda _: {"instance": "s1", "epoch": 1, "since_ns": 1}
        self.asker.answerers[subjects.ask_node("n1", "logs")] = self._log
        self.data_dir = data_dir
        self._settings = Settings(data_dir=data_dir)
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._listening.wait(SECONDS_MAX)
        self.publish()

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://127.0.0.1:{self._port}"

    def publish(self) -> None:
        """Fold what users wrote through the gateway, and append what the cluster did meanwhile."""
        self._in_loop(self._publish())

    def hear(self, *samples: Sample) -> None:
        """Tell the gateway what telemetry said."""
        self._gateway.live.hear(samples)

    def close(self) -> None:
        """Stop serving."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS_MAX)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._journal = MemoryJournal()
        self._gateway = build(self._settings, self._journal, self.asker, SystemClock())
        config = uvicorn.Config(application(self._gateway), port=0, log_config=None, access_log=False, lifespan="off")
        server = uvicorn.Server(config)
        async with asyncio.TaskGroup() as tasks:
            folding = tasks.create_task(self._gateway.fold.run())
            serving = tasks.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 (uvicorn offers nothing to wait for)
                await asyncio.sleep(0.005)
            self._port = server.servers[0].sockets[0].getsockname()[1]
            self._listening.set()
            await self._stop.wait()
            server.should_exit = True
            await serving
            folding.cancel()

    async def _publish(self) -> None:
        known = await self._journal.end()
        own = self.cluster.frames[self._appended :]
        async for recorded in self._journal.read(self._appended, known):
            assert not own, "users write through the gateway only while the cluster rests"
            self.cluster.frames.append(recorded)
            evolve(self.cluster.state, recorded)
        for recorded in own:
            await self._journal.append(recorded.subject, recorded.frame)
        await self._gateway.fold.wait_for_end(SECONDS_MAX)
        self._appended = len(self.cluster.frames)

    def _explain(self, question: dict[str, Any]) -> dict[str, Any]:
        with self.telling:
            found = explain(self.cluster.state, self.cluster.waiting, question["job"])
        return dict(msgspec.to_builtins(found))

    def _queue(self, _question: dict[str, Any]) -> dict[str, Any]:
        with self.telling:
            found = queue(self.cluster.state, self.cluster.waiting, time.time_ns())
        return dict(msgspec.to_builtins(found))

    def _log(self, question: dict[str, Any]) -> dict[str, Any]:
        of = (question["job"], question["attempt"], question["component"])
        log = self.logs.get(of)
        if log is None:
            return {"error": "nothing was written"}
        wanted, limit = question["offset"], question["limit"]
        begin, end = self.gaps.get(of, (len(log), len(log)))
        start = wanted if wanted < begin else max(wanted, end)
        part = log[start:begin][:limit] if start < begin else log[start - end + begin :][:limit]
        data = base64.b64encode(part).decode()
        return {"data": data, "offset": start, "size": len(log) + end - begin, "truncated": start > wanted}
