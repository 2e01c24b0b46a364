"""Version 1, on the kernel: limits, counters, killing, removal. Needs root and version 1 controllers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidegate_executor.cgroups.base import CgroupError, CgroupRefusedError, Quota
from tidegate_executor.cgroups.detect import read_mounts
from tidegate_executor.cgroups.v1 import CONTROLLERS, V1Driver, V1Group

NAME = f"tidegate-test-{os.getpid()}"
GROUPS = 30
SECONDS_MAX = 20.0


@pytest.fixture
def driver() -> Iterator[V1Driver]:
    own = read_mounts(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()).legacy_own
    if set(own) != set(CONTROLLERS) or os.geteuid() != 0:
        pytest.skip("needs root and version 1 controllers")
    made = V1Driver({name: path / NAME for name, path in own.items()})
    made.prepare()
    yield made
    for name in made.names():
        made.group(name).remove()
    made.release()
    assert not any(path.joinpath(NAME).exists() for path in own.values())


@pytest.fixture
def group(driver: V1Driver) -> V1Group:
    made = driver.group("g")
    made.create()
    return made


def test_limits_grow_and_shrink_and_read_back(group: V1Group) -> None:
    for quota in (Quota(500, 64, 10), Quota(2000, 256, 20), Quota(10, 32, 1)):
        group.apply(quota)
        assert group.quota() == quota


def test_a_hierarchy_that_is_not_mounted_is_named() -> None:
    with pytest.raises(CgroupError, match="cpuacct, memory, pids, freezer"):
        V1Driver({"cpu": Path("/nowhere")})


def test_memory_in_use_is_not_taken(group: V1Group) -> None:
    code = "held = b'x' * (64 << 20)\nprint('up', flush=True)\nimport time\ntime.sleep(600)"
    group.apply(Quota(1000, 256, 10))
    with subprocess.Popen([sys.executable, "-c", f"input()\n{code}"], stdin=-1, stdout=-1) as holder:
        group.add(holder.pid)
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == b"up\n"
        with pytest.raises(CgroupRefusedError, match="in use"):
            group.apply(Quota(1000, 16, 10))
        assert group.quota() == Quota(1000, 256, 10)
        usage = group.usage()
        assert usage.memory_bytes > 64 << 20
        assert (usage.processes, usage.oom_kills) == (1, 0)
        group.kill()
        assert holder.wait(10) == -signal.SIGKILL


def test_kill_reaches_frozen_processes_and_groups_below(group: V1Group) -> None:
    child = group.child("c")
    child.create()
    with subprocess.Popen(["sleep", "600"]) as one, subprocess.Popen(["sleep", "600"]) as two:
        group.add(one.pid)
        child.add(two.pid)
        assert group.pids() == sorted([one.pid, two.pid])
        group.freeze()
        assert group.frozen()
        group.kill()
        assert one.wait(10) == two.wait(10) == -signal.SIGKILL
    group.remove()
    assert not group.exists()
    group.remove()


def test_names_and_release_spare_groups_in_use(driver: V1Driver, group: V1Group) -> None:
    assert driver.names() == ["g"]
    driver.release()
    assert group.exists()


def test_a_group_that_wants_more_than_its_quota_is_seen_to_be_throttled(group: V1Group) -> None:
    group.apply(Quota(50, 64, 10))
    with subprocess.Popen([sys.executable, "-c", "input()\nwhile True: pass"], stdin=-1) as spinner:
        group.add(spinner.pid)
        assert spinner.stdin is not None
        spinner.stdin.write(b"\n")
        spinner.stdin.flush()
        deadline = time.monotonic() + 20
        while not (usage := group.usage()).cpu_throttled_usec:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        group.kill()
    assert usage.cpu_periods >= usage.cpu_throttled_periods > 0
    assert usage.cpu_usec > 0


def known_to_the_kernel() -> int:
    """Groups with memory, those that were removed and live on included (cgroups(7), /proc/cgroups)."""
    lines = Path("/proc/cgroups").read_text().splitlines()
    return next(int(line.split()[2]) for line in lines if line.startswith("memory"))


def test_a_group_that_is_removed_does_not_live_on_for_what_was_read_in_it(driver: V1Driver, tmp_path: Path) -> None:
    before = known_to_the_kernel()
    for number in range(GROUPS):
        group = driver.group(f"g{number}")
        group.create()
        file = tmp_path / f"{number}"
        writing = f"import os; input(); open({str(file)!r}, 'w').write('x' * 100_000)"
        with subprocess.Popen([sys.executable, "-c", writing], stdin=-1) as writer:
            group.add(writer.pid)
            writer.communicate(b"\n")
        assert file.stat().st_size == 100_000
        group.remove()
    deadline = time.monotonic() + SECONDS_MAX
    while known_to_the_kernel() - before > GROUPS // 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert known_to_the_kernel() - before <= GROUPS // 3
