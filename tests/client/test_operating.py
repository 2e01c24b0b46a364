"""What operators ask through both clients: the path, the body, who asks, and the errors that come of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tidegate.client import KEPT, Conflict, Forbidden
from tidegate.client.source import submitter

from tests.client.scripted import Answer, Scripted

Caller = Callable[..., Any]
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, Any]] = [
    ("hold", ("j-1",), {}, "/v1/jobs/j-1/hold", {}),
    ("release", ("j-1", "done"), {}, "/v1/jobs/j-1/release", {"reason": "done"}),
    ("suspend", ("j-1", "demo"), {}, "/v1/jobs/j-1/suspend", {"reason": "demo"}),
    ("resume", ("j-1",), {}, "/v1/jobs/j-1/resume", {}),
    ("requeue", ("j-1", "slow"), {}, "/v1/jobs/j-1/requeue", {"reason": "slow"}),
    ("set_priority", ("j-1", 4), {}, "/v1/jobs/j-1/priority", {"priority": 4}),
    ("set_limit", ("j-1", None), {}, "/v1/jobs/j-1/limit", {"time_limit_seconds": None}),
    ("drain_node", ("n1", 9, "disk"), {}, "/v1/nodes/n1/drain", {"deadline_ns": 9, "reason": "disk"}),
    ("resume_node", ("n1",), {}, "/v1/nodes/n1/resume", {}),
    ("forget_node", ("n1", "scrapped"), {}, "/v1/nodes/n1/forget", {"reason": "scrapped"}),
    ("create_queue", ("t",), {}, "/v1/queues", {"tenant": "t", "weight": 1, "guaranteed": None, "ceiling": None}),
    ("set_queue", ("t",), {"ceiling": None}, "/v1/queues/t", {"ceiling": None}),
    (
        "set_queue",
        ("t",),
        {"weight": 2, "guaranteed": {"gpus": 1}},
        "/v1/queues/t",
        {"weight": 2, "guaranteed": {"gpus": 1}},
    ),
    ("stop_queue", ("t", "budget"), {}, "/v1/queues/t/stop", {"reason": "budget"}),
    ("start_queue", ("t",), {}, "/v1/queues/t/start", {}),
    (
        *("plan_maintenance", ("k", ["n1"], 1, 2), {}, "/v1/maintenance"),
        {"name": "k", "nodes": ["n1"], "start_ns": 1, "end_ns": 2},
    ),
    ("cancel_maintenance", ("k",), {}, "/v1/maintenance/k/cancel", {}),
]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.client.flow.RETRY_DELAYS_SECONDS", (0.0, 0.0))


@pytest.mark.parametrize("asked", CALLS, ids=lambda asked: asked[0])
def test_what_is_asked_names_who_asks(gateway: Scripted, call: Caller, asked: Any) -> None:
    method, arguments, named, path, body = asked
    gateway.on("POST", path, Answer(drop=True), Answer(202, {"changed": True}))
    assert call(method, *arguments, **named) == {"changed": True}
    first, second = gateway.seen("POST", path)
    assert first.json == second.json == body, "a call that got no answer is made again"
    assert second.headers["x-tidegate-submitter"] == submitter()


def test_lists_are_unwrapped(gateway: Scripted, call: Caller) -> None:
    gateway.on("GET", "/v1/queues", Answer(200, {"queues": [{"tenant": "t"}]}))
    gateway.on("GET", "/v1/maintenance", Answer(200, {"maintenance": [{"name": "k"}]}))
    assert call("queues") == [{"tenant": "t"}]
    assert call("maintenance", everything=True) == [{"name": "k"}]
    assert gateway.seen("GET", "/v1/maintenance")[0].query == {"all": "1"}


@pytest.mark.parametrize(("status", "kind"), [(403, Forbidden), (409, Conflict)])
def test_a_refusal_is_an_error_of_its_own(gateway: Scripted, call: Caller, status: int, kind: Any) -> None:
    gateway.on("POST", "/v1/jobs/j-1/hold", Answer(status, {"code": "c", "problem": "no", "accepted": "yes"}))
    with pytest.raises(kind, match="no") as refused:
        call("hold", "j-1")
    assert (refused.value.status, refused.value.code, refused.value.remedy) == (status, "c", "yes")


def test_a_dry_run_sends_the_specification_alone(gateway: Scripted, call: Caller, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    gateway.on("POST", "/v1/jobs", Answer(200, {"verdict": "waits"}))
    assert call("dry_run", {"workdir": str(tmp_path), "seed": 3}, overrides={"priority": 9}) == {"verdict": "waits"}
    (asked,) = gateway.requests
    assert (asked.method, asked.query) == ("POST", {"dry_run": "1"})
    assert (asked.json["seed"], asked.json["priority"], "workdir" in asked.json) == (3, 9, False)


def test_what_is_kept_says_so() -> None:
    assert repr(KEPT) == "KEPT"
