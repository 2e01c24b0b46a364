"""`tidegate simulate` as people and programs call it: a table, a document, a picture, and errors."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
import sys
from io import FileIO
from pathlib import Path

import pytest
from tidegate.cli import exits, output

from tests.support.libraries import needed

TRACE = """job_id,user,num_gpu,submit_time,duration
0,a,8,0,100
1,b,2,5,50
2,b,16,6,30
"""


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "small.csv"
    path.write_text(TRACE)
    return str(path)


def tidegate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [str(Path(sys.executable).parent / "tidegate"), "simulate", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def test_people_read_a_table_that_states_what_was_modelled(trace: str) -> None:
    ran = tidegate("--trace", trace, "--nodes", "2x8", "--seed", "3")
    assert (ran.returncode, ran.stderr) == (0, "")
    for told in ("small, 3 jobs on 2 nodes", "elastic, seed 3", "checkpoint 10s", "3 completed", "philly-000002"):
        assert told in ran.stdout


def test_programs_read_one_document_which_is_the_same_every_time(trace: str) -> None:
    ran = [tidegate("--trace", trace, "--nodes", "2x8", "--json", hash_seed=seed) for seed in ("1", "2")]
    assert ran[0].stdout == ran[1].stdout
    found = json.loads(ran[0].stdout)
    assert (found["policy"], found["seed"], found["nodes"], found["costs"]["start_ms"]) == ("elastic", 0, 2, 1000)
    # the second is let in beside the first; the gang of two nodes comes when both have ended
    assert {job["job"]: job["ended_ns"] / 1e9 for job in found["jobs"]} == {
        "philly-000000": 101,
        "philly-000001": 56,
        "philly-000002": 132,
    }
    assert found["measures"]["completion"]["avg_s"] == pytest.approx((101 + 51 + 126) / 3, abs=0.001)


def test_costs_and_a_policy_come_from_files(trace: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text('{"start_ms": 30000}')
    (tmp_path / "policy.json").write_text('{"rules": "elastic", "estimates": true}')
    files = ("--costs", str(tmp_path / "costs.json"), "--policy", str(tmp_path / "policy.json"))
    found = json.loads(tidegate("--trace", trace, "--nodes", "2x8", "--json", *files).stdout)
    assert found["policy"] == "elastic with estimates"
    assert found["jobs"][0]["ended_ns"] == 130 * 10**9


def test_a_result_says_which_policy_it_is_of_and_on_which_nodes(trace: str, tmp_path: Path) -> None:
    queue = {"tenant": "a", "weight": 2, "ceiling": {"gpus": 8}}
    chosen = {"rules": "elastic", "parameters": {"ageing_seconds": 0}, "queues": [queue]}
    (tmp_path / "policy.json").write_text(json.dumps(chosen))
    picture = tmp_path / "run.svg"
    asked = ("--trace", trace, "--nodes", "2x8", "--policy", str(tmp_path / "policy.json"), "--picture", str(picture))
    table = tidegate(*asked)
    assert "small, 3 jobs on 2 nodes (2x8)" in table.stdout
    stated = "elastic, ageing_seconds 0, queue a weight 2 ceiling 8 gpus"
    assert stated in " ".join(table.stdout.split())
    assert stated in picture.read_text()
    found = json.loads(tidegate(*asked, "--json").stdout)
    assert (found["nodes"], found["nodes_as"], found["knows_durations"]) == (2, "2x8", False)
    assert found["parameters"]["ageing_seconds"] == 0
    assert found["parameters"]["preemptions_max"] > 0
    assert [(each["tenant"], each["weight"]) for each in found["queues"]] == [("a", 2)]


def test_the_result_is_told_although_it_cannot_be_drawn(trace: str, tmp_path: Path) -> None:
    (tmp_path / "run.svg").symlink_to(tmp_path / "none" / "run.svg")
    ran = tidegate("--trace", trace, "--nodes", "2x8", "--picture", str(tmp_path / "run.svg"))
    assert ran.returncode == exits.REFUSED
    assert "3 completed" in ran.stdout
    assert "cannot be written" in ran.stderr


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("elastic", "rejected             1  philly-000002  Inadmissible: "),
        (
            "fifo",
            "rejected             1  philly-000002  Inadmissible: all nodes together could hold 1 of its 2 members",
        ),
    ],
)
def test_why_a_job_did_not_complete_is_in_the_table_and_in_the_document(trace: str, policy: str, told: str) -> None:
    ran = tidegate("--trace", trace, "--nodes", "1x8", "--policy", policy)
    assert told in ran.stdout
    assert "small, 3 jobs on 1 node (1x8)" in ran.stdout
    found = json.loads(tidegate("--trace", trace, "--nodes", "1x8", "--policy", policy, "--json").stdout)
    by_name = {job["job"]: job for job in found["jobs"]}
    assert by_name["philly-000002"]["reasons"][0]["code"] == "Inadmissible"
    assert by_name["philly-000000"]["reasons"] == []
    assert by_name["philly-000002"]["outcome"] == ("rejected" if "rejected" in told else None)


def test_a_picture_is_drawn_where_it_is_asked_for(trace: str, tmp_path: Path) -> None:
    needed("matplotlib")
    digests = []
    for name in ("one.svg", "two.svg"):
        ran = tidegate("--trace", trace, "--nodes", "2x8", "--picture", str(tmp_path / name))
        assert ran.returncode == 0, ran.stderr
        digests.append(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--nodes", "8y8"), "the nodes '8y8' are not understood; accepted is COUNTxGPUS"),
        (("--nodes", "2x8", "--policy", "nope"), "there is no policy 'nope': accepted are elastic"),
        (("--nodes", "2x8", "--costs", "none.json"), "none.json cannot be read"),
        (("--nodes", "2x8", "--picture", "run.gif"), "Accepted are .png and .svg"),
        (("--nodes", "2x8", "--seed", "-1"), "--seed"),
    ],
)
def test_what_cannot_be_used_is_said_before_anything_is_simulated(
    trace: str, arguments: tuple[str, ...], told: str
) -> None:
    ran = tidegate("--trace", trace, *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert told in ran.stderr.replace("\n", " ")


def test_a_terminal_shows_a_bar_of_the_jobs_that_have_ended(trace: str) -> None:
    ours, theirs = pty.openpty()
    ran = subprocess.Popen(
        [str(Path(sys.executable).parent / "tidegate"), "simulate", "--trace", trace, "--nodes", "2x8"],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        while part := _read(terminal):
            shown += part
    assert ran.wait(120) == 0
    text = shown.decode()
    assert "Simulating small, jobs that have ended" in text
    assert "\u2501" in text
    assert "0/3" in text


def _read(terminal: FileIO) -> bytes:
    """Return what is shown next; a terminal that nobody writes to any more has ended."""
    try:
        return terminal.read(4096) or b""
    except OSError:
        return b""


def test_where_nobody_looks_a_line_says_how_much_is_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "QUIET_SECONDS", 3600.0)
    with output.Progress("Reading") as progress:
        progress.update("Simulating, jobs that have ended", 2, 3, at_once=True)
        progress.update("Deciding", at_once=True)
    assert capsys.readouterr().err == "Simulating, jobs that have ended: 2 of 3\nDeciding\n"


def test_an_error_is_a_document_too(trace: str) -> None:
    ran = tidegate("--trace", trace, "--nodes", "8y8", "--json")
    found = json.loads(ran.stdout)
    assert (ran.returncode, found["exit_code"]) == (2, 2)
    assert "accepted is COUNTxGPUS" in found["message"]
