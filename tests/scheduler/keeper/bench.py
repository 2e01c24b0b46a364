"""A journal on a real bus with a history in it, and a keeper of it; the kill that a test can time."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from tidegate_events import events as e
from tidegate_events.bus import BusSettings
from tidegate_events.clock import SystemClock
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.base import Appended, Conflict, JournalFullError
from tidegate_events.journal.chain import ChainDigest
from tidegate_events.journal.generations import generations
from tidegate_events.journal.nats import NatsJournal
from tidegate_events.subjects import DECISION, fact
from tidegate_scheduler.decide import decide
from tidegate_scheduler.evolve import evolve
from tidegate_scheduler.keeper.archiving import Archivist
from tidegate_scheduler.keeper.settings import Settings
from tidegate_scheduler.keeper.shell import Keeper, Ports
from tidegate_scheduler.keeper.streams import JournalStreams
from tidegate_scheduler.policy.parameters import Parameters, as_values
from tidegate_scheduler.snapshot_store import SnapshotStore
from tidegate_scheduler.state import State
from tidegate_scheduler.version import POLICY_VERSION

from tests.support.cluster import spec

MIB = 1024**2
GENERATION_BYTES = MIB
PADDING_BYTES = 60_000
ROOM_SECONDS_MAX = 60
SECOND = 1_000_000_000


class History:
    """Writes what gateway, node and scheduler would, with decisions that verify: folded, decided, appended."""

    def __init__(self, journal: NatsJournal) -> None:
        self.journal = journal
        self.state = State()
        self.refusals = 0
        self.acknowledged: list[tuple[int, str]] = []
        self._now = 1_700_000_000 * SECOND
        self._next: dict[str, int] = {}
        self._jobs = 0

    async def begin(self) -> None:
        """A scheduler leads, a node joins."""
        await self.append("scheduler", "s1", e.LeaderElected(id="1-leader", at_ns=self._now, epoch=1, instance="s1"))
        values = as_values(Parameters())
        await self.append(
            "scheduler", "s1", e.PolicyChanged(id="1-p", at_ns=self._now, policy=POLICY_VERSION, parameters=values)
        )
        joined: dict[str, Any] = {"capacity": spec(1).components[0].resources["default"].minimum}
        node = msgspec.structs.replace(joined["capacity"], cpu_millis=4000, memory_mib=16_384)
        await self.append(
            "node",
            "n1",
            e.NodeJoined(
                id="join",
                at_ns=self._now,
                node="n1",
                incarnation=1,
                capacity=node,
                levels=("trusted",),
                images={"host": "b3:0"},
            ),
        )

    async def append(self, service: str, instance: str, *events: e.AnyEvent) -> int:
        """Append one frame; return its sequence."""
        name = f"{service}/{instance}"
        writer = Writer(service, instance, 1, self._next.get(name, 0))  # type: ignore[arg-type]
        self._next[name] = writer.writer_seq + 1
        subject = DECISION if service == "scheduler" else fact(service, instance)
        async with asyncio.timeout(ROOM_SECONDS_MAX):
            answer = await self._append(subject, Frame(writer, events))
        assert isinstance(answer, Appended)
        self.acknowledged.append((answer.seq, writer.frame_id))
        return answer.seq

    async def _append(self, subject: str, frame: Frame) -> Appended | Conflict:
        """Append, and wait for the next generation where this one is full."""
        while True:
            try:
                return await self.journal.append(subject, frame)
            except JournalFullError:
                self.refusals += 1
                await asyncio.sleep(0.02)

    async def pad(self, frames: int) -> None:
        """Append frames that are large and change nothing but their writer's mark."""
        for _ in range(frames):
            number = len(self.acknowledged)
            padding = base64.b64encode(os.urandom(PADDING_BYTES * 3 // 4)).decode()
            await self.append(
                "gateway",
                "g1",
                e.CancelRequested(id=f"pad-{number}", at_ns=self._now, tenant="t", job=f"no-{number}", actor=padding),
            )

    async def run_a_job(self) -> None:
        """A job comes, is placed, runs, ends; the fifth runs on."""
        self._jobs += 1
        job = f"j{self._jobs}"
        submitted = e.JobSubmitted(id=f"s-{job}", at_ns=self._now, tenant="t", job=job, spec=spec(1500))
        await self.append("gateway", "g1", submitted)
        await self.settle()
        about: dict[str, Any] = {"at_ns": self._now, "tenant": "t", "job": job, "attempt": 1, "rank": 0, "node": "n1"}
        await self.append("node", "n1", e.SandboxStarted(id=f"b-{job}", level="trusted", **about))
        await self.settle()
        if self._jobs != 5:
            await self.append("node", "n1", e.SandboxExited(id=f"e-{job}", outcome="completed", **about))
            await self.settle()

    async def settle(self) -> None:
        """Decide until nothing more is decided."""
        self._now += SECOND
        while True:
            async for recorded in self.journal.read(self.state.seq, await self.journal.end()):
                evolve(self.state, recorded)
            decided = decide(self.state, self._now).events
            if not decided:
                return
            await self.append("scheduler", "s1", *decided)


class Result(msgspec.Struct, frozen=True):
    """What is left when a keeper did its work: equal however often it was killed."""

    streams: tuple[tuple[int, int, bool], ...]
    archived: tuple[tuple[int, int, str, str, bool], ...]
    opened: tuple[tuple[int, int, int, str, str, str], ...]
    state_digest: str


class Killed(BaseException):
    """The process is gone: nothing may catch this."""


class MortalClient(Client):
    """A client that dies at its n-th change of what the bus holds, before or after the server heard of it."""

    changes = 0
    dies_at: int | None = None
    dies_after = False

    async def request(self, subject: str, *args: Any, **more: Any) -> Msg:
        """Count what changes something, and die in time."""
        changing = subject.startswith(("tg.", "$O.", "$JS.API.STREAM.CREATE", "$JS.API.STREAM.UPDATE"))
        changing = changing or subject.startswith(("$JS.API.STREAM.DELETE", "$JS.API.STREAM.PURGE"))
        if not changing:
            return await super().request(subject, *args, **more)
        self.changes += 1
        if self.changes == self.dies_at and not self.dies_after:
            raise Killed(subject)
        answer = await super().request(subject, *args, **more)
        if self.changes == self.dies_at:
            raise Killed(subject)
        return answer


def settings(archive_dir: Path, **more: Any) -> Settings:
    """Return settings of a small journal."""
    return Settings(
        bus=BusSettings(),
        archive_dir=archive_dir,
        **{"generation_bytes": GENERATION_BYTES, "poll_seconds": 0.05, "fold_seconds": 0.0, **more},
    )


def keeper(client: Client, chosen: Settings) -> Keeper:
    """Return a keeper over one connection."""
    archive, snapshots = ArchiveDirectory(chosen.archive_dir), SnapshotStore(client, keeps=True)
    ports = Ports(
        streams=JournalStreams(client),
        journal=NatsJournal(client, archive),
        snapshots=snapshots,
        archivist=Archivist(NatsJournal(client), archive, snapshots),
        clock=SystemClock(),
    )
    return Keeper(chosen, ports)


async def result(client: Client, archive_dir: Path) -> Result:
    """Return what there is, read without the keeper's help."""
    archive = ArchiveDirectory(archive_dir)
    journal = NatsJournal(client, archive)
    state, opened, chain, ends = State(), [], ChainDigest(), {}
    async for raw in journal.read_raw(0, await journal.end()):
        chain.add(raw)
        ends[raw.seq] = chain.text()
    async for recorded in journal.read(0, await journal.end()):
        evolve(state, recorded)
        for event in recorded.frame.events:
            if isinstance(event, e.GenerationOpened):
                opened.append(event)
                assert event.sealed_digest == ends[event.first_seq - 1]
    return Result(
        streams=tuple((each.number, each.first_seq, each.live) for each in await generations(client)),
        archived=tuple(
            (a.generation, a.info.frames, a.info.digest, a.info.previous_digest, a.info.has_snapshot)
            for a in archive.list()
        ),
        opened=tuple(
            (o.generation, o.first_seq, o.sealed_frames, o.sealed_digest, o.snapshot, o.state_digest) for o in opened
        ),
        state_digest=state.digest(),
    )
