"""A minute of chaos from one seed, by the benchmark's own command: nothing lost, doubled, left behind or stuck."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEED = "8"
RUN_SECONDS_MAX = 400

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.isolation,
    pytest.mark.timeout(RUN_SECONDS_MAX + 30),
    pytest.mark.long,
]


def test_a_minute_of_chaos(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    done = subprocess.run(
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
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.stdout, done.stderr[-20_000:]
    report = json.loads(done.stdout)
    told = f"{report['trouble']}\n{done.stderr}"
    wrong = ("lost", "duplicated", "double_starts", "leaked_sandboxes", "stuck_jobs", "jobs_failed", "unanswered")
    assert {name: report[name] for name in wrong} == dict.fromkeys(wrong, 0), told
    assert report["acked"] == report["found"] == report["jobs_completed"] > 40, told
    assert report["decisions_verified"] == report["decisions"] > 100, told
    assert report["verified"], told
    assert done.returncode == 0, told

    # It was chaos: each kind was killed, the lead went over, the journal was full and went on in another generation.
    killed = {name.partition("-")[0] for name in report["kills"]}
    assert killed >= {"nats", "scheduler", "executor", "gateway", "keeper", "projector", "metrics", "postgres"}
    assert report["takeovers"] >= 1
    assert report["journal_full_refusals"] >= 1
    assert report["generations"] >= 2
    assert report["preemptions"] >= 1
