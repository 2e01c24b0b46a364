"""The real process on a real bus and PostgreSQL: killed at any moment, without either, and what it says of jobs."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import nats.errors
import pytest
from tidegate_events.events import StepRateLow, StepRateRecovered

from tests.metrics.conftest import SECONDS_MAX, Service, Streams, migrated, shown
from tests.metrics.samples import Node
from tests.support.cluster import spec
from tests.support.nats import NatsServer
from tests.support.postgres import PostgresServer

STEPS = "tidegate_env_steps_total"


MakeService = Callable[..., Service]


@pytest.fixture
def make_service(tmp_path: Path, server: NatsServer) -> Iterator[MakeService]:
    """Give services on the test's bus, and leave none of them behind."""
    made: list[Service] = []

    def make(**environ: str) -> Service:
        made.append(Service(tmp_path, server.url, **environ))
        return made[-1]

    yield make
    for service in made:
        service.end(signal.SIGKILL)


async def rows(url: str, sql: str) -> list[Any]:
    connection: Any = await asyncpg.connect(url, timeout=10)
    try:
        return list(await connection.fetch(sql))
    finally:
        await connection.close()


async def in_rows(url: str, name: str) -> tuple[int, float]:
    """Return how many samples of a series the rows hold, and their sum."""
    ((count, total),) = await rows(
        url,
        f"SELECT coalesce(sum(samples), 0)::bigint, coalesce(sum(total), 0) FROM tidegate.metric_windows "
        f"WHERE name = '{name}'",
    )
    return int(count), float(total)


async def until_rows(url: str, name: str, count: int) -> tuple[int, float]:
    async with asyncio.timeout(SECONDS_MAX):
        while (found := await in_rows(url, name))[0] < count:  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.05)
    return found


async def test_killed_in_mid_stream_again_and_again_it_counts_every_sample_once(
    make_service: MakeService, streams: Streams, postgres: PostgresServer
) -> None:
    url = await migrated(postgres)
    service = make_service(TIDEGATE_DATABASE_URL=url)
    node, choice = Node(), random.Random(7)
    await service.start()
    await service.until("tidegate_metrics_database_up", 1)
    # Stored before the first kill: a service without any past takes what runs already for counted.
    await streams.sample([node.process(time.time_ns(), 0), node.sandbox(time.time_ns(), 0.0)])
    await until_rows(url, "process.step", 1)
    sent, cpu = 0, 0.0

    async def publish() -> None:
        nonlocal sent, cpu
        for step in range(1, 301):
            now_ns = time.time_ns()
            cpu = step / 8
            samples = [node.process(now_ns, step), node.sandbox(now_ns, cpu), node.node(now_ns)]
            await streams.sample(samples)
            if step % 10 == 0:
                await streams.sample(samples[:1])  # sent again, as after a reconnect
            sent = step
            await asyncio.sleep(0.01)

    async def kill() -> None:
        for _ in range(4):
            await asyncio.sleep(choice.uniform(0.05, 0.6))
            assert service.end(signal.SIGKILL) == -signal.SIGKILL
            await service.start()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(publish())
        tasks.create_task(kill())
    about = {"tenant": "lab-a", "job": "j1", "component": "main", "node": "n1"}
    metrics = await service.until(STEPS, 300, **about)
    assert await until_rows(url, "process.step", sent + 1) == (sent + 1, sum(range(301)))
    assert shown(metrics, "tidegate_sandbox_cpu_seconds_total", **about) == cpu
    assert await in_rows(url, "sandbox.cpu_seconds") == (sent + 1, cpu)
    assert await in_rows(url, "process.env_steps") == (sent + 1, 300)
    ((stored,),) = await rows(url, f"SELECT sum(value) FROM tidegate.metric_totals WHERE name = '{STEPS}'")
    assert stored == 300


async def test_while_postgresql_is_away_gauges_and_counters_go_on_and_nothing_is_lost(
    make_service: MakeService, streams: Streams, postgres: PostgresServer
) -> None:
    url = await migrated(postgres)
    service = make_service(TIDEGATE_DATABASE_URL=url)
    node = Node()
    await service.start()
    await service.until("tidegate_metrics_database_up", 1)
    await streams.sample([node.process(time.time_ns(), 0)])
    await until_rows(url, "process.step", 1)
    postgres.kill9()
    for step in range(1, 51):
        await streams.sample([node.process(time.time_ns(), step, metrics={"queue_depth": float(step)})])
    await service.until(STEPS, 50)
    metrics = await service.until("tidegate_metrics_database_up", 0)
    assert shown(metrics, "tidegate_queue_depth", job="j1") == 50
    await postgres.start()
    assert await until_rows(url, "process.step", 51) == (51, sum(range(51)))
    await service.until("tidegate_metrics_database_up", 1)
    assert service.end() == 0


async def test_started_before_postgresql_it_shows_no_counter_that_would_fall_back(
    make_service: MakeService, streams: Streams, postgres: PostgresServer
) -> None:
    url = await migrated(postgres)
    service = make_service(TIDEGATE_DATABASE_URL=url)
    node = Node()
    await service.start()
    await service.until("tidegate_metrics_database_up", 1)
    await streams.sample([node.process(time.time_ns(), 0)])
    await until_rows(url, "process.step", 1)
    assert service.end(signal.SIGKILL) == -signal.SIGKILL
    postgres.kill9()
    await service.start()
    await streams.sample([node.process(time.time_ns(), 40)])
    metrics = await service.until("tidegate_step", 40)
    assert shown(metrics, STEPS) is None
    await postgres.start()
    await service.until(STEPS, 40)
    assert await until_rows(url, "process.step", 2) == (2, 40)


async def taken(streams: Streams, node: Node) -> bool:
    """Say whether there is a stream that takes a sample."""
    try:
        await streams.sample([node.process(time.time_ns(), 2)])
    except (nats.errors.Error, TimeoutError):
        return False
    return True


async def test_a_bus_that_starts_anew_with_an_empty_stream_is_followed(
    make_service: MakeService, server: NatsServer, streams: Streams
) -> None:
    service = make_service(TIDEGATE_TELEMETRY_BYTES_MAX=str(8 * 1024**2))
    node = Node()
    await service.start()
    await streams.sample([node.process(time.time_ns(), 1)])
    await service.until("tidegate_step", 1)
    await server.restart()
    # The service makes the stream: until then nobody takes a sample.
    async with asyncio.timeout(SECONDS_MAX):
        while not await taken(streams, node):  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.1)
    await service.until("tidegate_step", 2)
    assert service.end() == 0


async def test_a_slow_job_is_called_low_once_and_recovered_over_a_restart(
    make_service: MakeService, streams: Streams
) -> None:
    service = make_service(TIDEGATE_RATE_WINDOW_SECONDS="1", TIDEGATE_RATE_WINDOWS="2")
    node = Node()
    await streams.run_job("j1", spec(target_steps_per_second=100), time.time_ns())
    await service.start()
    step, per_second = 0, 50

    async def train() -> None:
        nonlocal step
        while True:
            step += per_second // 10
            await streams.sample([node.process(time.time_ns(), step), node.node(time.time_ns())])
            await asyncio.sleep(0.1)

    async def next_signal(after: int) -> tuple[int, Any]:
        async for recorded in streams.journal.follow(after):
            for event in recorded.frame.events:
                if isinstance(event, StepRateLow | StepRateRecovered):
                    return recorded.seq, event
        raise AssertionError("the journal ended")

    training = asyncio.ensure_future(train())
    try:
        async with asyncio.timeout(SECONDS_MAX):
            at, low = await next_signal(0)
            assert isinstance(low, StepRateLow)
            assert 0 < low.rate_millis < low.target_millis == 100_000
            assert (low.job, low.attempt, low.window_seconds) == ("j1", 1, 1)
            assert service.end(signal.SIGKILL) == -signal.SIGKILL
            await service.start()
            metrics = await service.until("tidegate_step_rate_low", 1, job="j1")
            assert shown(metrics, "tidegate_target_steps_per_second", job="j1") == 100
            per_second = 400
            _, then = await next_signal(at)
            assert isinstance(then, StepRateRecovered), "it was low already, which is not said again"
            assert then.rate_millis >= 105_000
        assert service.end() == 0
    finally:
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)


async def test_settings_that_cannot_be_used_are_refused_in_words(make_service: MakeService) -> None:
    service = make_service(TIDEGATE_METRICS_PORT="many")
    with pytest.raises(AssertionError, match="TIDEGATE_METRICS_PORT='many' refused"):
        await service.start()
    assert service.end() == 2
