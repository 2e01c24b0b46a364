"""Both clients against a real HTTP server: uploads, retries that are safe, logs that are followed."""

from __future__ import annotations

import base64
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tidegate.client import Client, LogSelection, NotFound, Submission, Unavailable, ValidationError

from tests.client.scripted import Answer, Scripted

Caller = Callable[..., Any]
ACCEPTED = {"job_id": "j-1", "trace_id": "f" * 32, "tenant": "default", "state": "pending"}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.client.flow.RETRY_DELAYS_SECONDS", (0.0, 0.0))
    monkeypatch.setattr("tidegate.client.core.POLL_SECONDS_MIN", 0.001)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    return tmp_path


def _blob_path(gateway: Scripted) -> str:
    return next(one.path for one in gateway.requests if one.method == "HEAD")


def _takes_blobs(gateway: Scripted, *, has_it: bool, first_put: Answer | None = None) -> None:
    answers = [first_put] if first_put else []

    class Paths(dict[tuple[str, str], list[Answer]]):
        def get(self, key: Any, default: Any = None) -> Any:
            method, path = key
            if path.startswith("/v1/blobs/"):
                if method == "HEAD":
                    return [Answer(200 if has_it else 404)]
                return [answers.pop(), Answer(201)] if answers else [Answer(201, {})]
            return super().get(key, default)

    gateway._answers = Paths(gateway._answers)


def test_a_working_directory_is_sent_once_and_named_by_its_digest(
    gateway: Scripted, call: Caller, workdir: Path
) -> None:
    gateway.on("POST", "/v1/jobs", Answer(201, ACCEPTED))
    _takes_blobs(gateway, has_it=False)
    sent: list[tuple[int, int]] = []
    accepted = call("submit", {"workdir": str(workdir)}, on_upload=lambda done, total: sent.append((done, total)))
    assert accepted == Submission("j-1", "f" * 32, "default", "pending")
    put = next(one for one in gateway.requests if one.method == "PUT")
    assert put.path == _blob_path(gateway) == f"/v1/blobs/{gateway.seen('POST', '/v1/jobs')[0].json['workdir']}"
    assert sent[-1] == (len(put.body), len(put.body))
    with tarfile.open(fileobj=io.BytesIO(put.body)) as tar:
        assert tar.getnames() == ["train.py"]


def test_what_the_gateway_has_is_not_sent_again(gateway: Scripted, call: Caller, workdir: Path) -> None:
    gateway.on("POST", "/v1/jobs", Answer(201, ACCEPTED))
    _takes_blobs(gateway, has_it=True)
    call("submit", {"workdir": str(workdir)})
    assert [one.method for one in gateway.requests] == ["HEAD", "POST"]


def test_an_upload_that_broke_off_is_sent_again_whole(gateway: Scripted, call: Caller, workdir: Path) -> None:
    gateway.on("POST", "/v1/jobs", Answer(201, ACCEPTED))
    _takes_blobs(gateway, has_it=False, first_put=Answer(drop=True))
    call("submit", {"workdir": str(workdir)})
    first, second = (one.body for one in gateway.requests if one.method == "PUT")
    assert first == second != b""


@pytest.mark.parametrize("lost", [Answer(drop=True), Answer(503, {"code": "busy", "problem": "busy"})])
def test_a_submission_whose_answer_was_lost_is_repeated_with_the_same_key_and_body(
    gateway: Scripted, call: Caller, lost: Answer
) -> None:
    gateway.on("POST", "/v1/jobs", lost, Answer(201, ACCEPTED, {"idempotency-replayed": "true"}))
    assert call("submit", {"name": "x"}).job_id == "j-1"
    first, second = gateway.seen("POST", "/v1/jobs")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] != ""
    assert first.body == second.body


def test_two_submissions_without_a_key_are_two_jobs(gateway: Scripted, call: Caller) -> None:
    gateway.on("POST", "/v1/jobs", Answer(201, ACCEPTED))
    call("submit", {"name": "x"})
    call("submit", {"name": "x"})
    first, second = gateway.seen("POST", "/v1/jobs")
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]


def test_a_refused_specification_lists_its_problems(gateway: Scripted, call: Caller) -> None:
    problems = [{"path": "gpus", "problem": "unknown field", "accepted": "resources"}]
    gateway.on("POST", "/v1/jobs", Answer(422, problems))
    with pytest.raises(ValidationError) as caught:
        call("submit", {"gpus": 1})
    assert caught.value.problems == problems
    assert len(gateway.requests) == 1


def test_reads_return_what_the_gateway_said(gateway: Scripted, call: Caller) -> None:
    gateway.on("GET", "/v1/jobs/j-1", Answer(200, {"job_id": "j-1", "state": "running"}))
    gateway.on("GET", "/v1/jobs", Answer(200, {"jobs": [{"job_id": "j-1"}], "total": 1, "next": None}))
    gateway.on("GET", "/v1/nodes", Answer(200, {"nodes": [{"node": "n1"}]}))
    gateway.on("GET", "/v1/checkpoints", Answer(200, {"checkpoints": [{"id": "c"}], "dropped": 0}))
    gateway.on("GET", "/v1/status", Answer(200, {"ready": True}))
    gateway.on("GET", "/v1/jobs/j-1/timeline", Answer(200, {"events": []}))
    gateway.on("GET", "/v1/jobs/j-1/explain", Answer(200, {"position": 1}))
    gateway.on("POST", "/v1/jobs/j-1/cancel", Answer(202, {"state": "stopping"}))
    gateway.on("POST", "/v1/jobs/j-1/restore", Answer(200, {"steps": []}))
    assert call("job", "j-1")["state"] == "running"
    assert call("wait", "j-1", ("running",))["state"] == "running"
    assert call("jobs", tenant="lab", states=("running",)) == [{"job_id": "j-1"}]
    assert gateway.seen("GET", "/v1/jobs")[0].query == {"tenant": "lab", "state": "running", "limit": "100"}
    assert call("nodes") == [{"node": "n1"}]
    assert call("checkpoints", "j-1") == [{"id": "c"}]
    assert call("status") == {"ready": True}
    assert call("timeline", "j-1") == {"events": []}
    assert call("explain", "j-1") == {"position": 1}
    assert call("cancel", "j-1") == {"state": "stopping"}
    assert gateway.seen("POST", "/v1/jobs/j-1/cancel")[0].headers["x-tidegate-submitter"]
    assert call("restore", "j-1", ["model"], "c-9") == {"steps": []}
    assert gateway.seen("POST", "/v1/jobs/j-1/restore")[0].json == {"layers": ["model"], "checkpoint_id": "c-9"}


def _chunk(attempt: int, offset: int, data: bytes, size: int | None = None) -> Answer:
    document = {"component": "learner", "replica": 0, "rank": 0, "attempt": attempt, "offset": offset}
    document.update(next_offset=offset + len(data), size=size or offset + len(data), truncated=False)
    return Answer(200, {**document, "data": base64.b64encode(data).decode()})


def test_a_log_is_read_to_its_end(gateway: Scripted, call: Caller) -> None:
    gateway.on("GET", "/v1/jobs/j-1/logs", _chunk(1, 0, b"abc", 6), _chunk(1, 3, b"def", 6))
    chunks = call("logs", "j-1", LogSelection("learner", 1, 2, 3))
    assert b"".join(chunk.data for chunk in chunks) == b"abcdef"
    query = gateway.seen("GET", "/v1/jobs/j-1/logs")[1].query
    assert {**query, "limit": ""} == {
        "component": "learner", "replica": "1", "rank": "2", "attempt": "3", "offset": "3", "limit": "",
    }  # fmt: skip


def test_following_goes_over_a_suspension_into_the_next_attempt_and_ends_with_the_job(
    gateway: Scripted, call: Caller
) -> None:
    missing = Answer(404, {"code": "no_attempt", "problem": "nothing ran yet"})
    first = [_chunk(1, 0, b"one "), _chunk(1, 4, b"two "), _chunk(1, 8, b"")]
    gateway.on("GET", "/v1/jobs/j-1/logs", missing, *first, _chunk(2, 0, b"three"), _chunk(2, 5, b""))
    states = [("pending", 0), ("running", 2), ("completed", 2)]
    jobs = [Answer(200, {"job_id": "j-1", "state": state, "attempt": attempt}) for state, attempt in states]
    gateway.on("GET", "/v1/jobs/j-1", *jobs)
    chunks = call("logs", "j-1", follow=True)
    assert [(chunk.attempt, chunk.data) for chunk in chunks] == [(1, b"one "), (1, b"two "), (2, b"three")]
    asked = [(one.query.get("attempt"), one.query["offset"]) for one in gateway.seen("GET", "/v1/jobs/j-1/logs")]
    assert asked == [(None, "0"), (None, "0"), ("1", "4"), ("1", "8"), ("2", "0"), ("2", "5"), ("2", "5")]


def test_following_an_unknown_job_ends_at_once(gateway: Scripted, call: Caller) -> None:
    gateway.on("GET", "/v1/jobs/j-9/logs", Answer(404, {"code": "unknown_job", "problem": "no such job"}))
    with pytest.raises(NotFound):
        call("logs", "j-9", follow=True)


def test_a_gateway_that_is_not_there_is_said_to_be_unavailable() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        client.status()


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    gateway: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    gateway.on("GET", "/v1/status", Answer(200, {"ready": True}))
    with Client(gateway.url) as client:
        assert client.status() == {"ready": True}
