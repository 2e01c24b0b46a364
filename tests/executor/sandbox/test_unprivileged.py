"""The same sandbox without root: as user 65534, in control groups that root handed over.

Shows the path that an ordinary user's agent takes: bubblewrap directly, no staging, no second uid.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tidegate_executor.cgroups.detect import read_mounts
from tidegate_executor.cgroups.v1 import CONTROLLERS, V1Driver
from tidegate_executor.sandbox.shim import syscalls

NOBODY = 65534
NAME = f"tidegate-test-user-{os.getpid()}"
SCRIPT = Path(__file__).with_name("unprivileged_agent.py")
SYSTEM_PYTHON = "/usr/bin/python3"


def reachable_python() -> str:
    """A Python like this one that user 65534 may execute, with the packages that this one uses."""
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (os.path.realpath(sys.executable), f"{SYSTEM_PYTHON}.{sys.version_info.minor}", SYSTEM_PYTHON):
        question = "import sys, msgspec; print('%d.%d' % sys.version_info[:2])"
        try:
            answer = subprocess.run(
                [candidate, "-c", question],
                user=NOBODY, group=NOBODY, extra_groups=[], env=environment(),
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        except (FileNotFoundError, PermissionError):
            continue
        if answer.stdout.strip() == wanted:
            return candidate
    pytest.skip(f"user {NOBODY} can execute no Python {wanted} with this one's packages")


def environment() -> dict[str, str]:
    """Where this interpreter finds the project and its dependencies."""
    site = Path(msgspec.__file__).parents[1]
    return {"PYTHONPATH": f"{Path('services/executor').resolve()}:{site}"}


@pytest.fixture
def delegated() -> Iterator[V1Driver]:
    own = read_mounts(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()).legacy_own
    if os.geteuid() != 0 or set(own) != set(CONTROLLERS):
        pytest.skip("needs root, to become somebody else, and version 1 controllers to hand over")
    driver = V1Driver({name: path / NAME for name, path in own.items()})
    driver.prepare()
    for path in own.values():
        for entry in (path / NAME, *(path / NAME).iterdir()):
            os.chown(entry, NOBODY, NOBODY)
    yield driver
    for name in driver.names():
        driver.group(name).remove()
    driver.release()


def test_a_user_without_root_gets_the_same_sandbox(delegated: V1Driver) -> None:
    python = reachable_python()
    home = Path("/tmp", NAME)
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    syscalls.mount(str(home), str(home), None, syscalls.MS_BIND)
    syscalls.mount("none", str(home), None, syscalls.MS_SHARED)  # as a host's are
    try:
        request = json.dumps({"directory": str(home), "cgroup": delegated.describe()})
        ran = subprocess.run(
            [python, str(SCRIPT), request],
            user=NOBODY, group=NOBODY, extra_groups=[], env=environment(), capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        report = json.loads(ran.stdout)
    finally:
        syscalls.unmount(str(home), syscalls.MNT_DETACH)
        subprocess.run(["rm", "-rf", str(home)], check=True)
    assert report["available"], report
    assert report["fresh"]["exit_code"] == 3
    assert report["fresh"]["output"][:4] == ["1000", "written", "0000000000000000", "2"]
    assert report["fresh"]["output"].count("read-only") == 2
    assert report["fresh"]["output"][-1] == "secluded", "what is mounted in its sources later is not seen"
    assert report["ready"] == report["fresh"]
    assert (report["hits"], report["left"]) == (1, [])
