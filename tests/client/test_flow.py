"""The flows without any I/O: what is retried, how often, and which error comes of which answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tidegate.client import Conflict, GatewayError, JobEnded, NotFound, Unavailable, ValidationError, WaitTimeout, core
from tidegate.client.flow import RETRY_DELAYS_SECONDS, Call, Emit, NoReply, Pause, Reply, ask_document, exchange


class Play:
    """Runs a flow against scripted answers (the last is repeated); notes its calls, pauses and what it emitted."""

    def __init__(self, *answers: Reply | NoReply) -> None:
        self.answers = list(answers)
        self.calls: list[Call] = []
        self.pauses: list[float] = []
        self.emitted: list[Any] = []

    def now(self) -> float:
        return sum(self.pauses)

    def run(self, flow: Any) -> Any:
        answer: Any = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as done:
                return done.value
            answer = None
            if isinstance(step, Pause):
                self.pauses.append(step.seconds)
            elif isinstance(step, Emit):
                self.emitted.append(step.value)
            else:
                self.calls.append(step)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def _reply(status: int, document: Any = None, retry_after: str = "") -> Reply:
    return Reply(status, b"" if document is None else json.dumps(document).encode(), retry_after)


GET = Call("GET", "/v1/status")


@pytest.mark.parametrize("lost", [NoReply("reset"), _reply(502), _reply(503), _reply(504), _reply(429)])
def test_what_may_pass_is_tried_again_and_the_answer_is_returned(lost: Any) -> None:
    play = Play(lost, lost, _reply(200, {"a": 1}))
    assert play.run(ask_document(GET)) == {"a": 1}
    assert play.calls == [GET] * 3
    assert play.pauses == list(RETRY_DELAYS_SECONDS[:2])


def test_tries_are_bounded() -> None:
    play = Play(NoReply("connection refused"))
    with pytest.raises(Unavailable, match=r"connection refused.*tidegate up"):
        play.run(exchange(GET))
    assert len(play.calls) == len(RETRY_DELAYS_SECONDS) + 1
    assert play.pauses == list(RETRY_DELAYS_SECONDS)


@pytest.mark.parametrize(
    ("asked", "paused"), [("5", 5.0), ("999999", 10.0), ("0", 0.1), ("Tue, 1 Jan", 0.1), ("", 0.1)]
)
def test_the_server_may_ask_for_a_longer_pause_within_a_bound(asked: str, paused: float) -> None:
    play = Play(_reply(503, retry_after=asked), _reply(200, {}))
    play.run(exchange(GET))
    assert play.pauses == [paused]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, NotFound), (410, NotFound), (409, Conflict), (413, GatewayError), (500, GatewayError), (405, GatewayError)],
)
def test_a_refusal_is_final_and_typed(status: int, kind: type[GatewayError]) -> None:
    play = Play(_reply(status, {"code": "some_code", "problem": "it is so", "accepted": "something else"}))
    with pytest.raises(kind, match=r"it is so something else") as caught:
        play.run(exchange(GET))
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code, caught.value.remedy) == (status, "some_code", "something else")
    assert len(play.calls) == 1


def test_problems_keep_every_finding() -> None:
    found = [{"path": "name", "problem": "too long", "accepted": "63"}, {"path": "$", "problem": "x", "accepted": "y"}]
    with pytest.raises(ValidationError, match=r"name: too long \(accepted: 63\); \$: x") as caught:
        Play(_reply(422, found)).run(exchange(GET))
    assert caught.value.problems == found


@pytest.mark.parametrize("body", [b"", b"oops", b"[1]", b'{"detail": "no"}', b"\xff\xfe"])
def test_a_422_in_another_shape_is_still_a_list_of_problems(body: bytes) -> None:
    with pytest.raises(ValidationError) as caught:
        Play(Reply(422, body)).run(exchange(GET))
    assert [sorted(problem) for problem in caught.value.problems] == [["accepted", "path", "problem"]]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'"x"', b""])
def test_an_answer_that_no_gateway_gives_is_named_as_such(body: bytes) -> None:
    with pytest.raises(GatewayError, match=r"not a Tidegate gateway.*TIDEGATE_URL"):
        Play(Reply(200, body)).run(ask_document(GET))


def _job(state: str, attempt: int = 1) -> Reply:
    return _reply(200, {"job_id": "j-1", "state": state, "attempt": attempt})


def _wait(play: Play, states: tuple[str, ...], timeout_seconds: float | None = None) -> Any:
    seen: list[str] = []
    flow = core.wait("j-1", states, timeout_seconds, play.now, lambda job: seen.append(job["state"]))
    return play.run(flow), seen


def test_waiting_looks_until_the_state_is_there() -> None:
    play = Play(_job("pending"), _job("pending"), _job("running"))
    detail, seen = _wait(play, ("running", "completed"))
    assert detail["state"] == "running"
    assert seen == ["pending", "pending", "running"]
    assert play.pauses == sorted(play.pauses)


def test_waiting_for_a_state_that_cannot_come_any_more_ends() -> None:
    with pytest.raises(JobEnded, match=r"j-1 is failed.*running") as caught:
        _wait(Play(_job("pending"), _job("failed")), ("running",))
    assert caught.value.state == "failed"


def test_waiting_has_a_timeout_that_is_not_overslept() -> None:
    play = Play(_job("running"))
    with pytest.raises(WaitTimeout, match=r"running after 5 s") as caught:
        _wait(play, ("completed",), 5.0)
    assert caught.value.state == "running"
    assert play.now() == pytest.approx(5.0)


def test_waiting_outlives_a_gateway_that_is_restarted_but_not_one_that_is_gone() -> None:
    away = [NoReply("refused")] * 3 * (len(RETRY_DELAYS_SECONDS) + 1)
    detail, _ = _wait(Play(*away, _job("completed")), ("completed",))
    assert detail["state"] == "completed"
    play = Play(NoReply("refused"))
    with pytest.raises(Unavailable):
        _wait(play, ("completed",))
    assert core.OUTAGE_SECONDS_MAX <= play.now() < core.OUTAGE_SECONDS_MAX + 10


def test_pages_are_read_until_there_are_enough_or_no_more() -> None:
    pages = [_reply(200, {"jobs": [{"job_id": str(i)}] * 2, "next": 7 - i}) for i in range(2)]
    last = _reply(200, {"jobs": [{"job_id": "x"}], "next": None})
    play = Play(*pages, last)
    assert len(play.run(core.jobs("lab-a", ("pending", "running"), 100))) == 5
    assert [call.params.get("before") for call in play.calls] == [None, "7", "6"]
    assert play.calls[0].params["state"] == "pending,running"
    play = Play(*pages, last)
    play.run(core.jobs(None, (), 3))
    assert [call.params["limit"] for call in play.calls] == ["3", "1"]


@pytest.mark.parametrize("hostile", ["../nodes", "a/b", "a?x=1", "a#b", "ü"])
def test_an_id_stays_one_segment_of_the_path(hostile: str) -> None:
    play = Play(_reply(404, {"problem": "unknown"}))
    with pytest.raises(NotFound):
        play.run(core.job(hostile))
    path = play.calls[0].path
    assert path.startswith("/v1/jobs/")
    assert not set("/?#") & set(path.removeprefix("/v1/jobs/"))
