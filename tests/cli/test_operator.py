"""What an operator asks at night: why jobs wait and until when, which nodes are out, what happens, what runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tidegate.cli import moments, output, text
from tidegate.cli.exits import CommandError
from tidegate.cli.root import ORDER
from tidegate_events import events as e
from tidegate_events.telemetry import NodeSample, ProcessSample

from tests.cli import story
from tests.cli.conftest import Cli
from tests.cli.live import LiveGateway
from tests.support.cluster import spec

SECOND = 1_000_000_000
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()


def _rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.strip()]


# ---- the line ----


@pytest.fixture
def line(live: LiveGateway) -> LiveGateway:
    """One job runs and says how long, one waits behind it, one behind that."""
    cluster = live.cluster
    cluster.node("n1", cpu=1000)
    cluster.submit(spec(expected_seconds=3600, priority=9), "j-runs")
    cluster.settle()
    cluster.start("j-runs")
    cluster.submit(spec(priority=5), "j-second")
    cluster.submit(spec(), "j-third")
    cluster.advance(0.1)
    live.publish()
    return live


def test_the_line_shows_position_start_and_reason(line: LiveGateway, cli: Cli) -> None:
    before, ran, after = cli("jobs", "--start", "--json"), cli("jobs", "--start"), cli("jobs", "--start", "--json")
    assert ran.code == 0
    header, second, third, *legend = _rows(ran.out)
    assert header == ["POSITION", "JOB", "NAME", "TENANT", "PRIO", "STATE", "WAITS", "START", "REASON"]
    assert second[:2] == ["1", "j-second"]
    least, most = (_seconds_left(each.document) for each in (after, before))
    assert 3000 < least <= most <= 3600, "an hour, less the time that this takes"
    assert second[7] == "~in"
    assert second[8] in {text.span(seconds) for seconds in range(least, most + 1)}
    assert third[:2] == ["2", "j-third"]
    assert "unknown" in third
    assert "Priority:" in third
    assert legend[0][0] == "START:"


def _seconds_left(document: dict[str, Any]) -> int:
    """Return in how many whole seconds the first in line starts."""
    return int((document["queue"][0]["starts_at_ns"] - document["now_ns"]) // SECOND)


def test_the_line_is_the_gateway_s_document(line: LiveGateway, cli: Cli) -> None:
    document = cli("jobs", "--start", "--json").document
    assert [(one["position"], one["job_id"], one["starts_basis"]) for one in document["queue"]] == [
        (1, "j-second", "expected"),
        (2, "j-third", None),
    ]
    jobs = {job["job_id"]: job for job in cli("jobs", "--json").document["jobs"]}
    assert (jobs["j-second"]["position"], jobs["j-second"]["starts_basis"]) == (1, "expected")
    assert (jobs["j-runs"]["position"], jobs["j-runs"]["starts_at_ns"]) == (None, None)


def test_job_says_when_it_may_start(line: LiveGateway, cli: Cli) -> None:
    assert "may start in" in cli("job", "j-second").out
    assert "if jobs take as long as they expect" in cli("job", "j-second").out
    assert "earliest start unknown" in cli("job", "j-third").out


def test_nobody_waits(live: LiveGateway, cli: Cli) -> None:
    assert cli("jobs", "--start").err == "No job waits.\n"
    assert cli("jobs", "--start", "--json").document["queue"] == []


# ---- nodes ----


def test_nodes_out_of_use_say_why_and_since_when(live: LiveGateway, cli: Cli) -> None:
    cluster = live.cluster
    cluster.node("n1")
    live.publish()
    assert cli("nodes", "-R").err == "All 1 nodes take jobs.\n"
    unreachable = e.NodeUnreachable(id="u", at_ns=cluster.now, node="n1", incarnation=1)
    cluster.append("scheduler", "s1", unreachable)
    live.publish()
    header, row = _rows(cli("nodes", "--reasons").out)
    assert header == ["REASON", "SINCE", "FOR", "NODE", "STATE"]
    assert row[0] == "NoHeartbeat:"
    assert row[-2:] == ["n1", "unreachable"]
    assert " ".join(row[-5:-3]) == moments.date_and_time(cluster.now)
    assert cli("nodes", "--json").document["nodes"][0]["reason"]["code"] == "NoHeartbeat"


# ---- events ----


def test_events_show_the_newest_without_passes(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    ran = cli("events")
    assert ran.code == 0
    assert any("j-low" in line and "suspended at step 40" in line for line in ran.out.splitlines())
    assert any("n1" in line and "node joined with 2 CPU 2G" in line for line in ran.out.splitlines())
    assert "pass on the state" not in ran.out
    assert "pass on the state" in cli("events", "--passes").out
    assert "pass on the state" in cli("events", "--kind", "DecisionPass").out
    assert len(cli("events", "--limit", "3").out.splitlines()) == 3


def test_events_are_filtered(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    found = cli("events", "--job", "j-low", "--kind", "PreemptRequested", "--json").document["events"]
    assert [(event["kind"], event["job_id"]) for event in found] == [("PreemptRequested", "j-low")]
    whole = cli("events", "--all", "--json").document
    assert [event["seq"] for event in whole["events"]] == sorted(event["seq"] for event in whole["events"])
    assert whole["next"] is None
    assert cli("events", "--since", "1h", "--json").document["events"] == whole["events"][2:]  # the first two are older
    assert cli("events", "--until", "1h", "--json").document["events"] == whole["events"][:2]
    assert "No events match" in cli("events", "--until", "2020-01-01").err
    assert cli("events", "--tenant", "nobody", "--json").document["events"] == []
    assert cli("events", "--job", "j-nobody").code == 4


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--since", "yesterday"), 2),
        (("--until", "99999999999d"), 2),
        (("-f", "--until", "1m"), 2),
        (("--kind", "JobMoved"), 5),
        (("--limit", "5000"), 2),
    ],
)
def test_events_refuse_what_they_cannot_do(cli: Cli, arguments: tuple[str, ...], code: int) -> None:
    ran = cli("events", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err


def test_following_shows_what_comes(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from tidegate.cli.main import main; main()",
            "events",
            "-f",
            "--json",
            "--job",
            "j-high",
        ],
        env={**os.environ, "TIDEGATE_URL": live.url},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    kinds = [json.loads(process.stdout.readline())["kind"]]
    live.cluster.phase("j-high", "sampling")
    live.publish()
    while kinds[-1] != "QuotaChanged":
        kinds.append(json.loads(process.stdout.readline())["kind"])
    live.cluster.exit("j-high", "completed", exit_code=0)
    live.publish()
    while kinds[-1] != "JobCompleted":
        kinds.append(json.loads(process.stdout.readline())["kind"])
    process.send_signal(2)
    process.stdout.close()
    assert process.wait(30) == 130
    assert kinds.count("JobSubmitted") == kinds.count("JobCompleted") == 1
    assert kinds.index("PhaseChanged") < kinds.index("JobCompleted")


# ---- top ----


def test_top_shows_nodes_jobs_and_the_line(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    now = time.time_ns()
    about: dict[str, Any] = {"node": "n1", "seq": 1, "incarnation": 1}
    member: dict[str, Any] = {
        "tenant": "t",
        "job": "j-high",
        "attempt": 1,
        "rank": 0,
        "component": "learner",
        "replica": 0,
    }
    live.hear(
        NodeSample(at_ns=now, gauges={"cpu_ratio": 0.5, "memory_used_bytes": 2.0**30}, **about),
        ProcessSample(at_ns=now - 2 * SECOND, step=100, **member, **about),
        ProcessSample(at_ns=now, step=150, **member, **about),
    )
    ran = cli("top", "--once")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert "s1 leads" in lines[0]
    node = next(line.split() for line in lines if line.startswith("n1"))
    assert node[1] == "reachable"
    assert {"50%", "1G"} <= set(node)
    job = next(line.split() for line in lines if line.startswith("j-high"))
    assert job[3:8] == ["running", "n1", "learning", "150", "25"]
    assert any("j-low" in line and "unknown" in line for line in lines)
    document = cli("top", "--json").document
    assert document["jobs"][0]["live"]["steps_per_second"] == 25.0


def test_top_of_an_idle_cluster_says_so(cli: Cli) -> None:
    ran = cli("top")
    assert ran.code == 0
    assert "No job runs or waits." in ran.out


# ---- logs ----


def test_missing_bytes_are_marked_where_they_are_missing(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    live.logs["j-high", 1, "learner"] = b"a" * 100 + b"b" * 50
    live.gaps["j-high", 1, "learner"] = (100, 400)
    ran = cli("logs", story.HIGH)
    assert ran.out == "a" * 100 + "b" * 50
    assert ran.err == "--- 300 bytes are missing here: the log is bounded ---\n"
    document = cli("logs", story.HIGH, "--json").document
    assert document["text"] == "a" * 100 + "\n[tidegate: 300 bytes of output were not kept]\n" + "b" * 50
    assert (document["missing_bytes"], document["truncated"]) == (300, True)


def test_the_tail_is_the_last_lines(live: LiveGateway, cli: Cli) -> None:
    story.preempted_and_resumed(live)
    live.logs["j-low", 2, "learner"] = b"".join(b"line %d\n" % number for number in range(100))
    assert cli("logs", story.LOW, "--tail", "2").out == "line 98\nline 99\n"
    assert cli("logs", story.LOW, "-n", "1", "-f").out == "line 99\n"
    assert cli("logs", story.LOW, "-n", "0").out == ""


def test_an_empty_log_says_so_and_names_the_components(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    live.logs["j-high", 1, "learner"] = b""
    ran = cli("logs", story.HIGH)
    assert (ran.code, ran.out) == (0, "")
    assert "wrote nothing in attempt 1" in ran.err
    assert "simulator, learner" in ran.err


# ---- completion, help, progress ----


def complete(live: LiveGateway | None, words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    env = {
        **os.environ, "_TIDEGATE_COMPLETE": "complete_bash", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1), "TIDEGATE_URL": live.url if live else "http://127.0.0.1:9",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['tidegate']\nfrom tidegate.cli.main import main; main()"],
        env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


def test_the_shell_offers_commands_jobs_and_states(live: LiveGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    story.preempting(live)
    assert complete(live, "tidegate ev", monkeypatch) == ["events"]
    assert complete(live, "tidegate checkpoint res", monkeypatch) == ["restore"]
    assert complete(live, "tidegate logs j-", monkeypatch) == ["j-high", "j-low"]
    assert complete(live, "tidegate jobs --state sus", monkeypatch) == ["suspending", "suspended"]
    assert complete(None, "tidegate logs j-", monkeypatch) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_can_be_shown(shell: str) -> None:
    code = "import sys\nfrom tidegate.cli.main import main\n"
    code += f"sys.argv = ['tidegate', '--show-completion', '{shell}']\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "_TIDEGATE_COMPLETE" in done.stdout


@pytest.mark.parametrize("command", [name for name in ORDER if name not in ("trace", "timeline")])
def test_every_command_teaches_by_example_and_is_in_the_reference(offline: Cli, command: str) -> None:
    ran = offline(command, "--help")
    assert ran.code == 0
    assert f"tidegate {command}" in ran.out
    assert f"`tidegate {command}" in PAGE


def test_progress_is_said_after_two_seconds_also_where_nobody_looks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = threading.Event()
    monkeypatch.setattr(output, "note", lambda text: said.set())
    monkeypatch.setattr(output, "QUIET_SECONDS", 0.01)
    with output.Progress("Asking"):
        assert said.wait(10)


def test_a_quick_command_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(output, "note", said.append)
    for _ in range(20):
        with output.Progress("Asking"):
            pass
    assert said == []


def test_moments_are_spans_before_now_or_dates() -> None:
    now = time.time_ns()
    assert abs(moments.parse("90s", "--since") - (now - 90 * SECOND)) < 10 * SECOND
    assert moments.parse("2026-11-29T03:00:00Z", "--since") == 1_795_921_200 * SECOND
    assert moments.parse("2026-11-29T03:00:00+00:00", "--since") == 1_795_921_200 * SECOND
    with pytest.raises(CommandError, match="no moment"):
        moments.parse("noon", "--since")
