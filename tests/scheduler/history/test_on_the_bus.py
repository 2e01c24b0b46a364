"""History on the stack's own bus, asked with the operator's login, which only reads: from snapshots, and as a file."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tidegate_events import bus as connecting
from tidegate_events.bus import BusSettings
from tidegate_events.journal.base import JournalError
from tidegate_events.journal.generations import stream_config
from tidegate_events.journal.jetstream import JetStream
from tidegate_events.journal.nats import NatsJournal
from tidegate_local import plan
from tidegate_local.bus import Bus, new_bus, write_config
from tidegate_local.home import Home
from tidegate_local.permissions import ADMIN, OPERATOR
from tidegate_local.topology import NATS, ONE_OF_EACH
from tidegate_scheduler.history.moment import Moment
from tidegate_scheduler.history.point import reach
from tidegate_scheduler.history.source import open_bus
from tidegate_scheduler.snapshot_store import SnapshotStore
from tidegate_scheduler.state import State

from tests.scheduler.history.files import a_history, told
from tests.scheduler.simulator.journals import everything, recorded_run
from tests.support.cluster import Cluster
from tests.support.nats import NatsServer

(SERVER,) = ONE_OF_EACH.processes(NATS)
COMMAND = Path(sys.executable).with_name("tidegate")
SNAPSHOT_AT = 12


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[tuple[Home, Bus]]:
    """Yield a bus with nothing on it, and a record of the stack for commands."""
    home = Home(tmp_path / "home")
    home.create()
    made = new_bus((plan.free_port(),))
    write_config(home, made)
    spec = plan.nats_service(home, made, SERVER)
    with (tmp_path / "nats.log").open("wb") as log:
        process = subprocess.Popen(spec.argv, stdout=log, stderr=log)  # noqa: ASYNC220 - a fork of milliseconds
    try:
        async with asyncio.timeout(30):
            while not await spec.is_ready():
                assert process.poll() is None
                await asyncio.sleep(0.02)
        login = made.login(OPERATOR)
        record = {"bus_url": login.url, "bus_user": login.user, "bus_password": login.password}
        home.stack_file.write_text(json.dumps(record))
        yield home, made
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
async def stack(bus: tuple[Home, Bus]) -> tuple[Home, Bus, Cluster]:
    """Return the bus with a history on it, and a snapshot in the middle."""
    home, made = bus
    return home, made, await filled(made)


async def filled(made: Bus) -> Cluster:
    cluster = a_history()
    client = await connecting.connect(made.login(ADMIN))
    journal = NatsJournal(client)
    for recorded in cluster.frames:
        await journal.append(recorded.subject, recorded.frame)
    async with open_bus(made.login(ADMIN), None) as source:
        point = await reach(source, Moment(seq=SNAPSHOT_AT), told)
    await SnapshotStore(client, keeps=True).save(point.state)
    await client.close()
    return cluster


def history(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    return subprocess.run(
        [COMMAND, "history", *arguments, "--home", str(home.root)],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


async def test_the_operator_reads_from_the_newest_snapshot_and_may_not_write(
    stack: tuple[Home, Bus, Cluster],
) -> None:
    _, made, cluster = stack
    async with open_bus(made.login(OPERATOR), None) as source:
        assert (await source.state(source.end)).seq == SNAPSHOT_AT
        assert (await source.state(SNAPSHOT_AT - 1)).seq == State().seq == 0
        assert (await reach(source, Moment(), told)).state.digest() == cluster.state.digest()
        before = await reach(source, Moment(at_ns=cluster.frames[3].frame.events[0].at_ns), told)
        assert before.state.seq < SNAPSHOT_AT
    client = await connecting.connect(made.login(OPERATOR))
    with pytest.raises((JournalError, TimeoutError)):
        async with asyncio.timeout(2):
            await NatsJournal(client).append(cluster.frames[0].subject, cluster.frames[0].frame)
    await client.close()


async def test_what_the_commands_say_of_the_bus_they_say_of_its_export(
    stack: tuple[Home, Bus, Cluster], tmp_path: Path
) -> None:
    home, _, _ = stack
    exported = str(tmp_path / "export.tgj")
    ran = await asyncio.to_thread(history, home, "export", exported, "--json")
    assert ran.returncode == 0, ran.stderr
    for question in (["ls"], ["show", "12"], ["state", "--at", "13"], ["why", "low", "--at", "14"], ["verify"]):
        on_bus = await asyncio.to_thread(history, home, *question, "--json")
        in_file = await asyncio.to_thread(history, home, *question, "--json", "--file", exported)
        assert on_bus.returncode == in_file.returncode == 0, on_bus.stderr
        assert json.loads(on_bus.stdout) == json.loads(in_file.stdout)
    proved = await asyncio.to_thread(history, home, "verify", "--from", str(SNAPSHOT_AT + 1), "--json")
    report = json.loads(proved.stdout)
    assert report["ok"]
    assert report["frames"] < report["until"]


async def test_what_if_of_a_journal_on_the_bus_is_what_it_is_of_its_export(
    bus: tuple[Home, Bus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners, borrowers, gangs and priorities on three nodes, up to their end, and after that until now."""
    home, made = bus
    run, recorded = recorded_run(tmp_path, everything(), monkeypatch)
    client = await connecting.connect(made.login(ADMIN))
    journal = NatsJournal(client)
    async with aclosing(recorded.read(0, recorded.end)) as frames:
        async for each in frames:
            await journal.append(each.subject, each.frame)
    await client.close()
    exported = str(tmp_path / "export.tgj")
    ran = await asyncio.to_thread(history, home, "export", exported, "--json")
    assert ran.returncode == 0, ran.stderr
    policy = tmp_path / "patient.json"
    policy.write_text(json.dumps({"rules": "elastic", "parameters": {"preemptions_max": 0}}))
    question = ("what-if", "--policy", str(policy), "--json")
    on_bus = await asyncio.to_thread(history, home, *question)
    in_file = await asyncio.to_thread(history, home, *question, "--file", exported)
    assert on_bus.returncode == in_file.returncode == 0, on_bus.stderr
    answer, of_the_file = json.loads(on_bus.stdout), json.loads(in_file.stdout)
    assert answer["end_ns"] > of_the_file["end_ns"]
    told_apart = {"end_ns": 0, "workload": ""}
    assert answer | told_apart == of_the_file | told_apart
    assert answer["calibration"]["jobs"] == len(run.jobs)
    assert answer["calibration"]["worst_off_s"] < 1.0
    assert answer["compared"]["first"]["recorded"]


async def test_the_end_of_a_journal_that_goes_on_is_now(stack: tuple[Home, Bus, Cluster]) -> None:
    home, _, _ = stack
    before = time.time_ns()
    shown = await asyncio.to_thread(history, home, "state", "--json")
    assert json.loads(shown.stdout)["at_ns"] >= before


async def test_a_journal_that_is_away_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    await server.start()
    try:
        settings = BusSettings(url=server.url)
        client = await connecting.connect(settings)

        async def ended() -> int:
            async with open_bus(settings, None) as source:
                return source.end

        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(ended())
            await asyncio.sleep(1)
            assert not asked.done()  # there is no journal yet
            config = stream_config(max_bytes=1 << 20, first_seq=1)
            await JetStream(client).call(f"STREAM.CREATE.{config['name']}", config)
        assert asked.result() == 0
        await client.close()
    finally:
        server.stop()
