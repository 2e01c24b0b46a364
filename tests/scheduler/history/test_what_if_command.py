"""`tidegate history what-if` on files: what it prints first, what a program gets, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tidegate.cli.main import run
from tidegate_scheduler.simulator import picture

from tests.scheduler.history.files import a_history, write
from tests.support.cluster import Cluster, spec

JOURNALS = Path(__file__).parents[2] / "golden" / "journals"
STORM = str(JOURNALS / "preemption-storm.tgj")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def what_if(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `tidegate history what-if` where there is no stack and no bus."""
    monkeypatch.delenv("TIDEGATE_BUS_URL", raising=False)
    monkeypatch.setenv("TIDEGATE_HOME", str(tmp_path / "no-stack"))

    def ran(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["history", "what-if", *arguments])
        return code, *capsys.readouterr()

    return ran


def policy(path: Path, **fields: Any) -> str:
    (path / "other.json").write_text(json.dumps({"rules": "elastic", **fields}))
    return str(path / "other.json")


def test_first_comes_how_far_it_can_be_believed(what_if: Run, tmp_path: Path) -> None:
    code, out, _ = what_if(STORM, "--policy", policy(tmp_path, parameters={"preemptions_max": 0}))
    assert code == 0
    said = [
        out.index(part)
        for part in (
            "calibration",
            "first decision that differs",
            "what it comes to",
            "jobs that differ most",
            "not modelled",
        )
    ]
    assert said == sorted(said)
    for part in (
        "policy 1 as recorded",
        "7 jobs that ran to an end",
        "GPU-H LOST",
        "j-high0",
        "0 (-4)",
        "in pass 22",
        "start 0.5s (11 times seen)",
        "what if   ",
    ):
        assert part in out, part


def test_for_programs_it_is_one_document(what_if: Run, tmp_path: Path) -> None:
    code, out, _ = what_if("--file", STORM, "--policy", policy(tmp_path), "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["calibration"]["jobs"] == 7
    assert answer["calibration"]["happened"]["preemptions"] == 4
    assert answer["compared"]["first"]["seq"] > 0
    assert [group["name"] for group in answer["tenants"]] == ["lab-a"]
    assert {"job", "completion_s", "waiting_s", "preemptions", "lost_gpu_s", "censored"} <= set(answer["jobs"][0])
    assert answer["not_modelled"]
    assert {cost["name"]: cost["seen"] for cost in answer["measured"]}["start_ms"] == 11
    assert answer["costs"]["start_ms"] == answer["measured"][0]["value"]
    assert what_if("--file", STORM, "--policy", policy(tmp_path), "--json")[1] == out


def test_a_part_of_the_history_begins_with_its_state(what_if: Run, tmp_path: Path) -> None:
    file = str(write(tmp_path / "history.tgj", a_history().frames))
    code, out, _ = what_if(file, "--policy", "elastic", "--from", "8", "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["from_seq"] == 8
    assert {job["job"] for job in answer["jobs"]} == {"low", "high", "last"}
    code, out, _ = what_if(file, "--policy", "elastic", "--to", "8")
    assert code == 0
    assert "no job ran to an end in the recording and in the model, so nothing says how good it is" in out
    assert "how long it takes is assumed: 1 job\n" in out


def test_jobs_that_never_end_under_the_other_policy_are_named(what_if: Run, tmp_path: Path) -> None:
    file = str(write(tmp_path / "history.tgj", a_history().frames))
    code, out, _ = what_if(file, "--policy", policy(tmp_path, queues=[{"tenant": "t", "stopped": True}]))
    assert code == 0
    assert "NEVER END under elastic: 3 jobs (high, last, low): QueueStopped" in out
    assert "no end (was completed" in out


def test_where_nothing_can_be_compared_nothing_is_said_to_be_the_same(what_if: Run, tmp_path: Path) -> None:
    """Nobody runs in the recording, nor under the other policy: that is no proof of anything."""
    cluster = Cluster()
    cluster.submit(spec(1000), "alone")
    file = str(write(tmp_path / "nothing.tgj", cluster.frames))
    code, out, _ = what_if(file, "--policy", "fifo")
    assert code == 0
    assert "no job could be compared: none ended in both simulations" in out
    assert "there is no recorded pass to compare with" in out
    assert "nothing: no job ran to an end in both simulations" in out
    assert "NEVER END under fifo: 1 job (alone): Inadmissible: no node has the image host" in out
    assert "1 job\n" in out


def test_who_is_refused_by_both_is_no_job_that_differs(what_if: Run, tmp_path: Path) -> None:
    """It is refused a little later in the model: that is nobody's waiting time."""
    poison = str(JOURNALS / "poison.tgj")
    code, out, _ = what_if(poison, "--policy", policy(tmp_path))
    assert code == 0
    answer = json.loads(what_if(poison, "--policy", policy(tmp_path), "--json")[1])
    refused = [job["job"] for job in answer["jobs"] if set(job["outcomes"]) == {"rejected"}]
    assert sorted(refused) == ["j-giant", "j-many"]
    differ = out[out.index("COMPLETION") :]
    assert "assumed: 2 jobs" in differ  # in the notes
    assert not any(job in differ for job in refused)


def test_nodes_that_were_away_at_the_end_are_named_beside_who_never_ends(what_if: Run, tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.node("n1", 4000)
    cluster.node("n2", 8000)
    small = cluster.submit(spec(1000))
    cluster.settle()
    cluster.start(small)
    cluster.silence("n2")
    cluster.advance(1)
    cluster.submit(spec(6000), "big")
    cluster.advance(5)
    cluster.exit(small, "completed")
    file = str(write(tmp_path / "away.tgj", cluster.frames))
    code, out, _ = what_if(file, "--policy", "elastic")
    assert code == 0
    assert "REJECTED under elastic: 1 job (big): Inadmissible: no node is large enough" in out
    assert "may lack nodes, not a policy: 1 node (n2) away when the recording ended" in out
    assert json.loads(what_if(file, "--policy", "elastic", "--json")[1])["away"] == ["n2"]


def test_all_three_runs_are_drawn(what_if: Run, tmp_path: Path) -> None:
    code, _, _ = what_if(STORM, "--policy", "elastic", "--picture", str(tmp_path / "storm.svg"))
    assert code == 0
    text = (tmp_path / "storm.svg").read_text()
    for part in ("as it happened", "policy 1 as recorded", "elastic", "j-high0"):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((STORM,), 2, "--policy"),
        ((STORM, "--policy", "wishful"), 2, "there is no policy 'wishful': accepted are elastic"),
        ((STORM, "--file", STORM, "--policy", "elastic"), 2, "given twice"),
        ((STORM, "--policy", "elastic", "--picture", "run.gif"), 2, "Accepted are .png and .svg."),
        ((STORM, "--policy", "elastic", "--from", "9999"), 4, "not in this history"),
        ((STORM, "--policy", "elastic", "--from", "40", "--to", "30"), 4, "--to lies before --from"),
        ((STORM, "--policy", "elastic", "--from", "noon"), 2, "no moment"),
        (("nowhere.tgj", "--policy", "elastic"), 3, "cannot be read"),
        (("--policy", "elastic"), 3, "stack"),
    ],
)
def test_what_cannot_be_answered_says_why(what_if: Run, arguments: tuple[str, ...], code: int, words: str) -> None:
    found, out, err = what_if(*arguments)
    assert (found, out) == (code, "")
    assert words in err


def test_nothing_happened_or_nothing_can_draw(what_if: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.node("n1")
    file = str(write(tmp_path / "empty.tgj", cluster.frames))
    code, _, err = what_if(file, "--policy", "elastic")
    assert (code, "No job was there" in err) == (4, True)
    monkeypatch.setattr(picture, "find_spec", lambda _name: None)
    code, _, err = what_if(STORM, "--policy", "elastic", "--picture", str(tmp_path / "storm.png"))
    assert code == 3
    assert "tidegate-server[picture]" in err
