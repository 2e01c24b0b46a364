"""Level `guarded`: a guest stands before its replica is known, and is that one's if it fits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidegate_executor.sandbox.base import Limits
from tidegate_executor.sandbox.shim.guarded import PIDS_AHEAD
from tidegate_executor.sandbox.shim.replicas import FIRST_GROUP

from tests.executor.sandbox.conftest import World


def first_group(world: World, sandbox: str) -> set[int]:
    """Return the processes in the group of the first replica."""
    end = f"/{world.settings.cgroup_name}/{sandbox}/{FIRST_GROUP}"
    places = [where for where, _, _ in os.walk("/sys/fs/cgroup") if where.endswith(end)]
    return {int(pid) for place in places for pid in Path(place, "cgroup.procs").read_text().split()}


@pytest.mark.parametrize("pids", [PIDS_AHEAD, 64])
async def test_a_guest_stands_before_its_replica(world: World, pids: int) -> None:
    if world.probe.backend != "gvisor":
        pytest.skip("only gVisor boots a kernel for a replica")
    sandbox = await world.create("ready.1.0")
    before = first_group(world, "ready.1.0")
    assert before
    limits = Limits(cpu_millis=1000, memory_mib=128, pids=pids)
    await sandbox.start(world.process("sleep", "600", limits=limits, cwd="/"))
    after = first_group(world, "ready.1.0")
    assert (before <= after) is (pids == PIDS_AHEAD)
    await sandbox.destroy()
