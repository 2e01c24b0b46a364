"""Acts on nodes, queues and maintenance over HTTP: what is written and shown, refused, and not written twice."""

from __future__ import annotations

from typing import Any

import pytest
from tidegate_events import events as e

SECOND_NS = 1_000_000_000
OPERATOR = {"x-tidegate-submitter": "olga"}


async def _post(bench: Any, path: str, **body: Any) -> Any:
    return await bench.client.post(path, json=body, headers=OPERATOR)


async def _written(bench: Any) -> list[Any]:
    frames = [recorded.frame async for recorded in bench.journal.read(0, await bench.journal.end())]
    return [event for frame in frames if frame.writer.service == "gateway" for event in frame.events]


async def _node(bench: Any, name: str = "n1") -> dict[str, Any]:
    nodes = (await bench.client.get("/v1/nodes")).json()["nodes"]
    return next(node for node in nodes if node["node"] == name)


async def _with_node(bench: Any) -> None:
    await bench.history.node()
    await bench.history.decide(e.LeaderElected(**bench.history.stamp(), epoch=1, instance="s1"))
    await bench.settle()


async def test_a_drain_is_shown_with_its_deadline_outlives_the_agent_and_ends_by_resume(bench: Any) -> None:
    await _with_node(bench)
    deadline_ns = bench.clock.now_ns() + 600 * SECOND_NS
    drained = await _post(bench, "/v1/nodes/n1/drain", deadline_ns=deadline_ns, reason="disk")
    assert (drained.status_code, drained.json()["changed"]) == (202, True)
    assert (await _post(bench, "/v1/nodes/n1/drain", deadline_ns=deadline_ns, reason="disk")).status_code == 200
    await bench.history.node(incarnation=2)
    await bench.settle()
    node = await _node(bench)
    assert (node["drain"]["deadline_ns"], node["drain"]["actor"], node["drain"]["note"]) == (
        deadline_ns,
        "olga",
        "disk",
    )
    assert node["reason"] == {"code": "NodeDrained", "detail": "by olga: disk", "numbers": {"deadline_seconds": 600}}
    resumed = await _post(bench, "/v1/nodes/n1/resume")
    assert (resumed.status_code, resumed.json()["drain"], resumed.json()["reason"]) == (202, None, None)
    assert (await _post(bench, "/v1/nodes/n1/resume")).status_code == 200
    assert [type(event).__name__ for event in await _written(bench)] == ["NodeDrainRequested", "NodeResumeRequested"]


async def test_a_cordon_is_shown_and_ends_by_resume(bench: Any) -> None:
    await _with_node(bench)
    reason = e.Reason(code="FailsJobs", detail="3 jobs in 10 min")
    await bench.history.decide(e.NodeCordoned(**bench.history.stamp(node="n1", incarnation=1), reasons=(reason,)))
    await bench.settle()
    node = await _node(bench)
    assert (node["reason"]["code"], node["cordoned"][0]["code"]) == ("NodeCordoned", "FailsJobs")
    assert (await _post(bench, "/v1/nodes/n1/resume")).json()["cordoned"] == []


async def test_a_lost_node_is_forgotten_when_an_operator_says_so(bench: Any) -> None:
    await _with_node(bench)
    refused = await _post(bench, "/v1/nodes/n1/forget", reason="scrapped")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_lost")
    await bench.history.decide(e.NodeLost(**bench.history.stamp(node="n1", incarnation=1)))
    await bench.settle()
    forgotten = await _post(bench, "/v1/nodes/n1/forget", reason="scrapped")
    assert (forgotten.status_code, forgotten.json()) == (202, {"node": "n1", "forgotten": True, "changed": True})
    assert (await bench.client.get("/v1/nodes")).json()["nodes"] == []
    assert (await _post(bench, "/v1/nodes/n1/forget")).status_code == 404
    (event,) = await _written(bench)
    assert (type(event).__name__, event.node, event.actor, event.note) == (
        "NodeForgetRequested",
        "n1",
        "olga",
        "scrapped",
    )


async def test_what_cannot_be_of_a_node_is_refused(bench: Any) -> None:
    await _with_node(bench)
    now_ns = bench.clock.now_ns()
    unknown = await _post(bench, "/v1/nodes/n9/drain", deadline_ns=now_ns + SECOND_NS, reason="x")
    assert (unknown.status_code, unknown.json()["code"], unknown.json()["accepted"]) == (
        404,
        "unknown_node",
        "one of n1",
    )
    refused = await _post(bench, "/v1/nodes/n1/resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "not_drained")
    for body in (
        {"deadline_ns": now_ns - 3600 * SECOND_NS, "reason": "x"},
        {"deadline_ns": now_ns + 2 * 365 * 86400 * SECOND_NS, "reason": "x"},
        {"deadline_ns": now_ns + SECOND_NS},
        {"reason": "x"},
    ):
        assert (await _post(bench, "/v1/nodes/n1/drain", **body)).status_code == 422
    assert await _written(bench) == []


async def test_a_queue_is_created_changed_stopped_and_started(bench: Any) -> None:
    await _with_node(bench)
    wished = {"weight": 3, "guaranteed": {"cpu_millis": 2000}, "ceiling": {"gpus": 4}}
    made = await _post(bench, "/v1/queues", tenant="lab-b", reason="grant", **wished)
    assert made.status_code == 202
    assert (made.json()["weight"], made.json()["ceiling"]) == (3, {"cpu_millis": 0, "memory_mib": 0, "gpus": 4})
    assert (await _post(bench, "/v1/queues", tenant="lab-b", **wished)).status_code == 200
    clash = await _post(bench, "/v1/queues", tenant="lab-b")
    assert (clash.status_code, clash.json()["code"]) == (409, "queue_exists")
    changed = await _post(bench, "/v1/queues/lab-b", ceiling=None)
    assert (changed.json()["ceiling"], changed.json()["weight"]) == (None, 3)
    assert (await _post(bench, "/v1/queues/lab-b/stop", reason="budget")).json()["stopped"] is True
    assert (await _post(bench, "/v1/queues/lab-b/stop", reason="budget")).status_code == 200
    assert (await _post(bench, "/v1/queues/lab-b/start")).json()["stopped"] is False
    assert [(event.stopped, event.ceiling is None) for event in await _written(bench)] == [
        (False, False),
        (False, True),
        (True, True),
        (False, True),
    ]


async def test_a_queue_is_shown_with_what_its_tenant_uses(bench: Any, spec: Any) -> None:
    await _with_node(bench)
    job = (await bench.submit()).json()["job_id"]
    waiting = (await bench.submit()).json()["job_id"]
    quota = e.Quota(component="learner", cpu_millis=500, memory_mib=256)
    member = e.MemberPlacement(rank=0, node="n1", incarnation=1, quotas=(quota,), gpu_indices=(0,))
    about = {"tenant": "lab-a", "job": job, "revision": 0}
    await bench.history.decide(e.JobPlaced(**bench.history.stamp(**about), attempt=1, members=(member,)))
    await bench.client.post(f"/v1/jobs/{waiting}/hold")
    await bench.settle()
    (queue,) = (await bench.client.get("/v1/queues")).json()["queues"]
    used = {"cpu_millis": 500, "memory_mib": 256, "gpus": 1, "gpu_memory_mib": 0, "gpu_millis": 0}
    assert (queue["tenant"], queue["used"], queue["changed_ns"]) == ("lab-a", used, None)
    assert (queue["running"], queue["waiting"], queue["held"]) == (1, 0, 1)
    # Its queue was never set, but it has jobs: what is not given stays at the defaults.
    assert (await _post(bench, "/v1/queues/lab-a", weight=2)).json()["weight"] == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "where"),
    [
        ("/v1/queues/nobody", {"weight": 2}, 404, "unknown_queue"),
        ("/v1/queues/nobody/start", {}, 404, "unknown_queue"),
        ("/v1/queues", {}, 422, "tenant"),
        ("/v1/queues", {"tenant": "a/b"}, 422, "tenant"),
        ("/v1/queues", {"tenant": "t", "weight": 0}, 422, "weight"),
        ("/v1/queues", {"tenant": "t", "ceiling": {"memory": 1}}, 422, "ceiling.memory"),
        ("/v1/queues", {"tenant": "t", "guaranteed": {"gpus": 2}, "ceiling": {"gpus": 1}}, 422, "guaranteed.gpus"),
        ("/v1/queues/t/stop", {}, 422, "reason"),
    ],
)
async def test_what_a_queue_cannot_be_is_refused(bench: Any, path: str, body: Any, status: int, where: str) -> None:
    await _with_node(bench)
    refused = await _post(bench, path, **body)
    assert refused.status_code == status, refused.text
    said = refused.json()
    assert where == (said["code"] if status == 404 else said[0]["path"])
    assert await _written(bench) == []


def _window(bench: Any, start_seconds: int = 3600, end_seconds: int = 7200, **fields: Any) -> dict[str, Any]:
    now_ns = bench.clock.now_ns()
    times = {"start_ns": now_ns + start_seconds * SECOND_NS, "end_ns": now_ns + end_seconds * SECOND_NS}
    return {"name": "kernel", "nodes": ["n1"], **times, **fields}


async def test_a_maintenance_window_is_planned_goes_on_and_is_over_by_itself(bench: Any) -> None:
    await _with_node(bench)
    window = _window(bench, reason="6.12")
    planned = await _post(bench, "/v1/maintenance", **window)
    assert (planned.status_code, planned.json()["state"]) == (202, "ahead")
    assert (await _post(bench, "/v1/maintenance", **window)).status_code == 200
    assert [each["name"] for each in (await _node(bench))["maintenance"]] == ["kernel"]
    assert (await _node(bench))["reason"] is None
    other = await _post(bench, "/v1/maintenance", **{**window, "end_ns": window["end_ns"] + 1})
    assert (other.status_code, other.json()["code"]) == (409, "maintenance_exists")
    bench.clock.advance(3600)
    assert (await _node(bench))["reason"]["code"] == "Maintenance"
    bench.clock.advance(3600)
    assert (await _node(bench))["reason"] is None
    assert (await bench.client.get("/v1/maintenance")).json()["maintenance"] == []
    (over,) = (await bench.client.get("/v1/maintenance?all=1")).json()["maintenance"]
    assert over["state"] == "over"
    assert (await _post(bench, "/v1/maintenance/kernel/cancel")).json()["code"] == "over"
    assert (await _post(bench, "/v1/maintenance", **_window(bench))).status_code == 202, "the name is free again"


async def test_a_window_is_cancelled_once(bench: Any) -> None:
    await _with_node(bench)
    await _post(bench, "/v1/maintenance", **_window(bench))
    cancelled = await _post(bench, "/v1/maintenance/kernel/cancel", reason="later")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelled")
    assert cancelled.json()["cancelled_by"] == "olga"
    assert (await _post(bench, "/v1/maintenance/kernel/cancel")).status_code == 200
    unknown = await _post(bench, "/v1/maintenance/other/cancel")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_maintenance")
    assert [type(event).__name__ for event in await _written(bench)] == ["MaintenancePlanned", "MaintenanceCancelled"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"nodes": ["n1", "n9"]}, "nodes[1]"),
        ({"nodes": []}, "nodes"),
        ({"start_seconds": 7200, "end_seconds": 3600}, "end_ns"),
        ({"start_seconds": -7200, "end_seconds": -3600}, "end_ns"),
        ({"name": "two words"}, "name"),
    ],
)
async def test_a_window_that_cannot_be_is_refused(bench: Any, fields: Any, path: str) -> None:
    await _with_node(bench)
    refused = await _post(bench, "/v1/maintenance", **_window(bench, **fields))
    assert refused.status_code == 422, refused.text
    assert [problem["path"] for problem in refused.json()] == [path]
    assert await _written(bench) == []


async def test_more_windows_than_the_scheduler_keeps_are_refused(bench: Any) -> None:
    await _with_node(bench)
    for number in range(100):
        assert (await _post(bench, "/v1/maintenance", **_window(bench, name=f"w{number}"))).status_code == 202
    refused = await _post(bench, "/v1/maintenance", **_window(bench, name="one-more"))
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many")
    await _post(bench, "/v1/maintenance/w7/cancel")
    assert (await _post(bench, "/v1/maintenance", **_window(bench, name="one-more"))).status_code == 202
