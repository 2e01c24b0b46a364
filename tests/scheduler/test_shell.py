"""The scheduler's shell on a real bus: it leads, orders, hears nodes, answers questions, and gives way when deposed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from tidegate_events import bus, subjects
from tidegate_events import events as e
from tidegate_events import orders as wire
from tidegate_events.clock import SystemClock
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Appended
from tidegate_events.journal.memory import MemoryJournal
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.resources import Resources
from tidegate_scheduler import questions
from tidegate_scheduler.history import verify
from tidegate_scheduler.policy.parameters import Parameters
from tidegate_scheduler.settings import Settings
from tidegate_scheduler.shell import Scheduler

from tests.support.cluster import spec
from tests.support.nats import NatsServer
from tests.support.schedulers import create_lease_bucket

WAIT_SECONDS = 20
ASKED_MAX = 5000
POLLS_MAX = 400
SILENCE_SECONDS = 1.0


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(POLLS_MAX):
        if condition():
            return
        await asyncio.sleep(WAIT_SECONDS / POLLS_MAX)
    raise AssertionError(f"not within {WAIT_SECONDS} s")


class Bench:
    """A bus, a journal, and a hand that writes facts as gateway and as node `n1`."""

    def __init__(self, client: Client, journal: NatsJournal, url: str) -> None:
        self.client = client
        self.journal = journal
        self.url = url
        self.orders: asyncio.Queue[wire.NodeOrders] = asyncio.Queue()
        self._seq = 0

    async def fact(self, service: str, instance: str, event: e.AnyEvent) -> None:
        writer = Writer(service, instance, 1, self._seq)  # type: ignore[arg-type]
        self._seq += 1
        answer = await self.journal.append(subjects.fact(service, instance), Frame(writer, (event,)))
        assert isinstance(answer, Appended)

    async def join(self) -> None:
        joined = e.NodeJoined(
            id=f"join-{self._seq}",
            at_ns=1,
            node="n1",
            incarnation=1,
            capacity=Resources(2000, 4096),
            levels=("trusted",),
            images={"host": "b3:0"},
        )
        await self.fact("node", "n1", joined)

    async def submit(self, job: str, cpu: int = 1000) -> None:
        submitted = e.JobSubmitted(id=f"submit-{job}", at_ns=1, tenant="t", job=job, spec=spec(cpu))
        await self.fact("gateway", "g1", submitted)

    async def member(self, kind: Callable[..., e.AnyEvent], job: str, **more: Any) -> None:
        event = kind(
            id=f"{kind.__name__}-{self._seq}", at_ns=1, tenant="t", job=job, attempt=1, rank=0, node="n1", **more
        )
        await self.fact("node", "n1", event)

    async def heartbeats(self) -> None:
        while True:
            beat = wire.Heartbeat(node="n1", incarnation=1, at_ns=1)
            await self.client.publish(subjects.live("n1"), wire.encode(beat))
            await asyncio.sleep(0.1)

    async def on_order(self, message: Any) -> None:
        self.orders.put_nowait(wire.decode_orders(message.data))

    async def order(self, wanted: str) -> wire.SandboxOrder:
        """Return the first order that desires `wanted`."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                for order in (await self.orders.get()).sandboxes:
                    if order.desired == wanted:
                        return order

    async def event(self, kind: type[e.Event]) -> e.Event:
        """Return the first event of `kind` in the journal."""
        async with asyncio.timeout(WAIT_SECONDS):
            async for recorded in self.journal.follow(0):
                for event in recorded.frame.events:
                    if isinstance(event, kind):
                        return event
        raise AssertionError("the journal ended")

    def scheduler(self, instance: str = "s1", **parameters: int) -> Scheduler:
        settings = Settings(
            bus=bus.BusSettings(url=self.url),
            instance=instance,
            node_silence_seconds=SILENCE_SECONDS,
            lease_seconds=0.5,
            orders_resend_seconds=0.2,
            parameters=Parameters(**parameters),
        )
        return Scheduler(settings, self.client, self.journal, SystemClock())


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    server = NatsServer(tmp_path)
    await server.start()
    client = await bus.connect(bus.BusSettings(url=server.url))
    journal = NatsJournal(client)
    await journal.ensure_stream(max_bytes=64 * 1024 * 1024)
    await create_lease_bucket(client)
    made = Bench(client, journal, server.url)
    await client.subscribe(subjects.order("n1"), cb=made.on_order)
    yield made
    await client.close()
    server.stop()


async def test_a_job_goes_through_and_its_history_verifies(bench: Bench) -> None:
    serving = asyncio.create_task(bench.scheduler().run())
    beating = asyncio.create_task(bench.heartbeats())
    await bench.join()
    await bench.submit("j1")
    order = await bench.order("run")
    assert (order.job, order.attempt, order.quotas[0].cpu_millis) == ("j1", 1, 1000)
    again = await bench.order("run")
    assert again == order, "orders are sent again until the state changes"
    await bench.member(e.SandboxStarted, "j1", level="trusted")
    await bench.event(e.JobStarted)
    await bench.submit("j2", cpu=1500)
    for _ in range(50):
        answer = await bench.client.request(subjects.ask_scheduler("explain"), b'{"job": "j2"}', timeout=5)
        explained = msgspec.json.decode(answer.data)
        if explained["reasons"] and explained["reasons"][0]["code"] == "Reserved":
            break
        await asyncio.sleep(0.1)
    assert explained["reasons"][0]["numbers"]["cpu_millis_free"] == 1000
    answer = await bench.client.request(subjects.ask_scheduler("waiting"), b"", timeout=5)
    counted = msgspec.json.decode(answer.data)
    assert counted["waiting"] == [{"tenant": "t", "reason": "Reserved", "jobs": 1}]
    passes = counted["passes"]
    assert sum(passes["counts"]) > 0
    assert passes["total_seconds"] > 0
    assert len(passes["counts"]) == len(passes["bounds_seconds"]) + 1
    assert sum(counted["wakes"]["counts"]) > 0
    await bench.member(e.SandboxExited, "j1", outcome="completed", exit_code=0)
    await bench.event(e.JobCompleted)
    serving.cancel()
    beating.cancel()
    await asyncio.gather(serving, beating, return_exceptions=True)
    report = await verify(bench.journal.read(0, await bench.journal.end()))
    assert report.ok, report.difference
    assert report.decisions_verified == report.decisions >= 4


async def test_a_leader_whose_guard_fails_writes_nothing_more_in_its_term_and_stands_again(bench: Bench) -> None:
    """Somebody was elected past the lease: what a leader believes of its lease is not what makes it safe."""
    serving = asyncio.create_task(bench.scheduler("s1").run())
    await bench.event(e.LeaderElected)
    await bench.join()
    usurper = Writer("scheduler", "s9", 50, 0)
    elected = e.LeaderElected(id="50-leader", at_ns=1, epoch=50, instance="s9")
    answer = await bench.journal.append(subjects.DECISION, Frame(usurper, (elected,)))
    assert isinstance(answer, Appended)
    await bench.submit("j1")
    placed = await bench.event(e.JobPlaced)
    assert isinstance(placed, e.JobPlaced)
    assert not serving.done(), "it stays, and stands for the lead again: its fold is as good as before"
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    epochs = [
        recorded.frame.writer.epoch
        async for recorded in bench.journal.read(0, await bench.journal.end())
        if recorded.subject == subjects.DECISION
    ]
    assert epochs == sorted(epochs)
    assert {1, 50, 51} == set(epochs)
    report = await verify(bench.journal.read(0, await bench.journal.end()))
    assert report.ok, report.difference


async def test_a_silent_node_is_journaled_then_lost_and_its_job_waits_again(bench: Bench) -> None:
    serving = asyncio.create_task(bench.scheduler(node_lost_seconds=1).run())
    beating = asyncio.create_task(bench.heartbeats())
    await bench.join()
    await bench.submit("j1")
    await bench.event(e.JobPlaced)
    beating.cancel()
    await bench.event(e.NodeUnreachable)
    await bench.event(e.NodeLost)
    requeued = await bench.event(e.JobRequeued)
    assert isinstance(requeued, e.JobRequeued)
    assert requeued.outcome == "lost"
    serving.cancel()
    await asyncio.gather(serving, beating, return_exceptions=True)


async def test_a_new_leader_gives_every_node_a_whole_silence(bench: Bench) -> None:
    first = asyncio.create_task(bench.scheduler("s1").run())
    beating = asyncio.create_task(bench.heartbeats())
    await bench.event(e.LeaderElected)
    second = asyncio.create_task(bench.scheduler("s2").run())
    await bench.join()
    await bench.submit("j1")
    await bench.event(e.JobPlaced)
    beating.cancel()
    await asyncio.sleep(0.8 * SILENCE_SECONDS)
    first.cancel()
    await asyncio.gather(first, beating, return_exceptions=True)
    silent = await bench.event(e.NodeUnreachable)
    elected = [
        event
        async for recorded in bench.journal.read(0, await bench.journal.end())
        for event in recorded.frame.events
        if isinstance(event, e.LeaderElected)
    ]
    assert [event.instance for event in elected] == ["s1", "s2"]
    assert silent.at_ns - elected[-1].at_ns >= SILENCE_SECONDS * 1e9
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_a_node_that_is_heard_and_not_known_is_asked_to_join(bench: Bench) -> None:
    serving = asyncio.create_task(bench.scheduler().run())
    beating = asyncio.create_task(bench.heartbeats())
    async with asyncio.timeout(WAIT_SECONDS):
        asked = await bench.orders.get()
    assert (asked.incarnation, asked.sandboxes) == (wire.FORGOTTEN_INCARNATION, ())
    await bench.join()
    async with asyncio.timeout(WAIT_SECONDS):
        while (await bench.orders.get()).incarnation != 1:
            pass
    serving.cancel()
    beating.cancel()
    await asyncio.gather(serving, beating, return_exceptions=True)


async def test_who_stands_by_uses_its_idle_moments_to_collect_what_is_old(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asyncio.create_task(bench.scheduler("s1").run())
    await bench.event(e.LeaderElected)
    standby = bench.scheduler("s2")
    second = asyncio.create_task(standby.run())
    await until(lambda: standby._heap is not None)
    idle: list[bool] = []
    monkeypatch.setattr(standby._heap, "idle", lambda _: idle.append(standby._candidate.term is None))
    await until(lambda: sum(idle) > 1)
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)


async def test_who_stands_by_has_the_tables_that_it_will_decide_on(bench: Bench) -> None:
    first = asyncio.create_task(bench.scheduler("s1").run())
    beating = asyncio.create_task(bench.heartbeats())
    await bench.join()
    await bench.submit("j1")
    await bench.event(e.JobPlaced)
    standby = bench.scheduler("s2")
    second = asyncio.create_task(standby.run())
    await until(lambda: standby._fold.state.derived is not None)
    tables = standby._fold.state.derived
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await bench.submit("j2", cpu=500)
    await until(lambda: "j2" in (jobs := standby._fold.state.jobs) and not jobs["j2"].waiting)
    assert standby._fold.state.header.epoch >= 2, "more where the machine is so slow that a term ended in between"
    assert standby._fold.state.derived is tables
    second.cancel()
    beating.cancel()
    await asyncio.gather(second, beating, return_exceptions=True)


async def test_a_restarted_scheduler_knows_all_and_places_nothing_twice(bench: Bench) -> None:
    serving = asyncio.create_task(bench.scheduler().run())
    beating = asyncio.create_task(bench.heartbeats())
    await bench.join()
    await bench.submit("j1")
    await bench.order("run")
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    while not bench.orders.empty():
        bench.orders.get_nowait()
    serving = asyncio.create_task(bench.scheduler().run())
    order = await bench.order("run")
    assert (order.job, order.attempt) == ("j1", 1), "the order is sent again, for the same attempt"
    await bench.member(e.SandboxStarted, "j1", level="trusted")
    await bench.event(e.JobStarted)
    serving.cancel()
    beating.cancel()
    await asyncio.gather(serving, beating, return_exceptions=True)
    placed = 0
    async for recorded in bench.journal.read(0, await bench.journal.end()):
        placed += sum(isinstance(event, e.JobPlaced) for event in recorded.frame.events)
    assert placed == 1


async def test_a_flood_of_dry_runs_is_refused_and_holds_up_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(questions.SHARES, "dry-run", 0.000_001)
    serving = asyncio.create_task(bench.scheduler().run())
    beating = asyncio.create_task(bench.heartbeats())
    await bench.join()
    await bench.submit("j1")
    await bench.order("run")
    asked = msgspec.json.encode({"spec": spec(1000)})
    answers: list[dict[str, Any]] = []
    for _ in range(ASKED_MAX):
        answer = await bench.client.request(subjects.ask_scheduler("dry-run"), asked, timeout=5)
        answers.append(msgspec.json.decode(answer.data))
        if "busy" in answers[-1]:
            break
    assert answers[0]["verdict"] == "starts_now"
    assert answers[-1]["busy"]["retry_seconds"] >= 1
    assert "ask again" in answers[-1]["error"]
    for what, question in (("leader", b""), ("explain", b'{"job": "j1"}'), ("queue", b"")):
        answer = await bench.client.request(subjects.ask_scheduler(what), question, timeout=5)
        assert "busy" not in msgspec.json.decode(answer.data)
    await bench.submit("j2")
    assert (await bench.order("run")).job in ("j1", "j2")
    serving.cancel()
    beating.cancel()
    await asyncio.gather(serving, beating, return_exceptions=True)


@pytest.mark.parametrize("turns", range(4))
async def test_a_scheduler_ends_though_something_changes_at_that_moment(turns: int) -> None:
    """It lived on with a fold that was dead already, held the lead and decided nothing."""
    settings = Settings(bus=bus.BusSettings())
    scheduler = Scheduler(settings, Client(), MemoryJournal(), SystemClock())
    waiting = asyncio.create_task(scheduler._await_change())
    for _ in range(5):
        await asyncio.sleep(0)
    scheduler._fold.changed.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    if not waiting.done():
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
