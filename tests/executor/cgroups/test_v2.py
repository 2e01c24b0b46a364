"""Version 2: the values written, on a stand-in directory; freezing and killing, on the kernel where it has a hierarchy.

Machines with version 1 controllers cannot show cpu.max and memory.max at work; the conformance suite does where
version 2 is delegated.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidegate_executor.cgroups.base import CgroupError, CgroupRefusedError, Quota, Usage
from tidegate_executor.cgroups.detect import read_mounts
from tidegate_executor.cgroups.v2 import V2Driver, V2Group

MIB = 1024 * 1024
FILES = {
    "cgroup.controllers": "cpu io memory pids\n",
    "cgroup.subtree_control": "memory\n",
    "cgroup.procs": "",
    "cgroup.type": "domain\n",
    "cpu.max": "max 100000\n",
    "cpu.stat": "usage_usec 1234\nuser_usec 1000\nnr_periods 40\nnr_throttled 7\nthrottled_usec 2500000\n",
    "memory.current": f"{100 * MIB}\n",
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.reclaim": "",
    "memory.oom.group": "0\n",
    "memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n",
    "memory.peak": f"{120 * MIB}\n",
    "pids.max": "max\n",
    "pids.current": "3\n",
}


def fake(directory: Path) -> Path:
    """A directory with the files that the kernel would show."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (directory / name).write_text(text)
    return directory


def test_preparing_gives_controllers_down_to_the_replicas(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "tidegate", tmp_path / "tidegate" / "a.1.0"):
        fake(directory)
    driver = V2Driver(tmp_path, "tidegate", own=False)
    driver.prepare()
    driver.group("a.1.0").create()
    for directory in (tmp_path, tmp_path / "tidegate", tmp_path / "tidegate" / "a.1.0"):
        assert (directory / "cgroup.subtree_control").read_text().split()[:2] == ["+cpu", "+pids"]
    assert driver.names() == ["a.1.0"]


def test_a_missing_controller_is_named(tmp_path: Path) -> None:
    fake(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    with pytest.raises(CgroupError, match="cpu, pids"):
        V2Driver(tmp_path, "tidegate", own=False).prepare()


def test_limits_are_written_in_the_kernels_units(tmp_path: Path) -> None:
    group = V2Group(fake(tmp_path / "g"), inner=False)
    assert group.quota() == Quota(-1, -1, -1)
    group.apply(Quota(cpu_millis=250, memory_mib=128, pids=9))
    assert group.quota() == Quota(250, 128, 9)
    assert (tmp_path / "g" / "cpu.max").read_text().startswith("25000 100000")
    assert (tmp_path / "g" / "memory.oom.group").read_text().startswith("1")
    assert (tmp_path / "g" / "memory.swap.max").read_text().startswith("0")


def test_memory_in_use_is_reclaimed_first_and_never_killed(tmp_path: Path) -> None:
    group = V2Group(fake(tmp_path / "g"), inner=False)
    with pytest.raises(CgroupRefusedError, match="100 MiB are in use"):
        group.apply(Quota(cpu_millis=250, memory_mib=60, pids=9))
    assert (tmp_path / "g" / "memory.reclaim").read_text() == str(40 * MIB)
    assert (tmp_path / "g" / "memory.max").read_text() == "max\n"
    assert (tmp_path / "g" / "cpu.max").read_text() == "max 100000\n"


def test_usage_is_read_from_the_kernels_counters(tmp_path: Path) -> None:
    usage = V2Group(fake(tmp_path / "g"), inner=False).usage()
    assert usage == Usage(1234, 100 * MIB, 120 * MIB, 3, 1, 40, 7, 2_500_000, 3)


@pytest.fixture
def real() -> Iterator[V2Group]:
    """A group in the kernel's own hierarchy, controllers or not."""
    root = read_mounts(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()).unified_root
    if root is None or os.geteuid() != 0:
        pytest.skip("needs root and a mounted version 2 hierarchy")
    group = V2Group(root / f"tidegate-test-{os.getpid()}", inner=False)
    group.create()
    yield group
    group.remove()
    assert not group.exists()


def test_freeze_thaw_and_kill_on_the_real_hierarchy(real: V2Group) -> None:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        real.add(sleeper.pid)
        assert real.pids() == [sleeper.pid]
        real.freeze()
        assert real.frozen()
        real.thaw()
        assert not real.frozen()
        real.kill()
        assert sleeper.wait(10) == -signal.SIGKILL
    assert real.pids() == []
