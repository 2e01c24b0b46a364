"""What operators do at the command line, against the real gateway and the scheduler's real fold."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tidegate.cli import amounts, moments
from tidegate.cli.exits import CommandError
from tidegate_events import events as e
from tidegate_events import subjects

from tests.cli import story
from tests.cli.conftest import Cli
from tests.cli.live import LiveGateway

SECOND_NS = 1_000_000_000


@pytest.fixture
def training(live: LiveGateway) -> LiveGateway:
    """One job that runs and one that waits behind it."""
    live.cluster.node("n1", cpu=2000, memory=2048)
    live.cluster.submit(story.training("low", priority=1), story.LOW)
    live.cluster.settle()
    live.cluster.start(story.LOW)
    live.publish()
    return live


def _words(out: str) -> str:
    return " ".join(out.split())


def test_a_job_is_held_and_released_and_says_by_whom(training: LiveGateway, cli: Cli) -> None:
    held = cli("hold", story.LOW, "--reason", "wrong data")
    assert (held.code, held.out) == (0, f"{story.LOW} goes on, and is held afterwards; now running\n")
    assert cli("hold", story.LOW).out.endswith("(nothing changed)\n")
    training.publish()
    assert training.cluster.job(story.LOW).held
    shown = _words(cli("job", story.LOW).out)
    assert "held by" in shown
    assert "ago: wrong data" in shown
    assert "hold asked by" in _words(cli("timeline", story.LOW).out)
    released = cli("release", story.LOW, "--json")
    assert (released.code, released.document["held"], released.document["changed"]) == (0, False, True)
    assert cli("release", story.LOW).code == 0, "what was asked last may be asked again"


def test_a_suspended_job_may_be_resumed_and_others_are_refused(training: LiveGateway, cli: Cli) -> None:
    refused = cli("resume", story.LOW)
    assert (refused.code, refused.out) == (5, "")
    assert "neither held nor suspended" in refused.err
    suspended = cli("suspend", story.LOW, "--reason", "demo")
    assert "shall save and leave" in suspended.out
    training.publish()
    assert training.cluster.job(story.LOW).suspend_requested
    assert cli("resume", story.LOW).code == 0
    assert cli("suspend", story.LOW).code == 2, "it needs a reason"
    assert cli("hold", "j-none").code == 4


def test_a_requeue_reaches_the_scheduler(training: LiveGateway, cli: Cli) -> None:
    assert cli("requeue", story.LOW, "--reason", "slow disk").code == 0
    training.publish()
    assert training.cluster.job(story.LOW).requeue_requested


def test_priority_and_limit_are_set(training: LiveGateway, cli: Cli) -> None:
    assert cli("job", "set", story.LOW, "priority", "40").out == f"{story.LOW} has priority 40; now running\n"
    assert cli("job", "set", story.LOW, "limit", "1h30m").out == f"{story.LOW} may run 1h30m in all; now running\n"
    training.publish()
    job = training.cluster.job(story.LOW)
    assert (job.priority, job.time_limit_seconds) == (40, 5400)
    shown = _words(cli("job", story.LOW).out)
    assert "priority 40 (submitted with 1)" in shown
    assert "time limit 1h30m (submitted with none)" in shown
    assert cli("job", "set", story.LOW, "limit", "none", "--json").document["time_limit_seconds"] is None
    assert cli("job", "set", story.LOW, "priority", "101").code == 5
    for wrong in (("priority", "high"), ("limit", "soon"), ("colour", "red")):
        assert cli("job", "set", story.LOW, *wrong).code == 2


def test_job_shows_what_is_no_sub_command(training: LiveGateway, cli: Cli) -> None:
    for arguments in (("job", story.LOW, "--json"), ("job", "--json", story.LOW), ("job", "show", story.LOW, "--json")):
        assert cli(*arguments).document["job_id"] == story.LOW
    assert cli("job", "--help").code == 0
    assert "--all" in cli("job", "show", "--help").out


def test_a_node_is_drained_and_resumed(training: LiveGateway, cli: Cli) -> None:
    drained = cli("node", "drain", "n1", "--deadline", "30m", "--reason", "disk")
    assert drained.out == "n1 takes no jobs; its 1 sandboxes leave within 30m00s\n"
    training.publish()
    left_ns = training.cluster.state.nodes["n1"].drain_deadline_ns - time.time_ns()
    assert 1700 * SECOND_NS < left_ns <= 1800 * SECOND_NS
    for command in (("nodes",), ("node", "list"), ("nodes", "-R")):
        shown = _words(cli(*command).out)
        assert "reachable, draining" in shown
        assert "disk; its jobs leave within 29m" in shown
    assert cli("node", "resume", "n1").out == "n1 takes jobs\n"
    assert "takes jobs (nothing changed)" in cli("node", "resume", "n1").out
    assert cli("node", "drain", "n9", "--deadline", "1m", "--reason", "x").code == 4
    assert cli("node", "drain", "n1", "--deadline", "1m").code == 2


def test_a_lost_node_is_forgotten(training: LiveGateway, cli: Cli) -> None:
    assert cli("node", "forget", "n1").code == 5
    training.cluster.silence("n1")
    training.cluster.advance(31)
    training.publish()
    assert cli("node", "forget", "n1", "--reason", "scrapped").out == "n1 is forgotten\n"
    assert cli("node", "forget", "n1").code == 4
    training.publish()
    assert "n1" not in training.cluster.state.nodes


def test_a_queue_is_created_set_stopped_and_listed(training: LiveGateway, cli: Cli) -> None:
    made = cli("queue", "create", "lab-a", "--weight", "3", "--guaranteed", "cpu=2,mem=1G", "--ceiling", "gpu=4")
    assert made.out == "lab-a: weight 3, guaranteed 2 CPU 1G, at most 4 GPU\n"
    assert cli("queue", "create", "lab-a").code == 5
    assert cli("queue", "set", "lab-a", "--ceiling", "none").out == "lab-a: weight 3, guaranteed 2 CPU 1G\n"
    assert cli("queue", "set", "lab-a").code == 2
    assert cli("queue", "stop", "t", "--reason", "budget").out == "t: weight 1, stopped\n"
    training.publish()
    assert training.cluster.state.queues["t"].stopped
    rows = [line.split() for line in cli("queue", "list").out.splitlines()]
    assert rows[1][:4] == ["lab-a", "open", "3", "0"]
    assert rows[2][:3] == ["t", "stopped", "1"]
    assert "budget" in rows[2]
    assert cli("queue", "start", "t", "--json").document["stopped"] is False
    assert cli("queue", "set", "nobody", "--weight", "2").code == 4
    told = _words(cli("events", "--kind", "QueueChanged").out)
    assert "queue lab-a (weight 3, guaranteed 2 CPU 1G, at most 4 GPU) set by" in told


def test_maintenance_is_planned_listed_and_cancelled(training: LiveGateway, cli: Cli) -> None:
    planned = cli("maintenance", "plan", "kernel", "--node", "n1", "--start", "2h", "--end", "4h")
    assert planned.code == 0
    assert planned.out.startswith("kernel: ahead, ")
    training.publish()
    window = training.cluster.state.maintenance["kernel"]
    assert window.end_ns - window.start_ns == 4 * 3600 * SECOND_NS
    listed = cli("maintenance", "ls")
    assert listed.out.splitlines()[1].split()[:2] == ["kernel", "ahead"]
    assert "4h00m" in listed.out
    assert "maintenance kernel in 1h59m" in _words(cli("nodes").out)
    assert cli("maintenance", "plan", "kernel", "--node", "n1", "--start", "3h", "--end", "1h").code == 5
    assert cli("maintenance", "cancel", "kernel").code == 0
    assert cli("maintenance", "ls", "--json").document == {"maintenance": []}
    assert cli("maintenance", "ls", "--all", "--json").document["maintenance"][0]["state"] == "cancelled"
    assert cli("maintenance", "cancel", "other").code == 4


def _dry_run(live: LiveGateway, **said: Any) -> None:
    live.asker.answerers[subjects.ask_scheduler("dry-run")] = lambda question: said


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    spec = {"name": "hello", "command": ["true"], "resources": {"cpu_millis": 500, "memory_mib": 64}}
    (tmp_path / "job.json").write_text(json.dumps(spec))
    return str(tmp_path / "job.json")


def test_a_dry_run_says_what_would_become_of_the_job(training: LiveGateway, cli: Cli, job_file: str) -> None:
    _dry_run(training, verdict="starts_now", nodes=["n1"], starts_at_ns=1, starts_basis="now")
    ran = cli("submit", job_file, "--dry-run")
    assert (ran.code, ran.out) == (0, "It would start now on n1. Nothing was submitted.\n")
    displaced = [{"job": story.LOW, "tenant": "t", "priority": 1, "how": "hands_back"}]
    soon_ns = time.time_ns() + 60 * SECOND_NS
    _dry_run(
        training, verdict="displaces", nodes=["n1"], starts_at_ns=soon_ns, starts_basis="deadline", displaces=displaced
    )
    ran = cli("submit", job_file, "--dry-run", "--priority", "90")
    assert "displace one job and start on n1" in ran.out
    assert "hands back what it has beyond its guarantee" in " ".join(ran.out.split())
    assert story.LOW in ran.out
    _dry_run(training, verdict="waits", position=3, reasons=[{"code": "QuotaReached", "detail": "8 of 8 GPU"}])
    ran = cli("submit", job_file, "--dry-run")
    assert "It would wait at place 3 in the queue" in ran.out
    assert "why: QuotaReached: 8 of 8 GPU" in ran.out
    assert cli("submit", job_file, "--dry-run", "--json").document["verdict"] == "waits"
    _dry_run(training, verdict="never", reasons=[{"code": "NoNode"}])
    assert cli("submit", job_file, "--dry-run").code == 1
    assert len(cli("jobs", "--json").document["jobs"]) == 1, "nothing was submitted"


def test_a_dry_run_is_refused_as_a_submission_is(training: LiveGateway, cli: Cli, job_file: str) -> None:
    assert cli("submit", job_file, "--dry-run", "--priority", "101").code == 5


def test_cordons_hints_and_progress_are_told_in_words(training: LiveGateway, cli: Cli) -> None:
    cluster = training.cluster
    member = cluster.members(story.LOW)[0]
    cluster.node_fact(story.LOW, member, e.ProgressReported, _node=False, progress_millis=255, step=7)
    stamp: dict[str, Any] = {"at_ns": cluster.now, "node": "n1"}
    cordoned = e.NodeCordoned(id="cordoned", **stamp, incarnation=1, reasons=(e.Reason(code="FailsJobs"),))
    cluster.append("scheduler", "s1", cordoned, e.ImagePrefetchHinted(id="hinted", **stamp, image="torch"))
    training.publish()
    told = _words(cli("events").out)
    assert "n1 keeps failing jobs: nothing new is placed there — FailsJobs" in told
    assert "image torch will probably be needed there next" in told
    assert "NodeCordoned: FailsJobs" in _words(cli("nodes", "-R").out)
    assert "25.5% done at step 7" in _words(cli("timeline", story.LOW).out)
    assert "25.5% done" in _words(cli("job", story.LOW).out)


@pytest.mark.parametrize(
    ("given", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800)]
)
def test_spans_are_read(given: str, seconds: int) -> None:
    assert moments.seconds(given, "limit") == seconds
    assert moments.ahead(given, "--start", 5) == 5 + seconds * SECOND_NS


def test_what_lies_ahead_is_not_said_to_be_a_time_before_now() -> None:
    with pytest.raises(CommandError, match="no moment in time") as refused:
        moments.ahead("soon", "--deadline", 5)
    assert "a time span ahead" in str(refused.value.remedy)


@pytest.mark.parametrize("given", ["", "soon", "1h 30m", "5", "-1h", "1w"])
def test_what_is_no_span_is_refused(given: str) -> None:
    with pytest.raises(CommandError, match="no time span"):
        moments.seconds(given, "limit")


def test_amounts_are_read_and_shown() -> None:
    read = amounts.parse("cpu=0.5,mem=1.5G,gpu=2", "--ceiling")
    assert read == {"cpu_millis": 500, "memory_mib": 1536, "gpus": 2}
    assert amounts.shown(read) == "0.5 CPU 1.5G 2 GPU"
    assert amounts.parse("none", "--ceiling") is None
    for wrong in ("", "cpu", "cpu=x", "mem=5", "gpu=0.5", "disk=1", "cpu=1,cpu=2"):
        with pytest.raises(CommandError, match="no list of amounts"):
            amounts.parse(wrong, "--ceiling")
