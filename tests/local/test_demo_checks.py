"""The demo's checks can fail: each claim is broken on its own, and the check of that claim says so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tidegate_local.demo.checks import HIGH_SPANS, LOW_SPANS, check_all
from tidegate_local.demo.observed import CommandRun, Entry, KernelQuota, Observed, ReadModels, TraceSeen
from tidegate_local.demo.report import line
from tidegate_local.leftovers import Leftover

LAYERS = ("model", "optimizer", "experience", "state")


def story(level: str = "trusted") -> Observed:
    """Return a run in which everything held."""
    events: list[Entry] = []

    def say(job: str, kind: str, attempt: int | None = None, **data: Any) -> None:
        events.append(
            Entry(seq=len(events) + 1, index=0, at_ns=len(events), kind=kind, job_id=job, attempt=attempt, data=data)
        )

    def run(job: str, attempt: int) -> None:
        say(job, "JobPlaced", attempt)
        say(job, "SandboxStarted", attempt, level=level)

    def phase(learner: int, simulator: int) -> None:
        quotas = [
            {"component": "learner", "cpu_millis": learner, "memory_mib": 1},
            {"component": "simulator", "cpu_millis": simulator, "memory_mib": 1},
        ]
        say("low", "QuotaApplied", 1, quotas=quotas, **({"enforced": False} if level == "unisolated" else {}))

    run("low", 1)
    say("low", "JobStarted", 1)
    phase(300, 200)
    phase(900, 50)
    say("high", "JobSubmitted")
    say("low", "PreemptRequested", 1, for_job="high", grace_seconds=20)
    checkpoint = {"id": "c1", "step": 5, "layers": [{"name": name, "size_bytes": 1} for name in LAYERS]}
    say("low", "CheckpointSaved", 1, checkpoint=checkpoint)
    say("low", "SandboxExited", 1, outcome="suspended")
    say("low", "JobSuspended", 1, acknowledged=True, checkpoint_id="c1", step=5)
    run("high", 1)
    say("high", "SandboxExited", 1, outcome="completed")
    say("high", "JobCompleted", 1)
    run("low", 2)
    say("low", "JobResumed", 2, checkpoint_id="c1", step=5)
    say("low", "SandboxExited", 2, outcome="completed")
    say("low", "JobCompleted", 2)
    return Observed(
        level=level,
        low="low",
        high="high",
        jobs={"low": job("low", preemptions=1, resumed_step=5), "high": job("high")},
        events=events,
        kernel={"low": {KernelQuota(*pair) for pair in _kernel()}} if level != "unisolated" else {},
        commands=[CommandRun(argv=("tidegate", "jobs"), exit_code=0, output="")],
        traces={
            "low": TraceSeen(names=dict.fromkeys(LOW_SPANS, 1), roots=1),
            "high": TraceSeen(names=dict.fromkeys(HIGH_SPANS, 1), roots=1),
        },
        read_models=ReadModels(generation=1, seq=len(events), head_seq=len(events), lag_frames=0),
        verification={"ok": True, "passes": 9, "decisions": 12, "decisions_verified": 12},
    )


def _kernel() -> list[tuple[str, int]]:
    return [("learner", 300), ("learner", 900), ("simulator", 200), ("simulator", 50)]


def job(name: str, *, preemptions: int = 0, resumed_step: int | None = None) -> dict[str, Any]:
    return {
        "job_id": name,
        "trace_id": "0" * 32,
        "state": "completed",
        "result": {"mean_return": 480.0, "episodes": 100},
        "preemptions": preemptions,
        "resumed_step": resumed_step,
        "lost_steps": 0,
        "submit_to_running_ms": 321,
    }


@pytest.mark.parametrize("level", ["trusted", "unisolated"])
def test_a_run_in_which_everything_held_passes(level: str) -> None:
    seen = story(level)
    assert [check.claim for check in check_all(seen) if not check.ok] == []
    assert line(seen, check_all(seen), []).ok


def replace(seen: Observed, kind: str, **data: Any) -> None:
    """Change the data of the first event of this kind; None removes the event."""
    at = next(place for place, entry in enumerate(seen.events) if entry.kind == kind)
    seen.events[at] = msgspec.structs.replace(seen.events[at], data={**seen.events[at].data, **data})


def remove(seen: Observed, kind: str) -> None:
    seen.events = [entry for entry in seen.events if entry.kind != kind]


def move_save_after_suspend(seen: Observed) -> None:
    at = next(place for place, entry in enumerate(seen.events) if entry.kind == "CheckpointSaved")
    seen.events.append(msgspec.structs.replace(seen.events.pop(at), seq=99))


def again(seen: Observed, kind: str) -> None:
    seen.events.append(copy.copy(next(entry for entry in seen.events if entry.kind == kind)))


BROKEN: dict[str, tuple[str, Callable[[Observed], None]]] = {
    "failed": ("the low job completed", lambda s: s.jobs["low"].update(state="failed")),
    "running": ("the high job completed", lambda s: s.jobs["high"].update(state="running")),
    "not solved": ("mean return of 195", lambda s: s.jobs["low"]["result"].update(mean_return=194.9)),
    "no return": ("mean return of 195", lambda s: s.jobs["high"].update(result={})),
    "few episodes": ("mean return of 195", lambda s: s.jobs["low"]["result"].update(episodes=99)),
    "asked twice": ("asked once to make room", lambda s: again(s, "PreemptRequested")),
    "never asked": ("asked once to make room", lambda s: remove(s, "PreemptRequested")),
    "for another": ("asked once to make room", lambda s: replace(s, "PreemptRequested", for_job="x")),
    "no grace": ("asked once to make room", lambda s: replace(s, "PreemptRequested", grace_seconds=0)),
    "not saved": ("saved a layered checkpoint", lambda s: remove(s, "CheckpointSaved")),
    "saved late": ("saved a layered checkpoint", move_save_after_suspend),
    "layer missing": (
        "saved a layered checkpoint",
        lambda s: replace(s, "CheckpointSaved", checkpoint={"id": "c1", "step": 5, "layers": []}),
    ),
    "not acknowledged": ("saved a layered checkpoint", lambda s: replace(s, "JobSuspended", acknowledged=False)),
    "other step": ("resumed at the step", lambda s: replace(s, "JobResumed", step=4)),
    "other checkpoint": ("resumed at the step", lambda s: replace(s, "JobResumed", checkpoint_id="c0")),
    "steps lost": ("resumed at the step", lambda s: s.jobs["low"].update(lost_steps=1)),
    "never resumed": ("resumed at the step", lambda s: remove(s, "JobResumed")),
    "beside": ("never ran beside", lambda s: remove(s, "SandboxExited")),
    "no quotas": ("CPU moved", lambda s: remove(s, "QuotaApplied")),
    "not enforced": ("CPU moved", lambda s: replace(s, "QuotaApplied", enforced=False)),
    "kernel says no": ("cgroup files", lambda s: s.kernel["low"].discard(KernelQuota("learner", 900))),
    "other level": ("every sandbox ran at level", lambda s: replace(s, "SandboxStarted", level="unisolated")),
    "history differs": ("history verifies", lambda s: s.verification.update(decisions_verified=11)),
    "nothing verified": ("history verifies", lambda s: s.verification.update(decisions=0, decisions_verified=0)),
    "not verified": ("history verifies", lambda s: s.verification.clear()),
    "read models behind": ("read models", lambda s: setattr(s, "read_models", ReadModels(seq=3, lag_frames=1))),
    "read models elsewhere": ("read models", lambda s: setattr(s, "read_models", ReadModels(seq=3, lag_frames=0))),
    "no trace": ("the low job's whole life", lambda s: s.traces.clear()),
    "no resume in the trace": ("the low job's whole life", lambda s: s.traces["low"].names.pop("resume")),
    "two roots": (
        "the high job's whole life",
        lambda s: s.traces.update(high=msgspec.structs.replace(s.traces["high"], roots=2)),
    ),
    "command failed": (
        "tidegate jobs",
        lambda s: s.commands.append(CommandRun(argv=("tidegate", "jobs"), exit_code=1, output="")),
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_claim_is_seen(name: str) -> None:
    claim, spoil = BROKEN[name]
    seen = story()
    spoil(seen)
    assert any(claim in check.claim and not check.ok for check in check_all(seen))
    assert not line(seen, check_all(seen), []).ok


def test_leftovers_and_missing_checks_are_never_ok() -> None:
    seen = story()
    last = line(seen, check_all(seen), [Leftover(kind="mount", what="/x")])
    assert not last.ok
    assert last.leftovers == 1
    assert not line(seen, [], []).ok


def test_the_json_line_has_exactly_the_agreed_keys() -> None:
    seen = story()
    keys = msgspec.to_builtins(line(seen, check_all(seen), []))
    assert list(keys) == [
        "ok", "jobs", "passes", "decisions", "decisions_verified", "events", "wall_seconds", "submit_to_running_ms",
        "leftovers",
    ]  # fmt: skip
    assert [list(job) for job in keys["jobs"]] == 2 * [
        ["job_id", "trace_id", "state", "mean_return", "preemptions", "resumed_step", "lost_steps"]
    ]
