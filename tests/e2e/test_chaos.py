"""A minute of chaos from one seed, by the benchmark's own command: nothing lost, doubled, left behind or stuck."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEED = "8"
RUN_SECONDS_MAX = 400
STOP_SECONDS_MAX = 120
SHOWN_CHARS = 20_000

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.isolation,
    pytest.mark.timeout(RUN_SECONDS_MAX + STOP_SECONDS_MAX + 30),
    pytest.mark.long,
]


def test_a_minute_of_chaos(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    process = subprocess.Popen(
        [
            sys.executable,
            ROOT / "benchmarks" / "chaos.py",
            "--minutes",
            "1",
            "--seed",
            SEED,
            "--home",
            tmp_path / "run",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=RUN_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # it says where it stands, and takes its stack down
        stdout, stderr = process.communicate(timeout=STOP_SECONDS_MAX)
        pytest.fail(f"no end in {RUN_SECONDS_MAX} s:\n{stderr[-SHOWN_CHARS:]}")
    assert stdout, stderr[-SHOWN_CHARS:]
    report = json.loads(stdout)
    told = f"{report['trouble']}\n{stderr}"
    wrong = ("lost", "duplicated", "double_starts", "leaked_sandboxes", "stuck_jobs", "jobs_failed", "unanswered")
    assert {name: report[name] for name in wrong} == dict.fromkeys(wrong, 0), told
    assert report["acked"] == report["found"] == report["jobs_completed"] > 40, told
    assert report["decisions_verified"] == report["decisions"] > 100, told
    assert report["verified"], told
    assert process.returncode == 0, told

    # It was chaos: each kind was killed, the lead went over, the journal was full and went on in another generation.
    killed = {name.partition("-")[0] for name in report["kills"]}
    assert killed >= {"nats", "scheduler", "executor", "gateway", "keeper", "projector", "metrics", "postgres"}
    assert report["takeovers"] >= 1
    assert report["journal_full_refusals"] >= 1
    assert report["generations"] >= 2
    assert report["preemptions"] >= 1
