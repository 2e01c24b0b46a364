"""The bus as three servers: each has a copy of every stream, and one may be away without any loss."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tidegate_events import bus as connecting
from tidegate_events.events import LeaderElected
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended
from tidegate_events.journal.nats import NatsJournal
from tidegate_local import bus, plan
from tidegate_local.home import Home
from tidegate_local.logfile import LogFile
from tidegate_local.service import Service
from tidegate_local.topology import NATS, Topology

THREE = Topology(bus_servers=3)
READY_SECONDS_MAX = 60.0


class Cluster:
    """Three supervised servers."""

    def __init__(self, made: bus.Bus, servers: dict[str, Service]) -> None:
        self.bus = made
        self.servers = servers

    async def ready(self) -> None:
        async with asyncio.timeout(READY_SECONDS_MAX):
            for server in self.servers.values():
                await server.ready.wait()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield the cluster, ready."""
    home = Home(tmp_path)
    home.create()
    ports = plan.free_ports(3)
    made = bus.new_bus(ports.nats, ports.nats_routes, THREE)
    bus.write_config(home, made)
    log = LogFile(home.logs_dir / "nats.log")
    log.follow(asyncio.get_running_loop())
    specs = [plan.nats_service(home, made, server) for server in THREE.processes(NATS)]
    servers = {spec.name: Service(spec, log, on_change=lambda: None) for spec in specs}
    try:
        async with asyncio.TaskGroup() as group:
            for server in servers.values():
                group.create_task(server.run())
            try:
                running = Cluster(made, servers)
                await running.ready()
                yield running
            finally:
                for server in servers.values():
                    await server.stop()
    finally:
        log.close(asyncio.get_running_loop())


def frame(number: int) -> Frame:
    return Frame(
        Writer("scheduler", "local", 1, number), (LeaderElected(id=f"{number}", at_ns=1, epoch=1, instance="local"),)
    )


async def test_what_was_acknowledged_outlives_each_server_in_turn(cluster: Cluster) -> None:
    client = await connecting.connect(cluster.bus.login("scheduler"))
    journal = NatsJournal(client)
    written = 0
    for name, server in cluster.servers.items():
        for _ in range(5):
            answer = await journal.append("tg.decision", frame(written), expected_last=written)
            assert isinstance(answer, Appended)
            written = answer.seq
        server.ready.clear()
        assert server._process is not None
        server._process.send_signal(signal.SIGKILL)
        answer = await journal.append("tg.decision", frame(written), expected_last=written)
        assert isinstance(answer, Appended), name
        written = answer.seq
        await cluster.ready()
    found = [recorded.frame.writer.writer_seq async for recorded in journal.read(0, await journal.end())]
    assert found == list(range(18))
    await client.close()


async def test_every_stream_has_three_copies(cluster: Cluster) -> None:
    client = await connecting.connect(cluster.bus.login("operator"))
    for stream in await client.jetstream().streams_info():
        assert stream.config.num_replicas == 3, stream.config.name
        assert stream.cluster is not None
        assert len(stream.cluster.replicas or ()) == 2, stream.config.name
    await client.close()
