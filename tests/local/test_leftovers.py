"""Leftovers are found by what the kernel knows: each kind is made, seen, and unmade."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tidegate_local import leftovers
from tidegate_local.home import LOOPBACK, Home

WAIT_SECONDS_MAX = 10.0


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a made home."""
    place = Home(tmp_path / "home")
    place.create()
    return place


def test_nothing_is_left_of_a_home_that_ran_nothing(home: Home) -> None:
    assert leftovers.find(home, {"gateway": _free()}) == []


def test_a_process_is_found_by_its_environment(home: Home) -> None:
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"X": f"{home.root}/run/x"}
    )
    try:
        _until_exec(sleeper.pid)
        (found,) = leftovers.find(home, {})
        assert found.kind == "process"
        assert found.what.startswith(f"{sleeper.pid} ")
    finally:
        sleeper.communicate(b"\n")
    assert leftovers.find(home, {}) == []


def test_a_process_of_another_home_is_not_ours(home: Home) -> None:
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"X": f"{home.root}-2/run"}
    )
    try:
        _until_exec(sleeper.pid)
        assert leftovers.find(home, {}) == []
    finally:
        sleeper.communicate(b"\n")


def test_a_listening_port_is_found(home: Home) -> None:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert [found.kind for found in leftovers.find(home, {"gateway": port})] == ["port"]
    assert leftovers.find(home, {"gateway": port}) == []


def test_a_port_that_another_stack_took_since_is_not_ours(home: Home) -> None:
    script = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    for owner, kinds in (("/elsewhere", []), (str(home.root), ["port"]), ("", ["port"])):
        with subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"TIDEGATE_HOME": owner} if owner else {},
        ) as other:
            assert other.stdout is not None
            port = int(other.stdout.readline())
            found = [leftover.kind for leftover in leftovers.find(home, {"gateway": port}) if leftover.kind == "port"]
            other.communicate(b"\n", timeout=WAIT_SECONDS_MAX)
        assert found == kinds


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a cgroup outside its own")
def test_a_cgroup_is_found(home: Home) -> None:
    parents = [
        path for path in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")) if (path / "cgroup.procs").exists()
    ]
    made = parents[0] / home.cgroup_name
    made.mkdir()
    try:
        assert [(found.kind, found.what) for found in leftovers.find(home, {})] == [("cgroup", str(made))]
    finally:
        made.rmdir()
    assert leftovers.find(home, {}) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_mount_is_found(home: Home) -> None:
    target = home.root / "a place"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(target)], check=True)
    try:
        assert ("mount", str(target)) in [(found.kind, found.what) for found in leftovers.find(home, {})]
    finally:
        subprocess.run(["umount", str(target)], check=True)
    assert leftovers.find(home, {}) == []


def _until_exec(pid: int) -> None:
    """Wait until the child has replaced our own environment by its own."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not Path(f"/proc/{pid}/environ").read_bytes().startswith(b"X="):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _free() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
