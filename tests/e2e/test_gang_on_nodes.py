"""A gang on two nodes of a whole stack: it saves one checkpoint, is preempted without losing a step, and goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidegate.client import LogSelection

from tests.e2e.running import RunningStack
from tests.e2e.test_gang import MEMBER, _spec

pytestmark = [pytest.mark.e2e, pytest.mark.isolation, pytest.mark.long, pytest.mark.timeout(600)]

NODES = {"node-1", "node-2"}
RANKS = (0, 1)


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[RunningStack]:
    """Yield a stack of two nodes; afterwards nothing of it may be left."""
    stack = RunningStack.start(tmp_path / "home", "--nodes", "2", "--unisolated")
    try:
        yield stack
    finally:
        left = [] if stack.ended else stack.end()
    assert left == []


def told_of(stack: RunningStack, job: str, kind: str, count: int) -> bool:
    """Say whether so many events of a kind are there; a job that ended badly says why at once."""
    if stack.client.job(job)["state"] == "failed":
        said = [chunk.text for rank in RANKS for chunk in stack.client.logs(job, LogSelection(attempt=1, rank=rank))]
        raise AssertionError("".join(said))
    return len(stack.events(kind, job=job)) >= count


def saved_by(stack: RunningStack, job: str, attempt: int, rank: int) -> list[tuple[str, int]]:
    """Return (id, step) of the checkpoints that a rank said it saved."""
    chunks = stack.client.logs(job, LogSelection(attempt=attempt, rank=rank))
    text = "".join(chunk.text for chunk in chunks)
    return [(found[1], int(found[2])) for found in re.finditer(r"saved ([0-9a-f]{64}) at (\d+)", text)]


def test_a_gang_on_two_nodes_saves_together_and_loses_no_step(two_nodes: RunningStack) -> None:
    stack = two_nodes
    command = ["python", "saving.py"]
    gang = _spec(stack, "gang", 700, command, gang_size=2, priority=1, preemption={"grace_seconds": 40})
    job = stack.client.submit(gang, workdir=MEMBER).job_id
    stack.until(lambda: told_of(stack, job, "CheckpointPartPromoted", 2), "both parts of the first save")
    stack.kill("checkpoint")
    stack.until(lambda: told_of(stack, job, "CheckpointSaved", 1), "a checkpoint of all ranks")
    urgent = _spec(stack, "urgent", 700, ["python", "-c", "print('done')"], priority=50)
    stack.client.submit(urgent)
    (ended,) = stack.completed(job)

    assert {member["node"] for member in ended["attempts"][0]["members"]} == NODES
    assert (ended["preemptions"], ended["lost_steps"]) == (1, 0), stack.story()
    assert ended["result"]["step"] == 160
    saved = stack.events("CheckpointSaved", job=job)
    assert {(each.data["tier"], each.rank) for each in saved} == {("warm", 0)}
    assert all(each.data["save"] for each in saved)
    told = {(each.data["checkpoint"]["id"], each.data["checkpoint"]["step"]) for each in saved}
    for attempt in (1, 2):
        said = [saved_by(stack, job, attempt, rank) for rank in RANKS]
        assert said[0] == said[1] != [], "every rank is told of the same"
        assert set(said[0]) <= told
    parts = stack.events("CheckpointPartSaved", job=job)
    assert {each.node for each in parts} == NODES
    assert len({each.data["save"] for each in parts}) == len(saved)
    assert stack.events("CheckpointFailed", "CheckpointPartFailed", job=job) == []
    stack.verify()
