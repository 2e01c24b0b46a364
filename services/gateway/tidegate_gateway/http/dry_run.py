"""Asks the scheduler what would become of a job: nothing is taken, nothing is written."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.responses import Response
from tidegate_events import subjects
from tidegate_events.events import Reason
from tidegate_events.spec import JobSpec

from tidegate_gateway.asks.base import (
    DRY_RUN_SECONDS_MAX,
    ERROR_CHARS_MAX,
    BadAnswerError,
    BusyError,
    NobodyAnsweredError,
)
from tidegate_gateway.http.errors import ApiError, json_response
from tidegate_gateway.http.state import Gateway
from tidegate_gateway.view import render


class _Displaced(msgspec.Struct, frozen=True):
    job: str
    tenant: str
    priority: int
    how: Literal["leaves", "moves", "hands_back"] = "leaves"


class _Verdict(msgspec.Struct, frozen=True):
    """What the scheduler answers."""

    verdict: Literal["starts_now", "displaces", "waits", "never"]
    nodes: tuple[str, ...] = ()
    starts_at_ns: int | None = None
    starts_basis: str | None = None
    displaces: tuple[_Displaced, ...] = ()
    position: int = 0
    reasons: tuple[Reason, ...] = ()


async def answer(gateway: Gateway, spec: JobSpec) -> Response:
    """Return the scheduler's verdict on a job that is fit to be submitted.

    Raises ApiError, BusyError and BadAnswerError.
    """
    question = {"spec": msgspec.to_builtins(spec)}
    try:
        said = await gateway.asker.ask(subjects.ask_scheduler("dry-run"), question, DRY_RUN_SECONDS_MAX)
    except BusyError:
        raise
    except NobodyAnsweredError as error:
        problem = f"no scheduler that leads answered within {DRY_RUN_SECONDS_MAX:g} s"
        raise ApiError(503, "scheduler_away", problem, "the same again later; a real submission is taken") from error
    if error_text := said.get("error"):
        raise BadAnswerError(f"the scheduler could not say: {str(error_text)[:ERROR_CHARS_MAX]}")
    try:
        verdict = msgspec.convert(said, _Verdict)
    except msgspec.ValidationError as error:
        raise BadAnswerError(f"the scheduler's answer cannot be read: {error}") from error
    document = {
        "dry_run": True,
        "tenant": spec.tenant,
        "now_ns": gateway.clock.now_ns(),
        "verdict": verdict.verdict,
        "nodes": verdict.nodes,
        "starts_at_ns": verdict.starts_at_ns,
        "starts_basis": verdict.starts_basis,
        "displaces": [
            {"job_id": each.job, "tenant": each.tenant, "priority": each.priority, "how": each.how}
            for each in verdict.displaces
        ],
        "position": verdict.position or None,
        "reasons": [render.reason(each) for each in verdict.reasons],
    }
    return json_response(document)
