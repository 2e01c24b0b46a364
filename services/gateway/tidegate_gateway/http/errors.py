"""Errors as HTTP answers: what was refused, why, and what is accepted. Nothing a client sends ends in a 500."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events.journal.base import JournalFullError

from tidegate_gateway import blobs, desk
from tidegate_gateway.acts import base as acts
from tidegate_gateway.asks.base import BadAnswerError, BusyError
from tidegate_gateway.database.connection import DatabaseAwayError
from tidegate_gateway.fold import NotCaughtUpError
from tidegate_gateway.submission.problems import Problem, Problems

RETRY_AFTER_SECONDS = 1

Handler = Callable[[Request, Exception], Awaitable[Response]]
_RETRY = "the same request again after the seconds in Retry-After"
_RETRY_WITH_ROOM = _RETRY + ", once the keeper or an operator has made room; nothing was taken"
_RETRY_WITH_KEY = _RETRY + "; a submission needs the same idempotency key, since it may have been taken"


class ApiError(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str, problem: str, accepted: str, **extra: Any) -> None:
        super().__init__(problem)
        self.status = status
        self.body = {"code": code, "problem": problem, "accepted": accepted, **extra}


class ProblemsError(Exception):
    """A request with problems: 422 and the list of them."""

    def __init__(self, found: list[Problem]) -> None:
        super().__init__(f"{len(found)} problems")
        self.found = found

    @classmethod
    def raise_if(cls, problems: Problems) -> None:
        """Raise if there are any problems."""
        if problems:
            raise cls(problems.listed())


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return `content` as JSON."""
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def unknown_job(job_id: str) -> ApiError:
    """Return the answer for a job that is not there; an id of odd form is not repeated."""
    named = f" {job_id}" if job_id.isascii() and job_id.isprintable() and len(job_id) <= 64 else ""
    return ApiError(404, "unknown_job", f"there is no job{named}", "the job_id of a submitted job; see GET /v1/jobs")


def already_ended(job_id: str, state: str) -> ApiError:
    """Return the answer for what can only be asked of a job that goes on."""
    problem, accepted = f"the job is {state}, which is its end", "a job that has not ended"
    return ApiError(409, "already_ended", problem, accepted, job_id=job_id, state=state)


def _answer(status: int, code: str, problem: str, accepted: str, **extra: Any) -> Response:
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if status == 503 else None
    return json_response({"code": code, "problem": problem, "accepted": accepted, **extra}, status, headers)


async def _on_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if error.status == 503 else None
    return json_response(error.body, error.status, headers)


async def _on_problems(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemsError)
    return json_response(error.found, 422)


async def _on_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _answer(404, "not_found", "there is nothing at this path", "the paths of docs/reference/http-api.md")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        answer = _answer(405, "method_not_allowed", "the path does not know this method", f"one of {allowed}")
        answer.headers["allow"] = allowed
        return answer
    return _answer(error.status_code, "refused", str(error.detail), "see docs/reference/http-api.md")


def _fixed(status: int, code: str, accepted: str) -> Handler:
    async def handle(_request: Request, error: Exception) -> Response:
        return _answer(status, code, str(error), accepted)

    return handle


async def _on_other_spec(_request: Request, error: Exception) -> Response:
    assert isinstance(error, desk.OtherSpecError)
    return _answer(
        409,
        "other_spec",
        "the idempotency key was used for another specification",
        "the same specification with this key, or another key for another job",
        job_id=error.job_id,
    )


async def _on_wrong_digest(_request: Request, error: Exception) -> Response:
    assert isinstance(error, blobs.WrongDigestError)
    return json_response(
        [Problem("$", f"the bytes have the sha256 {error.actual}", "bytes with the digest of the path")], 422
    )


async def _on_unknown(_request: Request, error: Exception) -> Response:
    assert isinstance(error, acts.UnknownError)
    return _answer(404, f"unknown_{error.what}", str(error), error.accepted)


async def _on_cannot(_request: Request, error: Exception) -> Response:
    assert isinstance(error, acts.CannotError)
    return json_response(error.body, 409)


async def _on_wrong(_request: Request, error: Exception) -> Response:
    assert isinstance(error, acts.WrongError)
    return json_response([error.problem], 422)


async def _on_busy(_request: Request, error: Exception) -> Response:
    assert isinstance(error, BusyError)
    answer = _answer(503, "scheduler_busy", str(error), _RETRY)
    answer.headers["retry-after"] = str(error.retry_seconds)
    return answer


HANDLERS: dict[Any, Handler] = {
    ApiError: _on_api_error,
    ProblemsError: _on_problems,
    HTTPException: _on_http,
    DatabaseAwayError: _fixed(503, "database_away", _RETRY + "; what is recent is answered without it"),
    NotCaughtUpError: _fixed(503, "not_caught_up", _RETRY_WITH_KEY),
    JournalFullError: _fixed(503, "journal_full", _RETRY_WITH_ROOM),
    BusyError: _on_busy,
    BadAnswerError: _fixed(502, "bad_answer", _RETRY),
    acts.UnknownError: _on_unknown,
    acts.CannotError: _on_cannot,
    acts.WrongError: _on_wrong,
    desk.BusyError: _fixed(503, "busy", _RETRY),
    desk.JournalAwayError: _fixed(503, "journal_unavailable", _RETRY_WITH_KEY),
    desk.OtherSpecError: _on_other_spec,
    blobs.WrongDigestError: _on_wrong_digest,
    blobs.BlobTooLargeError: _fixed(413, "too_large", "a smaller blob; data belongs into inputs"),
    blobs.UploadTooSlowError: _fixed(408, "too_slow", "an upload that keeps sending"),
    blobs.UploadsBusyError: _fixed(503, "busy", _RETRY),
    blobs.StorageFullError: _fixed(507, "storage_full", "nothing until an operator makes room"),
}
