"""Reads, cancellation and questions, through the real application."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from tidegate_events import events as e
from tidegate_events.journal.base import JournalFullError, JournalUnavailableError

SHORT = {"command": ["true"], "resources": {"cpu_millis": 100, "memory_mib": 64}}


async def _place(bench: Any, job_id: str) -> None:
    await bench.history.node()
    quotas = (e.Quota(component="main", cpu_millis=100, memory_mib=64),)
    placement = e.MemberPlacement(rank=0, node="n1", incarnation=1, quotas=quotas)
    placed = e.JobPlaced(
        **bench.history.stamp(), tenant="default", job=job_id, revision=0, attempt=1, members=(placement,)
    )
    await bench.history.decide(placed)
    await bench.settle()


async def _end(bench: Any, job_id: str, kind: type[e.Event], revision: int) -> None:
    ended = kind(**bench.history.stamp(), tenant="default", job=job_id, revision=revision, attempt=1)  # type: ignore[call-arg]
    await bench.history.decide(ended)
    await bench.settle()


async def test_readiness_needs_fold_and_bus(bench: Any) -> None:
    assert (await bench.client.get("/healthz")).json() == {"alive": True}
    assert (await bench.client.get("/readyz")).status_code == 200
    bench.asker.connected = False
    answer = await bench.client.get("/readyz")
    assert (answer.status_code, answer.json()["bus_connected"]) == (503, False)
    assert (await bench.client.get("/healthz")).status_code == 200


async def test_a_read_sees_the_write_before_it(bench: Any, valid: Any) -> None:
    for _ in range(20):
        job_id = (await bench.submit(valid)).json()["job_id"]
        assert (await bench.client.get(f"/v1/jobs/{job_id}")).json()["state"] == "pending"


async def test_jobs_are_listed_newest_first_in_pages(bench: Any) -> None:
    ids = [(await bench.submit({**SHORT, "tenant": f"t{number % 2}"})).json()["job_id"] for number in range(5)]
    page = (await bench.client.get("/v1/jobs", params={"limit": 2})).json()
    assert ([job["job_id"] for job in page["jobs"]], page["total"]) == (ids[:-3:-1], 5)
    rest = (await bench.client.get("/v1/jobs", params={"before": page["next"]})).json()
    assert ([job["job_id"] for job in rest["jobs"]], rest["next"]) == (ids[2::-1], None)
    of_tenant = (await bench.client.get("/v1/jobs", params={"tenant": "t1", "state": "pending,running"})).json()
    assert of_tenant["total"] == 2
    assert (await bench.client.get("/v1/jobs", params={"state": "failed"})).json()["jobs"] == []


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/jobs?limit=0", "?limit"),
        ("/v1/jobs?limit=1001", "?limit"),
        ("/v1/jobs?limit=x", "?limit"),
        ("/v1/jobs?limit=1&limit=2", "?limit"),
        ("/v1/jobs?state=runing", "?state"),
        ("/v1/jobs?tennant=a", "?tennant"),
        ("/v1/events?after=x", "?after"),
        ("/v1/checkpoints", "?job"),
        ("/v1/nodes?x=1", "?x"),
        ("/v1/blobs/ABC", "$"),
    ],
)
async def test_a_parameter_out_of_bounds_is_refused(bench: Any, path: str, named: str) -> None:
    answer = await bench.client.get(path)
    assert (answer.status_code, answer.json()[0]["path"]) == (422, named)


async def test_what_is_not_there_says_so(bench: Any) -> None:
    for path in ("/v1/jobs/j-x", "/v1/jobs/j-x/timeline", "/v1/jobs/j-x/explain", "/v1/jobs/j-x/logs"):
        answer = await bench.client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job")
    assert (await bench.client.delete("/v1/jobs/j-x")).json()["code"] == "unknown_job"
    assert (await bench.client.get("/v2")).json()["code"] == "not_found"
    answer = await bench.client.post("/v1/nodes")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


async def test_cancel_is_asked_once_however_often(bench: Any) -> None:
    job_id = (await bench.submit(SHORT)).json()["job_id"]
    headers = {"x-tidegate-submitter": "ada"}
    first = await bench.client.post(f"/v1/jobs/{job_id}/cancel", headers=headers)
    again = await bench.client.delete(f"/v1/jobs/{job_id}")
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    assert first.json()["cancel_requested"] is True
    assert await bench.journal.end() == 2
    asked = (await bench.journal.last("tg.fact.gateway.g1")).frame.events[0]
    assert (asked.job, asked.actor) == (job_id, "ada")


async def test_a_job_that_ended_cannot_be_cancelled(bench: Any) -> None:
    cancelled, failed = [(await bench.submit(SHORT)).json()["job_id"] for _ in range(2)]
    await _end(bench, cancelled, e.JobCancelled, 0)
    await _end(bench, failed, e.JobFailed, 0)
    assert (await bench.client.delete(f"/v1/jobs/{cancelled}")).status_code == 200
    answer = await bench.client.delete(f"/v1/jobs/{failed}")
    assert (answer.status_code, answer.json()["state"]) == (409, "failed")


async def test_a_waiting_job_says_why(bench: Any) -> None:
    job_id = (await bench.submit(SHORT)).json()["job_id"]
    away = (await bench.client.get(f"/v1/jobs/{job_id}/explain")).json()
    assert (away["answered_by"], away["reasons"][0]["code"]) == ("gateway", "SchedulerAway")
    reason = {"code": "NoRoom", "detail": "cpu", "numbers": {"free": 1}}
    bench.asker.answerers["tg.ask.scheduler.explain"] = lambda question: {
        "job": question["job"],
        "state": "pending",
        "position": 3,
        "reasons": [reason],
    }
    why = (await bench.client.get(f"/v1/jobs/{job_id}")).json()["why"]
    assert (why["answered_by"], why["position"], why["reasons"]) == ("scheduler", 3, [reason])
    bench.asker.answerers["tg.ask.scheduler.explain"] = lambda _: {"reasons": 5}
    unclear = (await bench.client.get(f"/v1/jobs/{job_id}/explain")).json()
    assert unclear["reasons"][0]["code"] == "SchedulerUnclear"
    bench.asker.answerers["tg.ask.scheduler.explain"] = lambda _: {"error": "later", "busy": {"retry_seconds": 2}}
    busy = (await bench.client.get(f"/v1/jobs/{job_id}/explain")).json()
    assert (busy["answered_by"], busy["reasons"][0]["code"]) == ("gateway", "SchedulerBusy")
    assert busy["reasons"][0]["detail"] == "later"


async def test_a_running_job_that_waits_for_its_phase_says_why(bench: Any) -> None:
    job_id = (await bench.submit({**SHORT, "phase_entry": "asked"})).json()["job_id"]
    told_id = (await bench.submit(SHORT)).json()["job_id"]
    for each in (job_id, told_id):
        await _place(bench, each)
        await _end(bench, each, e.JobStarted, 1)
    reason = {"code": "PhaseAsked", "detail": "waits to enter learning", "numbers": {"rank": 0}}
    said = {"job": job_id, "state": "running", "position": 0, "reasons": [reason]}
    assert "why" not in (await bench.client.get(f"/v1/jobs/{job_id}")).json(), "it runs, and nobody said anything"
    bench.asker.answerers["tg.ask.scheduler.explain"] = lambda _: said
    assert (await bench.client.get(f"/v1/jobs/{job_id}")).json()["why"]["reasons"] == [reason]
    assert "why" not in (await bench.client.get(f"/v1/jobs/{told_id}")).json()
    said["reasons"] = []
    assert "why" not in (await bench.client.get(f"/v1/jobs/{job_id}")).json()


async def test_logs_come_from_the_node_of_the_attempt(bench: Any) -> None:
    job_id = (await bench.submit(SHORT)).json()["job_id"]
    path = f"/v1/jobs/{job_id}/logs"
    assert (await bench.client.get(path)).json()["code"] == "no_attempt"
    await _place(bench, job_id)
    away = await bench.client.get(path)
    assert (away.status_code, away.json()["code"]) == (503, "node_away")
    assert away.headers["retry-after"] == "1"
    text = b"hello world\n"

    def answer(question: Any) -> dict[str, Any]:
        part = text[question["offset"] :][: question["limit"]]
        data = base64.b64encode(part).decode()
        return {
            "data": data,
            "offset": question["offset"],
            "size": len(text),
            "truncated": False,
            "components": ["main"],
        }

    bench.asker.answerers["tg.ask.node.n1.logs"] = answer
    got = (await bench.client.get(path, params={"offset": 6, "limit": 5})).json()
    assert base64.b64decode(got["data"]) == b"world"
    assert (got["next_offset"], got["size"], got["node"], got["attempt"]) == (11, 12, "n1", 1)
    assert bench.asker.asked[-1] == (
        "tg.ask.node.n1.logs",
        {"job": job_id, "attempt": 1, "rank": 0, "component": "main", "replica": 0, "offset": 6, "limit": 5},
    )
    tail = (await bench.client.get(path, params={"offset": -3})).json()
    assert base64.b64decode(tail["data"]) == b"ld\n"
    assert (await bench.client.get(path, params={"component": "other"})).status_code == 422
    assert (await bench.client.get(path, params={"attempt": 2})).json()["code"] == "no_attempt"
    bench.asker.answerers["tg.ask.node.n1.logs"] = lambda _: {"error": "no such log"}
    assert (await bench.client.get(path)).json()["code"] == "no_log"
    bench.asker.answerers["tg.ask.node.n1.logs"] = lambda _: {"data": 5}
    assert (await bench.client.get(path)).status_code == 502


async def test_checkpoints_and_restore(bench: Any) -> None:
    job_id = (await bench.submit(SHORT)).json()["job_id"]
    await _place(bench, job_id)
    for step in (10, 20):
        ref = e.CheckpointRef(id=f"c{step}", step=step, attempt=1, directory=f"d{step}")
        about = {"tenant": "default", "job": job_id, "attempt": 1, "rank": 0, "node": "n1"}
        await bench.history.write("node", "n1", e.CheckpointSaved(**bench.history.stamp(), **about, checkpoint=ref))
    await bench.settle()
    listed = (await bench.client.get("/v1/checkpoints", params={"job": job_id})).json()
    assert [each["step"] for each in listed["checkpoints"]] == [20, 10]
    path = f"/v1/jobs/{job_id}/restore"
    assert (await bench.client.post(path, json={"layer": "model"})).json()["code"] == "checkpoint_away"
    bench.asker.answerers["tg.ask.checkpoint.restore"] = lambda question: {"plan": question}
    plan = await bench.client.post(path, json={"layers": ["model", "state"], "checkpoint_id": "c10"})
    assert plan.json() == {"plan": {"job": job_id, "layers": ["model", "state"], "checkpoint_id": "c10"}}
    assert (await bench.client.post(path, json={})).json()["plan"]["layers"] == []
    for bad in ({"layers": []}, {"layers": ["a"], "layer": "b"}, {"layer": 5}, [], {"lyer": "model"}):
        assert (await bench.client.post(path, json=bad)).status_code == 422
    refusal = {"error": "no layer", "code": "UnknownLayer", "accepted": ["model"]}
    bench.asker.answerers["tg.ask.checkpoint.restore"] = lambda _: refusal
    refused = await bench.client.post(path, json={})
    assert (refused.status_code, refused.json()["reason"]) == (404, "UnknownLayer")


async def test_a_rollback_is_asked_of_the_checkpoint_service(bench: Any) -> None:
    job_id = (await bench.submit(SHORT)).json()["job_id"]
    await bench.settle()
    path, body = f"/v1/jobs/{job_id}/rollback", {"layers": ["model"], "checkpoint_id": "c10"}
    assert (await bench.client.post(path, json=body)).json()["code"] == "checkpoint_away"
    bench.asker.answerers["tg.ask.checkpoint.rollback"] = lambda question: {"made": question}
    made = await bench.client.post(path, json={**body, "reason": "it collapsed"})
    assert (made.status_code, made.json()) == (202, {"made": {"job": job_id, **body}})
    for bad in ({}, {"layers": ["model"]}, {"layers": [], "checkpoint_id": "c"}, {**body, "more": 1}):
        assert (await bench.client.post(path, json=bad)).status_code == 422
    for code, status in (("UnknownLayer", 404), ("NotPromoted", 503)):
        bench.asker.answerers["tg.ask.checkpoint.rollback"] = lambda _, code=code: {"error": "no", "code": code}
        refused = await bench.client.post(path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (status, "cannot_roll_back")


async def test_events_page_through_the_journal_in_its_order(bench: Any) -> None:
    first, second = [(await bench.submit(SHORT)).json()["job_id"] for _ in range(2)]
    await bench.history.decide(
        *[e.JobRejected(**bench.history.stamp(), tenant="default", job=job, revision=0) for job in (first, second)]
    )
    await bench.settle()
    seen, after = [], None
    while True:
        params = {"limit": 1, **({"after": after} if after else {})}
        page = (await bench.client.get("/v1/events", params=params)).json()
        seen.extend((each["seq"], each["index"], each["kind"], each["job_id"]) for each in page["events"])
        after = page["next"]
        if after is None:
            break
    assert seen == [
        (1, 0, "JobSubmitted", first),
        (2, 0, "JobSubmitted", second),
        (3, 0, "JobRejected", first),
        (3, 1, "JobRejected", second),
    ]
    of_one = (await bench.client.get("/v1/events", params={"job": second, "after": "2"})).json()["events"]
    assert [(each["seq"], each["index"]) for each in of_one] == [(3, 1)]


async def test_status_and_nodes_show_the_whole(bench: Any) -> None:
    await bench.submit(SHORT)
    await bench.history.node()
    await bench.history.decide(e.LeaderElected(**bench.history.stamp(), epoch=1, instance="s1"))
    await bench.settle()
    status = (await bench.client.get("/v1/status")).json()
    assert (status["jobs"], status["nodes"], status["journal"]["lag"]) == ({"pending": 1}, {"reachable": 1}, 0)
    assert (status["leader"]["epoch"], [each["service"] for each in status["services"]]) == (
        1,
        ["gateway", "node", "scheduler"],
    )
    assert status["leads_now"] is False, "it was elected, and nobody answers"
    (node,) = (await bench.client.get("/v1/nodes")).json()["nodes"]
    assert (node["node"], node["images"], node["capacity"]["gpus"]) == ("n1", {"host": "sha256:aa"}, 2)


@pytest.mark.parametrize(
    ("error", "code"),
    [(JournalUnavailableError("no"), "journal_unavailable"), (JournalFullError("full"), "journal_full")],
)
async def test_a_journal_that_takes_nothing_is_a_503(
    bench: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    async def append(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(bench.journal, "append", append)
    for key in (None, "k"):
        answer = await bench.submit(SHORT, key=key)
        assert (answer.status_code, answer.json()["code"]) == (503, code)
        assert answer.headers["retry-after"] == "1"


async def test_a_frame_that_arrives_after_all_is_found_by_the_retry(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = bench.journal.append

    async def lose_the_answer(*args: Any, **kwargs: Any) -> Any:
        await append(*args, **kwargs)
        raise JournalUnavailableError("the answer was lost")

    monkeypatch.setattr(bench.journal, "append", lose_the_answer)
    assert (await bench.submit(SHORT, key="k")).status_code == 503
    monkeypatch.setattr(bench.journal, "append", append)
    answer = await bench.submit(SHORT, key="k")
    assert (answer.status_code, answer.headers["idempotency-replayed"]) == (201, "true")
    assert await bench.journal.end() == 1
