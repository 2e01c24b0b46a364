"""A stack of several of each: a gang over two nodes, the lead that goes over, and nothing left of any node."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidegate_local import leftovers

from tests.e2e.running import RunningStack, command

pytestmark = [pytest.mark.e2e, pytest.mark.isolation, pytest.mark.long, pytest.mark.timeout(600)]

NODES = {"node-1", "node-2"}


@pytest.fixture
def several(tmp_path: Path) -> Iterator[RunningStack]:
    """Yield three bus servers, two schedulers and two nodes; afterwards nothing of them may be left."""
    options = ("--nodes", "2", "--schedulers", "2", "--bus-servers", "3")
    stack = RunningStack.start(tmp_path / "home", *options)
    try:
        yield stack
    finally:
        left = [] if stack.ended else stack.end()
    assert left == []


def submit(stack: RunningStack, name: str, script: str, cpu_millis: int, members: int = 1) -> str:
    return stack.client.submit(
        {
            "name": name,
            "isolation": stack.record.level,
            "command": ["python", "-c", script],
            "resources": {"cpu_millis": cpu_millis, "memory_mib": 64},
            "gang_size": members,
        }
    ).job_id


def test_a_gang_over_two_nodes_and_the_lead_that_goes_over(several: RunningStack) -> None:
    """Each node offers half, so members that take most of that need a node each."""
    names = {"nats-1", "nats-2", "nats-3", "scheduler-1", "scheduler-2", "executor-1", "executor-2"}
    assert several.record.services.keys() >= names | {"keeper", "gateway"}
    shown = command(several.home, "tidegate", "status").stdout
    assert all(name in shown for name in names)
    gang = submit(several, "gang", "import time; time.sleep(1)", 700, members=2)
    (ended,) = several.completed(gang)
    assert {member["node"] for member in ended["attempts"][0]["members"]} == NODES

    (leader,) = {entry.data["instance"] for entry in several.events("LeaderElected")}
    several.kill(leader)
    after = submit(several, "after", "print('done')", 700)
    several.completed(after)
    assert [entry.data["epoch"] for entry in several.events("LeaderElected")] == [1, 2]
    several.verify()


def test_down_finds_every_node_though_the_supervisor_was_killed(several: RunningStack) -> None:
    gang = submit(several, "gang", "import time; time.sleep(600)", 700, members=2)
    several.until(lambda: several.client.job(gang)["state"] == "running", "the gang running")
    os.kill(several.record.pid, signal.SIGKILL)
    found = leftovers.find(several.home, {})
    groups = {leftover.what.rpartition("/")[2] for leftover in found if leftover.kind == "cgroup"}
    assert groups == {f"{several.home.cgroup_name}-{node}" for node in NODES}
    assert several.end() == []
