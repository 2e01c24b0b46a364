"""The part of a checkpoint of several nodes, between the process that stored it and its agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidegate import SaveFailedError
from tidegate.checkpoint import nodepart, places
from tidegate.checkpoint.root import Root
from tidegate_executor.channel import messages
from tidegate_executor.channel.handler import MessageRefused

ON_NODE = {"TIDEGATE_NODE_RANK": "0", "TIDEGATE_LOCAL_RANK": "0", "TIDEGATE_LOCAL_SIZE": "1"}


def part_of(tmp_path: Path, said: messages.PartSaved) -> Root:
    with places.opened(tmp_path / "checkpoints") as held:
        return nodepart.read(held, nodepart.NODE_PARTS, said.directory)


def test_a_process_is_told_also_by_an_agent_that_began_again(
    agent: Any, join: Any, wait_for: Any, tmp_path: Path
) -> None:
    job = join(**ON_NODE)
    pending = job.save(state={"step": 3}, step=3, together=True)
    wait_for(lambda: agent.handler.awaited)
    (said,) = agent.handler.of(messages.PartSaved)
    assert (said.step, said.ranks, said.save.startswith("000000000003-1-")) == (3, [0], True)
    agent.stop()
    agent.handler.awaited.clear()
    agent.start()
    wait_for(lambda: agent.handler.awaited)  # nobody but the process remembered
    ((asked, send),) = agent.handler.awaited
    assert (asked.save, asked.part) == (said.save, said.id)
    assert agent.handler.of(messages.PartSaved) == [said], "once"
    part = part_of(tmp_path, said)
    with places.opened(tmp_path / "checkpoints") as held:
        nodepart.put(held, nodepart.JOINED, part)
    answer = {"kind": "joined", "save": said.save, "root": part.name, "id": part.id, "tier": "warm"}
    agent._loop.call_soon_threadsafe(send, {**answer, "part": "0" * 64})
    agent._loop.call_soon_threadsafe(send, {**answer, "part": said.id})
    assert pending.wait(20).id == part.id
    assert agent.handler.of(messages.Saved) == [], "whoever joined it has told of it"


def test_a_veto_is_raised_and_not_said_again(agent: Any, join: Any, wait_for: Any) -> None:
    job = join(**ON_NODE)
    pending = job.save(state={"step": 3}, step=3, together=True)
    wait_for(lambda: agent.handler.awaited)
    ((asked, send),) = agent.handler.awaited
    told = {"kind": "joined", "save": asked.save, "part": asked.part, "failed": "rank 2 on node n2: no space"}
    agent._loop.call_soon_threadsafe(send, told)
    with pytest.raises(SaveFailedError, match="rank 2 on node n2: no space"):
        pending.wait(20)
    assert agent.handler.of(messages.PartFailed) == []
    wait_for(lambda: agent.handler.of(messages.SaveFailed))


def test_a_part_that_the_agent_refuses_vetoes(agent: Any, join: Any, wait_for: Any) -> None:
    job = join(**ON_NODE)
    agent.handler.failure = MessageRefused("no_such_part", "it is not there")
    pending = job.save(state={"step": 3}, step=3, together=True)
    with pytest.raises(SaveFailedError, match="it is not there"):
        pending.wait(20)
    wait_for(lambda: agent.handler.of(messages.PartFailed))
    (failed,) = agent.handler.of(messages.PartFailed)
    assert (failed.rank, failed.step, "it is not there" in failed.error) == (0, 3, True)
