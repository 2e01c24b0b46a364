"""Acts on jobs over HTTP: what is written, what is refused and why, and that a repeated request writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events import subjects

KINDS = {
    "hold": "HoldRequested",
    "release": "ReleaseRequested",
    "suspend": "SuspendRequested",
    "resume": "ResumeRequested",
    "requeue": "RequeueRequested",
}


async def _submitted(bench: Any) -> str:
    await bench.history.node()
    await bench.history.decide(e.LeaderElected(**bench.history.stamp(), epoch=1, instance="s1"))
    return str((await bench.submit()).json()["job_id"])


async def _running(bench: Any) -> str:
    job = await _submitted(bench)
    view = bench.gateway.fold.view
    member = e.MemberPlacement(rank=0, node="n1", incarnation=1, quotas=())
    about = {"tenant": "lab-a", "job": job}
    placed = e.JobPlaced(**bench.history.stamp(**about, revision=0), attempt=1, members=(member,))
    await bench.history.decide(placed)
    await bench.settle()
    assert view.jobs[job].state == "placed"
    return job


async def _ask(bench: Any, job: str, act: str, actor: str = "olga", **body: Any) -> Any:
    headers = {"x-tidegate-submitter": actor}
    return await bench.client.post(f"/v1/jobs/{job}/{act}", json=body, headers=headers)


def _written(bench: Any) -> list[Any]:
    """Return what the gateway wrote, submissions apart."""
    entries = [entry for job in bench.gateway.fold.view.jobs.values() for entry in job.timeline.entries()]
    return [
        one.event for one in entries if one.writer.service == "gateway" and not isinstance(one.event, e.JobSubmitted)
    ]


async def test_a_hold_and_its_release_bear_actor_and_reason(bench: Any) -> None:
    job = await _submitted(bench)
    held = await _ask(bench, job, "hold", reason=" wrong data ")
    assert (held.status_code, held.json()["held"], held.json()["changed"]) == (202, True, True)
    again = await _ask(bench, job, "hold")
    assert (again.status_code, again.json()["changed"]) == (200, False)
    detail = (await bench.client.get(f"/v1/jobs/{job}")).json()
    assert (detail["held"], detail["asked"]["actor"], detail["asked"]["note"]) == (True, "olga", "wrong data")
    assert (await _ask(bench, job, "release", "ada")).json()["held"] is False
    assert (await _ask(bench, job, "release", "ada")).status_code == 200, "a retry of what was asked last"
    assert [(type(event).__name__, event.actor) for event in _written(bench)] == [
        ("HoldRequested", "olga"),
        ("ReleaseRequested", "ada"),
    ]


async def test_a_running_job_is_suspended_and_resumed(bench: Any) -> None:
    job = await _running(bench)
    asked = await _ask(bench, job, "suspend", reason="demo")
    assert (asked.status_code, asked.json()["suspend_requested"], asked.json()["held"]) == (202, True, False)
    assert (await _ask(bench, job, "suspend", reason="demo")).status_code == 200
    resumed = await _ask(bench, job, "resume")
    assert (resumed.status_code, resumed.json()["suspend_requested"]) == (202, False)
    assert (await _ask(bench, job, "resume")).status_code == 200
    assert [type(event).__name__ for event in _written(bench)] == ["SuspendRequested", "ResumeRequested"]


async def test_a_requeue_is_asked_once_for_each_attempt(bench: Any) -> None:
    job = await _running(bench)
    assert (await _ask(bench, job, "requeue", reason="slow disk")).json()["requeue_requested"] is True
    assert (await _ask(bench, job, "requeue", reason="slow disk")).status_code == 200
    requeued = e.JobRequeued(
        **bench.history.stamp(tenant="lab-a", job=job, revision=9), attempt=1, outcome="stopped", not_before_ns=0
    )
    await bench.history.decide(requeued)
    await bench.settle()
    assert (await _ask(bench, job, "requeue", reason="slow disk")).status_code == 200, "still of attempt 1"
    assert len(_written(bench)) == 1


@pytest.mark.parametrize(
    ("act", "code"),
    [("release", "not_held"), ("resume", "not_suspended"), ("suspend", "not_running"), ("requeue", "not_running")],
)
async def test_what_cannot_be_of_a_job_that_waits_is_refused(bench: Any, act: str, code: str) -> None:
    job = await _submitted(bench)
    refused = await _ask(bench, job, act, reason="why")
    assert (refused.status_code, refused.json()["code"], refused.json()["state"]) == (409, code, "pending")
    assert refused.json()["accepted"]
    assert _written(bench) == []


async def test_nothing_can_be_asked_of_a_job_that_ended_or_is_not_there(bench: Any) -> None:
    job = await _submitted(bench)
    ended = e.JobCancelled(**bench.history.stamp(tenant="lab-a", job=job, revision=0), attempt=0)
    await bench.history.decide(ended)
    await bench.settle()
    for act in KINDS:
        refused = await _ask(bench, job, act, reason="why")
        assert (refused.status_code, refused.json()["code"]) == (409, "already_ended")
        assert (await _ask(bench, "j-none", act, reason="why")).status_code == 404


async def test_a_job_that_was_told_to_end_cannot_be_suspended(bench: Any) -> None:
    job = await _running(bench)
    assert (await bench.client.post(f"/v1/jobs/{job}/cancel")).status_code == 202
    for act in ("suspend", "requeue"):
        assert (await _ask(bench, job, act, reason="why")).json()["code"] == "ending"


async def test_a_priority_counts_in_the_line_and_is_bounded_by_the_tenant(make_bench: Any, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.json"
    tenants.write_text(json.dumps({"tenants": {"lab-a": {"max_priority": 50}}}))
    async with make_bench(tmp_path / "gateway", tenants_file=tenants) as bench:
        low, high = await _submitted(bench), str((await bench.submit()).json()["job_id"])
        raised = await _ask(bench, high, "priority", priority=40)
        assert (raised.status_code, raised.json()["priority"]) == (202, 40)
        assert (await _ask(bench, high, "priority", priority=40)).status_code == 200
        refused = await _ask(bench, high, "priority", priority=51)
        assert (refused.status_code, refused.json()[0]["path"]) == (422, "priority")
        assert "50" in refused.json()[0]["accepted"]
        line = (await bench.client.get("/v1/queue")).json()["queue"]
        assert [(one["job_id"], one["priority"]) for one in line] == [(high, 40), (low, 10)]
        assert [event.priority for event in _written(bench)] == [40]


async def test_a_limit_is_set_and_taken_away(bench: Any) -> None:
    job = await _submitted(bench)
    assert (await _ask(bench, job, "limit", time_limit_seconds=60)).json()["time_limit_seconds"] == 60
    assert (await _ask(bench, job, "limit", time_limit_seconds=60)).status_code == 200
    assert (await _ask(bench, job, "limit", time_limit_seconds=None)).json()["time_limit_seconds"] is None
    assert [event.time_limit_seconds for event in _written(bench)] == [60, None]


@pytest.mark.parametrize(
    ("act", "body", "path"),
    [
        ("suspend", {}, "reason"),
        ("requeue", {"reason": "  "}, "reason"),
        ("hold", {"reason": "x" * 501}, "reason"),
        ("hold", {"reason": "two\nlines"}, "reason"),
        ("hold", {"note": "x"}, "note"),
        ("priority", {}, "priority"),
        ("priority", {"priority": "high"}, "priority"),
        ("priority", {"priority": -1}, "priority"),
        ("limit", {}, "time_limit_seconds"),
        ("limit", {"time_limit_seconds": 0}, "time_limit_seconds"),
    ],
)
async def test_a_body_that_is_wrong_says_what_is_accepted(bench: Any, act: str, body: Any, path: str) -> None:
    job = await _running(bench)
    refused = await _ask(bench, job, act, **body)
    assert refused.status_code == 422, refused.text
    assert [problem["path"] for problem in refused.json()] == [path]
    assert all(problem["accepted"] for problem in refused.json())
    assert _written(bench) == []


async def test_members_act_for_their_tenant_and_operators_for_all(make_bench: Any, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.json"
    told = {"tenants": {"lab-a": {"members": ["ada"]}}, "operators": ["olga"]}
    tenants.write_text(json.dumps(told))
    async with make_bench(tmp_path / "gateway", tenants_file=tenants) as bench:
        job = await _submitted(bench)
        for act in ("hold", "cancel"):
            refused = (
                await _ask(bench, job, act, "mallory")
                if act == "hold"
                else await bench.client.post(f"/v1/jobs/{job}/cancel", headers={"x-tidegate-submitter": "mallory"})
            )
            assert (refused.status_code, refused.json()["code"]) == (403, "not_a_member")
            assert "ada" in refused.json()["accepted"]
        assert (await _ask(bench, job, "hold", "ada")).status_code == 202
        assert (await _ask(bench, job, "release", "olga")).status_code == 202
        drain = {"deadline_ns": bench.clock.now_ns() + 10**9, "reason": "disk"}
        for actor, status in (("ada", 403), ("olga", 202)):
            headers = {"x-tidegate-submitter": actor}
            answer = await bench.client.post("/v1/nodes/n1/drain", json=drain, headers=headers)
            assert answer.status_code == status, answer.text
        stranger = await bench.problems({**json.loads(json.dumps(_spec())), "submitter": "mallory"})
        assert "ada" in stranger["submitter"]


def _spec() -> dict[str, Any]:
    resources = {"cpu_millis": 100, "memory_mib": 64}
    return {"tenant": "lab-a", "command": ["true"], "resources": resources}


# ---- dry runs ----

VERDICT = {
    "verdict": "displaces",
    "nodes": ["n1"],
    "starts_at_ns": 5,
    "starts_basis": "deadline",
    "displaces": [{"job": "j-low", "tenant": "t", "priority": 1}],
    "position": 0,
    "reasons": [{"code": "Resources", "detail": "too little"}],
}


async def test_a_dry_run_asks_the_scheduler_and_takes_nothing(bench: Any) -> None:
    await bench.history.node()
    bench.asker.answerers[subjects.ask_scheduler("dry-run")] = lambda question: VERDICT
    before = await bench.journal.end()
    answer = await bench.client.post("/v1/jobs?dry_run=1", json=_spec())
    assert answer.status_code == 200
    assert answer.json()["verdict"] == "displaces"
    assert answer.json()["displaces"] == [{"job_id": "j-low", "tenant": "t", "priority": 1, "how": "leaves"}]
    assert answer.json()["reasons"] == [{"code": "Resources", "detail": "too little", "numbers": {}}]
    assert answer.json()["position"] is None
    asked = [question for subject, question in bench.asker.asked if subject == subjects.ask_scheduler("dry-run")]
    assert asked[0]["spec"]["tenant"] == "lab-a"
    assert await bench.journal.end() == before


async def test_a_dry_run_is_judged_as_a_submission(bench: Any) -> None:
    await bench.history.node()
    await bench.settle()
    refused = await bench.client.post("/v1/jobs?dry_run=1", json={**_spec(), "image": "nowhere", "isolation": "vm"})
    assert {problem["path"] for problem in refused.json()} == {"image", "isolation"}
    assert bench.asker.asked == []
    assert (await bench.client.post("/v1/jobs?dry_run=2", json=_spec())).status_code == 422


async def test_a_dry_run_says_when_the_scheduler_is_away_or_unclear(bench: Any) -> None:
    away = await bench.client.post("/v1/jobs?dry_run=1", json=_spec())
    assert (away.status_code, away.json()["code"]) == (503, "scheduler_away")
    for answer in ({"error": "no"}, {"verdict": "perhaps"}):
        bench.asker.answerers[subjects.ask_scheduler("dry-run")] = lambda question, answer=answer: answer
        unclear = await bench.client.post("/v1/jobs?dry_run=1", json=_spec())
        assert (unclear.status_code, unclear.json()["code"]) == (502, "bad_answer")


async def test_a_dry_run_that_is_one_too_many_says_when_to_ask_again(bench: Any) -> None:
    for busy, seconds in (({"retry_seconds": 7}, "7"), ({"retry_seconds": -1}, "60"), (True, "60")):
        refusal = {"error": "as many as it may", "busy": busy}
        bench.asker.answerers[subjects.ask_scheduler("dry-run")] = lambda question, refusal=refusal: refusal
        answer = await bench.client.post("/v1/jobs?dry_run=1", json=_spec())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, seconds)
        assert (answer.json()["code"], answer.json()["problem"]) == ("scheduler_busy", "as many as it may")
