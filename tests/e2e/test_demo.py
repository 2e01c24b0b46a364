"""The two commands of the README: `scripts/demo --json` as a user runs it, and what it does when it is interrupted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tidegate_local import leftovers
from tidegate_local.home import Home

from tests.e2e.running import ROOT

COMMAND_SECONDS_MAX = 500.0
INTERRUPT_AFTER = b"JobStarted"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def demo(home: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "tidegate_local.demo", "--json", "--home", str(home), *options]


@pytest.mark.isolation
def test_the_demo_holds_all_that_it_claims(tmp_path: Path) -> None:
    home = tmp_path / "home"
    before = outside(home)
    done = subprocess.run(
        demo(home),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-8000:]
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["ok"] is True
    assert last["leftovers"] == 0
    assert last["decisions_verified"] == last["decisions"] > 0
    low, high = last["jobs"]
    assert low["preemptions"] == 1
    assert low["resumed_step"] > 0
    assert low["lost_steps"] == 0
    assert high["preemptions"] == 0
    assert min(low["mean_return"], high["mean_return"]) >= 195
    assert low["trace_id"] in done.stderr
    assert not home.exists()
    assert outside(home) == before


@pytest.mark.parametrize("ending", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
@pytest.mark.isolation
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, ending: signal.Signals) -> None:
    home = tmp_path / "home"
    process = subprocess.Popen(
        demo(home), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for line in process.stderr:
        if INTERRUPT_AFTER in line:
            break
    ports = ports_of(home)
    process.send_signal(ending)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()[-4000:]
    last = json.loads(output.splitlines()[-1])
    assert last["ok"] is False
    assert last["leftovers"] == 0
    assert leftovers.find(Home(home), ports) == []


@pytest.mark.long
def test_unisolated_only_on_request_and_labelled_throughout(tmp_path: Path) -> None:
    done = subprocess.run(
        demo(tmp_path / "home", "--unisolated"),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-8000:]
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["ok"] is True
    assert last["leftovers"] == 0
    told = [line for line in done.stderr.splitlines() if re.match(r" *\d+\.\d s ", line)]
    assert len(told) > 10
    assert [line for line in told if "UNISOLATED" not in line] == []
    trace = re.compile(r"trace [0-9a-f]{32}|What was checked$|while its stack runs")
    titles = [line for line in done.stderr.splitlines() if trace.search(line)]
    assert titles
    assert [line for line in titles if "UNISOLATED" not in line] == []


def ports_of(home: Path) -> dict[str, int]:
    """Return the ports of the demo's stack."""
    deadline = time.monotonic() + 10
    while (record := Home(home).read_record()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return record.ports


def outside(home: Path) -> set[str]:
    """Return what lies where a careless program leaves things."""
    places = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"), Path("/run"))
    return {
        str(entry)
        for place in places
        for entry in place.iterdir()
        if "tidegate" in entry.name or entry.name.startswith(("tg-", "torch", "bwrap"))
    } - {str(home)}
