"""Every command against the real gateway: for people, for programs, and when it is refused."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.handle import Checkpoint
from tidegate.checkpoint.store import Committed
from tidegate.client.restoring import carry_out
from tidegate.tiers import moving
from tidegate.tiers.tiers import Settings, Tiers
from tidegate_events import subjects

from tests.cli import story
from tests.cli.conftest import Cli
from tests.cli.live import LiveGateway
from tests.sdk.tiers.moved import Node
from tests.support import stores

NOW_SPEC: dict[str, Any] = {
    "name": "hello",
    "command": ["python", "train.py"],
    "resources": {"default": {"minimum": {"cpu_millis": 500, "memory_mib": 64}}},
}


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "code").mkdir(parents=True)
    (project / "code" / "train.py").write_text("print('hello')\n")
    (project / "job.json").write_text(json.dumps({**NOW_SPEC, "workdir": "code"}))
    return project / "job.json"


def _rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.strip()]


# ---- jobs, nodes, status ----


def test_jobs_shows_one_line_a_job_with_its_reason(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    ran = cli("jobs")
    assert ran.code == 0
    header, high, low = _rows(ran.out)
    assert header == [
        *("JOB", "NAME", "TENANT", "PRIO", "STATE", "ATTEMPT", "NODE"),
        *("PHASE", "STEP", "AGE", "POSITION", "START", "REASON"),
    ]
    assert high[:8] == ["j-high", "high", "t", "50", "running", "1", "n1", "learning"]
    assert low[:7] == ["j-low", "low", "t", "1", "suspended", "1", "-"]
    assert low[10:13] == ["1", "unknown", "Reserved:"]


def test_jobs_filters_and_bounds(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    assert [job["job_id"] for job in cli("jobs", "--state", "suspended", "--json").document["jobs"]] == ["j-low"]
    both = cli("jobs", "--state", "suspended", "--state", "running", "--json").document["jobs"]
    assert [job["job_id"] for job in both] == ["j-high", "j-low"]
    assert len(cli("jobs", "--limit", "1", "--json").document["jobs"]) == 1
    assert cli("jobs", "--tenant", "nobody", "--json").document == {"jobs": []}
    assert "tidegate submit" in cli("jobs", "--tenant", "nobody").err


def test_a_parameter_that_the_gateway_refuses_lists_what_is_accepted(cli: Cli) -> None:
    ran = cli("jobs", "--state", "sleeping")
    assert (ran.code, ran.out) == (5, "")
    assert "?state" in ran.err
    assert "accepted: one of pending," in ran.err


def test_nodes_show_what_is_taken_of_what_is_there(live: LiveGateway, cli: Cli) -> None:
    live.cluster.node("n2", cpu=64000, memory=256 * 1024, gpus=2, levels=("trusted", "guarded"))
    story.preempting(live)
    ran = cli("nodes")
    header, *rows = _rows(ran.out)
    assert header == ["NODE", "STATE", "CPU", "MEM", "GPU", "LEVELS", "SANDBOXES", "REASON"]
    assert ["n1", "reachable"] in [row[:2] for row in rows]
    assert ["n2", "reachable", "0/64", "0M/256G", "0/2", "trusted,guarded", "-"] in rows or "j-" in ran.out
    assert {node["node"] for node in cli("nodes", "--json").document["nodes"]} == {"n1", "n2"}
    assert cli("nodes", "--state", "lost", "--json").document == {"nodes": []}
    assert "tidegate-executor" in cli("nodes", "--state", "lost").err


def test_nodes_show_where_they_stand_if_one_of_them_says_so(live: LiveGateway, cli: Cli) -> None:
    live.cluster.node("n2", rack="r7", switch="leaf-3")
    live.cluster.node("n3", rack="r7")
    live.cluster.node("n4", switch="leaf-9")
    story.preempting(live)
    header, *rows = _rows(cli("nodes").out)
    place = header.index("PLACE")
    said = {row[0]: " ".join(row[place:-2]) for row in rows if row[0] != "n1"}
    assert said == {"n2": "leaf-3 in r7", "n3": "rack r7", "n4": "leaf-9"}
    assert any("node joined" in line and "at leaf-3 in r7" in line for line in cli("events").out.splitlines())


def test_status_is_ok_while_somebody_leads(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    ran = cli("status")
    assert ran.code == 0
    assert "s1 (epoch 1" in ran.out
    assert "1 running" in ran.out
    document = cli("status", "--json").document
    assert document["gateway_url"] == live.url
    assert document["jobs"] == {"running": 1, "suspended": 1}


def test_status_fails_when_nobody_leads_any_more(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    del live.asker.answerers[subjects.ask_scheduler("leader")]
    ran = cli("status")
    assert ran.code == 1
    assert "NONE ANSWERS" in ran.out
    assert "s1 (epoch 1" in ran.out, "who led last"
    assert cli("status", "--json").code == 1


# ---- job ----


def test_job_tells_the_whole_story_relative_to_its_submission(live: LiveGateway, cli: Cli) -> None:
    story.preempted_and_resumed(live)
    ran = cli("job", story.LOW, "--all")
    assert ran.code == 0
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert any(line.startswith("+0.000s submitted by ada, priority 1, at 20") for line in lines)
    assert "+0.400s running" in lines
    for part in (
        "+1.400s phase sampling",
        "quota shall be [simulator",
        "asked to save and leave within 30 s, for j-high",
        "checkpoint 000000000000 saved at step 640 (model, optimizer, state: 12.0KiB)",
        "suspended at step 640, by its own word, no step lost",
        "to continue from step 640",
        "resumed from checkpoint 000000000000 at step 640",
        "completed: mean_return 199.5",
    ):
        assert any(part in line for line in lines), part
    assert "preempted once, last resumed at step 640, 0 steps lost" in lines
    times = [float(line.split("s ")[0]) for line in lines if line.startswith("+")]
    assert times == sorted(times)


def test_job_sums_long_routine_up_unless_asked_for_all(live: LiveGateway, cli: Cli) -> None:
    story.preempted_and_resumed(live)
    short, whole = cli("job", story.LOW).out, cli("job", story.LOW, "--all").out
    assert "phase changes" in short
    assert "phase changes" not in whole
    assert len(short.splitlines()) < len(whole.splitlines()) - 15


def test_job_says_why_it_waits(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    ran = cli("job", story.LOW)
    assert "why" in ran.out
    assert "place 1 in the queue" in ran.out
    detail = cli("job", story.LOW, "--json").document
    assert detail["why"]["answered_by"] == "scheduler"
    assert detail["timeline"]["events"]


def test_job_shows_quotas_and_what_the_kernel_enforces(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    ran = cli("job", story.HIGH)
    assert "IN THE KERNEL" in ran.out
    assert "not yet" in ran.out


def test_an_unknown_job_is_not_found(cli: Cli) -> None:
    ran = cli("job", "j-nobody")
    assert (ran.code, ran.out) == (4, "")
    assert "there is no job j-nobody" in ran.err
    as_json = cli("job", "j-nobody", "--json")
    assert as_json.code == 4
    assert as_json.document["error"] == "NotFound"
    assert as_json.document["code"] == "unknown_job"
    assert as_json.err == ""


# ---- submit ----


def test_submit_sends_the_directory_and_the_job(live: LiveGateway, cli: Cli, job_file: Path) -> None:
    ran = cli("submit", str(job_file), "--tenant", "lab", "--priority", "7", "--json")
    assert ran.code == 0
    assert set(ran.document) == {"job_id", "trace_id", "tenant", "state"}
    assert ran.document["tenant"] == "lab"
    detail = cli("job", ran.document["job_id"], "--json").document
    assert detail["priority"] == 7
    assert detail["spec"]["source"]["argv"]
    with tarfile.open(live.data_dir / "blobs" / detail["spec"]["workdir"]) as tar:
        assert tar.getnames() == ["train.py"]


def test_submit_prints_id_state_and_trace_for_people(cli: Cli, job_file: Path) -> None:
    ran = cli("submit", str(job_file))
    assert ran.code == 0
    job_id, state, trace, trace_id = ran.out.split()
    assert job_id.startswith("j-")
    assert (state, trace, len(trace_id)) == ("pending", "trace", 32)


def test_the_same_key_gives_the_same_job_and_another_job_under_it_is_refused(cli: Cli, job_file: Path) -> None:
    first = cli("submit", str(job_file), "--idempotency-key", "nightly", "--json").document
    assert cli("submit", str(job_file), "--idempotency-key", "nightly", "--json").document == first
    ran = cli("submit", str(job_file), "--idempotency-key", "nightly", "--priority", "9")
    assert ran.code == 5
    assert "idempotency key" in ran.err


def test_a_refused_job_lists_every_problem_and_takes_nothing(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**NOW_SPEC, "priority": 1000, "cpus": 4, "timeout": 5}))
    ran = cli("submit", str(path))
    assert (ran.code, ran.out) == (5, "")
    for field in ("priority", "cpus", "timeout"):
        assert f"  {field}: " in ran.err
    assert ran.err.count("accepted: ") == 3
    as_json = cli("submit", str(path), "--json")
    assert as_json.code == 5
    assert {problem["path"] for problem in as_json.document["problems"]} == {"priority", "cpus", "timeout"}
    assert cli("jobs", "--json").document == {"jobs": []}


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_file_that_is_no_job_is_a_usage_error(cli: Cli, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "job.json"
    if content is not None:
        path.write_text(content)
    ran = cli("submit", str(path))
    assert (ran.code, ran.out) == (2, "")
    assert "job.json" in ran.err


def test_a_directory_that_leads_out_of_itself_is_not_sent(live: LiveGateway, cli: Cli, job_file: Path) -> None:
    (job_file.parent / "code" / "link").symlink_to("../../../etc/passwd")
    ran = cli("submit", str(job_file))
    assert ran.code == 2
    assert "leaves the working directory" in ran.err
    assert not list((live.data_dir / "blobs").iterdir())


def test_a_secret_goes_by_name_and_its_value_nowhere(
    live: LiveGateway, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "CANARY-7730")
    monkeypatch.setattr(sys, "argv", ["tidegate", "submit", "--", "CANARY-7730"])
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**NOW_SPEC, "secrets": {"WANDB_API_KEY": "wandb"}}))
    ran = cli("submit", str(path), "--json")
    assert ran.code == 0
    detail = cli("job", ran.document["job_id"], "--json")
    assert detail.document["spec"]["secrets"] == {"WANDB_API_KEY": "wandb"}
    live.publish()
    journal = "".join(str(recorded) for recorded in live.cluster.frames)
    assert "wandb" in journal
    for place in (ran.out, ran.err, detail.out, journal):
        assert "CANARY" not in place


@pytest.fixture
def running(live: LiveGateway) -> Iterator[Any]:
    """Play nodes and scheduler in the background: every new job runs and ends as `outcome` says."""
    stop, outcome = threading.Event(), {"exit": "completed", "code": 0}

    def play() -> None:
        while not stop.wait(0.02):
            live.publish()
            with live.telling:
                live.cluster.advance(0.1)
                for job in list(live.cluster.state.jobs):
                    live.cluster.start(job)
                    live.cluster.exit(job, outcome["exit"], exit_code=outcome["code"], result={"mean_return": 197.0})
            live.publish()

    live.cluster.node("n1")
    live.publish()
    thread = threading.Thread(target=play)
    thread.start()
    yield outcome
    stop.set()
    thread.join()


def test_submit_wait_ends_with_the_job_and_its_result(running: Any, cli: Cli, job_file: Path) -> None:
    ran = cli("submit", str(job_file), "--wait", "--json")
    assert ran.code == 0
    assert ran.document["state"] == "completed"
    assert ran.document["result"] == {"mean_return": 197.0}
    assert "completed" in ran.err
    ran = cli("submit", str(job_file), "--wait")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].split()[1:] == ["completed", "mean_return", "197"]


def test_submit_wait_fails_with_the_job(running: Any, cli: Cli, job_file: Path) -> None:
    running.update(exit="failed", code=3)
    ran = cli("submit", str(job_file), "--wait", "--json")
    assert ran.code == 1
    assert ran.document["state"] == "failed"
    assert ran.document["exit"]["exit_code"] == 3


def test_submit_wait_gives_up_after_its_timeout_and_names_the_job(cli: Cli, job_file: Path) -> None:
    ran = cli("submit", str(job_file), "--timeout", "0.1", "--json")
    assert ran.code == 1
    assert ran.document["error"] == "WaitTimeout"
    assert ran.document["state"] == "pending"
    assert ran.document["job_id"].startswith("j-")


# ---- cancel ----


def test_cancel_asks_once_and_may_be_repeated(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    assert "shall end" in cli("cancel", story.LOW).out
    again = cli("cancel", story.LOW, "--json")
    assert again.code == 0
    assert again.document["cancel_requested"] is True


def test_cancel_of_what_ended_otherwise_is_refused(live: LiveGateway, cli: Cli) -> None:
    story.preempted_and_resumed(live)
    ran = cli("cancel", story.LOW)
    assert (ran.code, ran.out) == (5, "")
    assert cli("cancel", "j-nobody").code == 4


# ---- logs ----


def test_logs_are_printed_as_they_are(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    live.logs["j-high", 1, "learner"] = "step 1\nmü\n".encode()
    live.logs["j-high", 1, "simulator"] = b"reset\n"
    assert cli("logs", story.HIGH).out == "step 1\nmü\n"
    assert cli("logs", story.HIGH, "--component", "simulator", "--replica", "2").out == "reset\n"
    document = cli("logs", story.HIGH, "--json").document
    assert document["text"] == "step 1\nmü\n"
    assert (document["component"], document["attempt"]) == ("learner", 1)


def test_logs_that_are_not_there_are_not_found(live: LiveGateway, cli: Cli) -> None:
    story.preempting(live)
    assert cli("logs", story.HIGH).code == 4
    assert cli("logs", story.HIGH, "--attempt", "9").code == 4
    assert cli("logs", story.HIGH, "--component", "nobody").code == 5


def test_following_prints_all_attempts_until_the_end(live: LiveGateway, cli: Cli) -> None:
    story.preempted_and_resumed(live)
    live.logs["j-low", 1, "learner"] = b"first\n"
    live.logs["j-low", 2, "learner"] = b"second\n"
    assert cli("logs", story.LOW, "-f").out == "second\n"
    assert cli("logs", story.LOW, "-f", "--attempt", "1").out == "first\n"
    lines = [json.loads(line) for line in cli("logs", story.LOW, "-f", "--json").out.splitlines()]
    assert [(line["attempt"], line["text"]) for line in lines] == [(2, "second\n")]


# ---- checkpoint ----


def test_checkpoints_are_listed_newest_first(live: LiveGateway, cli: Cli) -> None:
    story.preempted_and_resumed(live)
    header, newest, older = _rows(cli("checkpoint", "ls", story.LOW).out)
    assert header == ["CHECKPOINT", "STEP", "ATTEMPT", "RANK", "NODE", "TIER", "STATUS", "SIZE", "LAYERS", "AGE"]
    assert newest[1:9] == ["640", "1", "0", "n1", "hot", "verified", "12.0KiB", "model,optimizer,state"]
    assert older[1] == "600"
    document = cli("checkpoint", "ls", story.LOW, "--json").document
    assert [one["step"] for one in document["checkpoints"]] == [640, 600]
    assert "no checkpoint yet" in cli("checkpoint", "ls", story.HIGH).err
    assert cli("checkpoint", "ls", "j-nobody").code == 4


@pytest.fixture
def saved(live: LiveGateway, tmp_path: Path) -> Committed:
    """A checkpoint in the hot tier of the local stack, and a checkpoint service that plans with it."""
    story.preempting(live)
    directory = tmp_path / "home" / "hot" / "t" / story.LOW
    stamp = roots.Stamp(story.LOW, 1, 0, "learner", 0, 1, 7)
    committed = stores.save_tree(directory, 640, {"model/w.bin": b"w" * 9999, "state/rng": b"rng"}, stamp)
    root = committed.root
    layers = {layer.name: layer for layer in root.layers}

    def plan(question: dict[str, Any]) -> dict[str, Any]:
        chosen = [layers[name] for name in question["layers"] if name in layers]
        if len(chosen) < len(question["layers"]) or question.get("checkpoint_id", root.id) != root.id:
            return {"error": "there is no such thing", "code": "UnknownLayer", "accepted": list(layers)}
        return {
            "job_id": question["job"], "tenant": "t", "checkpoint_id": root.id, "step": 640, "attempt": 1, "rank": 0,
            "node": "n1", "status": "verified", "tier": "hot", "store": f"t/{story.LOW}", "root": root.name,
            "size_bytes": sum(layer.bytes for layer in chosen), "skipped": [],
            "layers": [
                {"name": one.name, "kind": one.kind, "digest": one.manifest, "size_bytes": one.bytes, "pack_count": 1}
                for one in chosen
            ],
        }  # fmt: skip

    live.asker.answerers["tg.ask.checkpoint.restore"] = plan
    return committed


def test_restore_shows_the_plan_and_copies_where_asked(saved: Committed, cli: Cli, tmp_path: Path) -> None:
    ran = cli("checkpoint", "restore", story.LOW)
    assert ran.code == 0
    assert ["model", "9.8KiB", "1"] in [row[:3] for row in _rows(ran.out)]
    assert "--to DIR" in ran.out
    target = tmp_path / "restored"
    ran = cli("checkpoint", "restore", story.LOW, "--layer", "model", "--layer", "state", "--to", str(target), "--json")
    assert ran.code == 0
    assert ran.document["restored"] == [str(target / "model" / "w.bin"), str(target / "state" / "rng")]
    assert (target / "model" / "w.bin").read_bytes() == b"w" * 9999
    assert [one["name"] for one in ran.document["layers"]] == ["model", "state"]
    assert sorted(path.name for path in target.iterdir()) == ["model", "state"]


def test_layers_of_values_are_restored_as_a_store(live: LiveGateway, tmp_path: Path) -> None:
    store = tmp_path / "hot" / "t" / "j"
    committed = stores.save(store, 7, model={"w": bytes(5000)}, state={"n": 1})
    stores.save(store, 8, model={"w": bytes(9000)})
    plan = {
        "checkpoint_id": committed.root.id, "root": committed.name, "store": "t/j", "tier": "hot", "node": "n1",
        "layers": [{"name": "model"}, {"name": "state"}],
    }  # fmt: skip
    copied: list[int] = []
    carry_out(plan, tmp_path / "hot", tmp_path / "out", copied.append)
    assert sum(copied) > 0
    (found,) = stores.opened(tmp_path / "out").committed()
    assert Checkpoint(found).load() == {"model": {"w": bytes(5000)}, "state": {"n": 1}}


def test_restore_never_overwrites(saved: Committed, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x").touch()
    ran = cli("checkpoint", "restore", story.LOW, "--to", str(tmp_path / "mine"))
    assert ran.code == 3
    assert "not empty" in ran.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["x"]


@pytest.mark.parametrize("damage", ["content", "size", "root", "link"])
def test_restore_of_damaged_bytes_fails_and_leaves_nothing(
    saved: Committed, cli: Cli, tmp_path: Path, damage: str
) -> None:
    (pack,) = stores.pack_paths(saved)
    path = stores.root_path(saved) if damage == "root" else pack
    path.chmod(0o600)
    if damage == "content":
        path.write_bytes(b"W" + path.read_bytes()[1:])
    elif damage == "size":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "root":
        path.write_text("{}")
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "out").mkdir()
    ran = cli("checkpoint", "restore", story.LOW, "--to", str(tmp_path / "out" / "restored"))
    assert ran.code in (1, 3)
    assert ran.err
    assert not list((tmp_path / "out").iterdir())


def test_restore_takes_the_next_tier_where_the_nearest_is_damaged(saved: Committed, cli: Cli, tmp_path: Path) -> None:
    home = tmp_path / "home"
    node = Node(Tiers(Settings(home / "hot", str(home / "warm"))))
    with node.tiers.holdings("t", story.LOW) as held, node.tiers.staging() as staging:
        moving.move(saved.name, held[:1], node.tiers.of_job("t", story.LOW)[0], staging)
    (pack,) = stores.pack_paths(saved)
    node.damage(pack, 0)
    ran = cli("checkpoint", "restore", story.LOW, "--to", str(tmp_path / "r"))
    assert ran.code == 0
    assert (tmp_path / "r" / "model" / "w.bin").read_bytes() == b"w" * 9999
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".tiers")) == []


def test_rollback_asks_for_a_new_checkpoint(saved: Committed, live: LiveGateway, cli: Cli) -> None:
    asked: list[dict[str, Any]] = []

    def made(question: dict[str, Any]) -> dict[str, Any]:
        asked.append(question)
        return {**question, "checkpoint_id": "ab" * 32, "step": 640}

    live.asker.answerers["tg.ask.checkpoint.rollback"] = made
    ran = cli("checkpoint", "rollback", story.LOW, "--layer", "model", "--to", "cd" * 32)
    assert (ran.code, ran.out) == (0, "checkpoint abababababab at step 640 has model of cdcdcdcdcdcd.\n")
    assert asked == [{"job": story.LOW, "layers": ["model"], "checkpoint_id": "cd" * 32}]
    assert cli("checkpoint", "rollback", story.LOW, "--to", "cd" * 32).code == 2


def test_restore_says_where_it_could_be_done(saved: Committed, cli: Cli, tmp_path: Path) -> None:
    away = cli("checkpoint", "restore", story.LOW, "--to", str(tmp_path / "r"), "--tier-dir", str(tmp_path / "other"))
    assert away.code == 3
    assert "tier of node n1 cannot be read here" in away.err
    here = saved.store.parents[1]
    assert cli("checkpoint", "restore", story.LOW, "--to", str(tmp_path / "r"), "--tier-dir", str(here)).code == 0


def test_restore_of_what_is_not_there_is_not_found(saved: Committed, cli: Cli) -> None:
    assert cli("checkpoint", "restore", story.LOW, "--layer", "optimizer").code == 4
    assert cli("checkpoint", "restore", story.LOW, "--checkpoint", "0" * 64).code == 4
    assert cli("checkpoint", "restore", "j-nobody").code == 4


# ---- for every command ----


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs",), ("nodes",), ("status",), ("job", "j-low"), ("logs", "j-high"), ("cancel", "j-low"),
        ("checkpoint", "ls", "j-low"), ("submit", "JOB"), ("checkpoint", "restore", "j-low"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)  # fmt: skip
def test_json_is_one_document_and_nothing_else(
    live: LiveGateway, cli: Cli, job_file: Path, saved: Path, arguments: tuple[str, ...]
) -> None:
    live.logs["j-high", 1, "learner"] = b"x"
    ran = cli(*(str(job_file) if argument == "JOB" else argument for argument in arguments), "--json")
    assert ran.code == 0
    assert json.loads(ran.out)
    assert ran.out.count("\n") == 1
    assert ran.err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs",),
        ("nodes",),
        ("status",),
        ("job", "j-1"),
        ("logs", "j-1"),
        ("cancel", "j-1"),
        ("checkpoint", "ls", "j-1"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
@pytest.mark.parametrize("as_json", [False, True], ids=["people", "json"])
def test_without_a_stack_every_command_names_the_remedy(
    offline: Cli, arguments: tuple[str, ...], as_json: bool
) -> None:
    ran = offline(*arguments, *(["--json"] if as_json else []))
    assert ran.code == 3
    assert "tidegate up" in (ran.document["remedy"] if as_json else ran.err)
    assert (ran.err if as_json else ran.out) == ""


def test_a_gateway_that_is_gone_is_said_to_be_unreachable(offline: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.client.flow.RETRY_DELAYS_SECONDS", (0.0,))
    monkeypatch.setenv("TIDEGATE_URL", "http://127.0.0.1:9")
    ran = offline("jobs", "--json")
    assert ran.code == 3
    assert ran.document["error"] == "Unavailable"


def test_bytes_that_are_no_text_pass_through(live: LiveGateway, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    story.preempting(live)
    live.logs["j-high", 1, "learner"] = b"\xff\x00\x1b"
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    cli("logs", story.HIGH)
    assert raw.getvalue() == b"\xff\x00\x1b"
