"""A gang on several nodes, as its processes and agents appear to the checkpoint services: threads and spoken facts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from tidegate import CheckpointError
from tidegate.checkpoint import nodepart, places, sharding
from tidegate.checkpoint import snapshot as snapshots
from tidegate.checkpoint.commit import Occasion
from tidegate.checkpoint.direct import Arenas
from tidegate.checkpoint.gathering import Meeting
from tidegate.checkpoint.nodepart import NotJoinedError, Spread
from tidegate.checkpoint.root import Root, Stamp
from tidegate.checkpoint.store import CheckpointStore, Committed
from tidegate.tiers.tiers import Tiers
from tidegate_checkpoint.joiner import Joiner
from tidegate_events import events as e
from tidegate_events.events import CheckpointPartFailed, CheckpointPartSaved, CheckpointRef, Reason
from tidegate_events.frame import Frame, Writer
from tidegate_events.joins import Joined, JoinQuestion, Vetoed, decode_answer
from tidegate_events.journal.memory import MemoryJournal
from tidegate_events.subjects import fact

from tests.support.stores import STAMP

JOB, TENANT = "j-1", "lab"
SECONDS = 30.0


@dataclass
class Agents:
    """What the agents of a gang's nodes do for its processes: journal what they say, and ask what became of it."""

    journal: MemoryJournal
    hot: dict[str, Path]
    tiers: Tiers
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    joiners: list[Joiner] = field(default_factory=list)
    attempt: int = 1
    said: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.hot)

    async def say(self, node: str, *events: e.Event) -> None:
        self.said += 1
        writer = Writer("node", node, 1, self.said)
        named = [msgspec.structs.replace(event, id=writer.event_id(at)) for at, event in enumerate(events)]
        await self.journal.append(fact("node", node), Frame(writer, tuple(named)))  # type: ignore[arg-type]

    def common(self) -> dict[str, Any]:
        return {"id": "", "at_ns": time.time_ns(), "tenant": TENANT, "job": JOB, "attempt": self.attempt}

    def stored(self, node: str, save: str, part: Root, ranks: Sequence[int]) -> CheckpointPartSaved:
        ref = CheckpointRef(id=part.id, step=part.step, attempt=part.stamp.attempt, directory=part.name)
        about = {"rank": ranks[0], "node": node, "save": save, "nodes": self.nodes}
        return CheckpointPartSaved(**self.common(), **about, ranks=tuple(ranks), part=ref)

    async def outcome(self, save: str, part: Root) -> Joined | Vetoed:
        question = msgspec.json.encode(JoinQuestion(job=JOB, save=save, part_id=part.id))
        while True:
            for joiner in list(self.joiners):
                answer = decode_answer(await joiner.answer(question))
                if isinstance(answer, Joined | Vetoed):
                    return answer
            await asyncio.sleep(0.05)

    def wait(self, work: Any) -> Any:
        """Have the loop do something for a process, which is a thread of its own."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)


@dataclass
class GangHere:
    """Implements nodepart.Gang for the processes of one node."""

    agents: Agents
    node: str
    is_heard: bool = True
    stored_parts: list[Root] = field(default_factory=list)

    def stored(self, save: str, part: Root, ranks: tuple[int, ...]) -> None:
        self.stored_parts.append(part)
        if self.is_heard:
            self.agents.wait(self.agents.say(self.node, self.agents.stored(self.node, save, part, ranks)))

    def failed(self, save: str, step: int, rank: int, why: str) -> None:
        about = {"rank": rank, "node": self.node, "save": save, "nodes": self.agents.nodes, "step": step}
        reason = Reason(code="SaveFailed", detail=why)
        self.agents.wait(
            self.agents.say(self.node, CheckpointPartFailed(**self.agents.common(), **about, reason=reason))
        )

    def outcome(self, save: str, part: Root) -> str:
        answer = self.agents.wait(self.agents.outcome(save, part))
        if isinstance(answer, Vetoed):
            raise NotJoinedError(answer.why)
        tier = next(tier for tier in self.agents.tiers.of_job(TENANT, JOB) if tier.name == answer.tier)
        root = tier.root(answer.directory)
        assert root.id == answer.checkpoint_id
        with places.opened(self.agents.hot[self.node] / TENANT / JOB) as held:
            nodepart.put(held, nodepart.JOINED, root)
        return root.name


def stamp_of(rank: int, world_size: int, attempt: int = 1) -> Stamp:
    return replace(STAMP, job=JOB, attempt=attempt, rank=rank, world_size=world_size)


@dataclass
class Rank:
    """One process: its node's number, and its place among `here`, the ranks of its node."""

    rank: int
    world_size: int
    node: str
    here: tuple[int, ...]
    agents: Agents

    def save(self, layers: dict[str, Any], step: int = 7, number: int = 1, **more: Any) -> Committed | Exception:
        stamp = stamp_of(self.rank, self.world_size, self.agents.attempt)
        node_rank = self.agents.nodes.index(self.node)
        gang = more.get("gang") or GangHere(self.agents, self.node)
        spread = Spread(sharding.key(step, stamp, number), gang, SECONDS)
        key = sharding.key_on_node(step, stamp, number, node_rank)
        meeting = Meeting(key, self.here.index(self.rank), len(self.here), SECONDS, SECONDS)
        directory = self.agents.hot[self.node] / TENANT / JOB
        directory.mkdir(parents=True, exist_ok=True)
        store = CheckpointStore(directory, stamp)
        snapshot = snapshots.take(layers, Arenas(0))
        try:
            budget = more.get("budget")
            return store.save_part(Occasion(step, stamp), snapshot, meeting, budget=budget, spread=spread)[0]
        except (CheckpointError, OSError) as error:
            return error


def gang(agents: Agents, placed: dict[str, tuple[int, ...]]) -> list[Rank]:
    """Return the processes of a gang, by rank."""
    size = sum(len(here) for here in placed.values())
    found = [Rank(rank, size, node, here, agents) for node, here in placed.items() for rank in here]
    return sorted(found, key=lambda each: each.rank)
