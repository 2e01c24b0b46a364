"""Detection reads the kernel's tables, tries, and touches no process but the agent's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidegate_executor.cgroups import v2
from tidegate_executor.cgroups.base import CgroupError
from tidegate_executor.cgroups.detect import Mounts, below, candidates, detect, driver_from, read_mounts
from tidegate_executor.cgroups.v1 import CONTROLLERS, V1Driver
from tidegate_executor.cgroups.v2 import AGENT_LEAF, V2Driver, move_own_processes, strangers

UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:31 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    "35 31 0:32 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
    "36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
HYBRID_OWN = "5:cpu,cpuacct:/a\n4:memory:/docker/abc/b\n3:pids:/\n2:freezer:/\n1:name=systemd:/x\n0::/u\n"


def test_unified_layout() -> None:
    mounts = read_mounts(UNIFIED, "0::/user.slice/a.scope\n")
    assert mounts == Mounts(Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/user.slice/a.scope"), {})


def test_hybrid_layout_with_shared_and_shifted_hierarchies() -> None:
    mounts = read_mounts(HYBRID, HYBRID_OWN)
    assert mounts.unified_own == Path("/sys/fs/cgroup/unified/u")
    assert mounts.legacy_own == {
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct/a"),
        "cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct/a"),
        "memory": Path("/sys/fs/cgroup/memory/b"),
        "pids": Path("/sys/fs/cgroup/pids"),
        "freezer": Path("/sys/fs/cgroup/freezer"),
    }


def test_a_path_outside_the_mount_falls_back_to_its_top() -> None:
    assert below(Path("/m"), "/docker/abc", "/elsewhere") == Path("/m")


def test_version_one_is_offered_to_root_only() -> None:
    mounts = read_mounts(HYBRID, HYBRID_OWN)
    assert [driver.kind for driver in candidates(mounts, "t", None, 0)] == ["cgroup-v2", "cgroup-v1"]
    assert [driver.kind for driver in candidates(mounts, "t", None, 1000)] == ["cgroup-v2"]


def test_an_agent_in_its_leaf_finds_the_same_place_again() -> None:
    mounts = read_mounts(UNIFIED, f"0::/user.slice/a.scope/{AGENT_LEAF}\n")
    (driver,) = candidates(mounts, "t", None, 1000)
    assert driver.describe() == {
        "kind": "cgroup-v2",
        "parent": "/sys/fs/cgroup/user.slice/a.scope",
        "name": "t",
        "own": "0",
    }


def test_drivers_round_trip() -> None:
    v1 = V1Driver({name: Path("/x", name) for name in CONTROLLERS})
    for driver in (v1, V2Driver(Path("/y"), "t", own=True)):
        assert driver_from(driver.describe()).describe() == driver.describe()
    with pytest.raises(CgroupError, match="unknown"):
        driver_from({"kind": "cgroup-v3"})


def test_what_was_tried_in_vain_is_told(tmp_path: Path) -> None:
    detected = detect("t", parent=str(tmp_path / "nowhere"))
    assert any("nowhere" in line for line in detected.tried)
    if detected.driver is not None:
        detected.driver.release()


def test_own_kin_is_the_supervisors_tree_and_what_is_above() -> None:
    own = os.getpid()
    assert strangers([own, os.getppid()], own) == []
    kernel_thread = 2  # of nobody's making
    if Path("/proc/2").exists():
        assert strangers([kernel_thread, own], own) == [kernel_thread]


def fake_group(directory: Path, pids: list[int], *, root: bool = False) -> Path:
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    if not root:
        (directory / "cgroup.type").write_text("domain\n")
    return directory


def test_the_machines_root_group_is_never_emptied(tmp_path: Path) -> None:
    group = fake_group(tmp_path / "root", [os.getpid()], root=True)
    with pytest.raises(CgroupError, match="root group"):
        move_own_processes(group)
    assert not (group / AGENT_LEAF).exists()


def test_other_peoples_processes_are_never_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = fake_group(tmp_path / "shared", [os.getpid(), 999_999_999])
    moved: list[str] = []
    monkeypatch.setattr(v2, "write", lambda path, value: moved.append(value))
    with pytest.raises(CgroupError, match="did not bring"):
        move_own_processes(group)
    assert moved == []
    assert not (group / AGENT_LEAF).exists()


def test_controllers_are_checked_before_anything_moves(tmp_path: Path) -> None:
    group = fake_group(tmp_path / "bare", [os.getpid()])
    (group / "cgroup.controllers").write_text("hugetlb\n")
    with pytest.raises(CgroupError, match="not offered the controllers cpu, memory, pids"):
        V2Driver(group, "t", own=True).prepare()
    assert not (group / AGENT_LEAF).exists()
