"""The endpoints of the line: who waits, why, where in line, and when it may start; and one job's part of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events import subjects
from tidegate_events.events import Reason

from tidegate_gateway.asks.base import EXPLAIN_SECONDS_MAX, BadAnswerError, BusyError, NobodyAnsweredError
from tidegate_gateway.http.errors import json_response
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import Gateway, fresh, gateway_of
from tidegate_gateway.submission import bounds
from tidegate_gateway.view import render
from tidegate_gateway.view.census import place_of
from tidegate_gateway.view.model import Job
from tidegate_gateway.view.projection import View

QUEUE_MAX, QUEUE_DEFAULT = 1000, 200


class Explanation(msgspec.Struct, frozen=True):
    """What the scheduler says of one job that waits."""

    job: str = ""
    reasons: tuple[Reason, ...] = ()
    position: int | None = None
    starts_at_ns: int | None = None
    starts_basis: str | None = None


class _Queue(msgspec.Struct, frozen=True):
    """What the scheduler says of the whole line."""

    queue: tuple[Explanation, ...] = ()


async def queue(request: Request) -> Response:
    """GET /v1/queue."""
    gateway = gateway_of(request)
    parameters = Parameters(request, "tenant", "limit")
    tenant = parameters.text("tenant", bounds.TENANT, "the name of a tenant")
    limit = parameters.integer("limit", QUEUE_DEFAULT, 1, QUEUE_MAX)
    parameters.done()
    await fresh(gateway)
    line = await in_line(gateway, limit, tenant)
    answer = {
        "answered_by": line.answered_by,
        "now_ns": gateway.clock.now_ns(),
        "total": line.total,
        "queue": line.first,
    }
    return json_response(answer)


class Line(msgspec.Struct, frozen=True):
    """Who answered, how many wait, and the first of them."""

    answered_by: str
    total: int
    first: list[dict[str, Any]]


async def in_line(gateway: Gateway, at_most: int, tenant: str | None = None) -> Line:
    """Return those who wait, of one tenant or of all, the first in line first; their places are those among all.

    The order is the scheduler's; whoever it did not name (it has not folded them yet, or they are far behind) follows
    by priority and submission.
    """
    census = gateway.fold.view.census
    if not census.waiting:
        return Line("gateway", 0, [])
    try:
        answer = await gateway.asker.ask(subjects.ask_scheduler("queue"), {}, EXPLAIN_SECONDS_MAX)
        said = msgspec.convert(answer, _Queue).queue
    except (NobodyAnsweredError, BadAnswerError, msgspec.ValidationError):
        said = ()
    first = [
        _waiting(job, place, explanation)
        for job, place, explanation in islice(_placed(gateway.fold.view, said, tenant), at_most)
    ]
    return Line("scheduler" if said else "gateway", len(census.waiting_of(tenant)), first)


def _placed(
    view: View, said: Sequence[Explanation], tenant: str | None
) -> Iterator[tuple[Job, int, Explanation | None]]:
    """Yield who waits with the place in the whole line: those who were named, then the others."""
    waiting, named, known = view.census.waiting, dict[str, Explanation](), {each.job: each for each in said}
    for each in sorted((each for each in said if each.position), key=lambda each: each.position or 0):
        job = view.jobs.get(each.job)
        if job is not None and job.waiting and each.job not in named:
            named[each.job] = each
            if tenant in (None, job.tenant):
                yield job, len(named), each
    passed = sorted(waiting.index(place_of(view.jobs[name])) for name in named)
    for place in view.census.waiting_of(tenant):
        if place[-1] not in named:
            ahead = waiting.index(place)
            behind_it = len(passed) - bisect_left(passed, ahead)
            yield view.jobs[place[-1]], ahead + behind_it + 1, known.get(place[-1])


def asks_for_phases(job: Job) -> bool:
    """Say whether the job runs and may wait for a phase that it asked for."""
    return job.state == "running" and job.spec.phase_entry == "asked"


async def explain(gateway: Gateway, job: Job) -> dict[str, Any]:
    """Return why the job waits, in the scheduler's words, or why there are none."""
    if not job.waiting and not asks_for_phases(job):
        return _by_gateway(job, "NotWaiting", f"the job is {job.state}")
    try:
        answer = await gateway.asker.ask(subjects.ask_scheduler("explain"), {"job": job.id}, EXPLAIN_SECONDS_MAX)
        explanation = msgspec.convert(answer, Explanation)
    except BusyError as error:
        return _by_gateway(job, "SchedulerBusy", str(error))
    except NobodyAnsweredError:
        return _by_gateway(job, "SchedulerAway", f"the scheduler did not answer within {EXPLAIN_SECONDS_MAX:g} s")
    except (BadAnswerError, msgspec.ValidationError) as error:
        return _by_gateway(job, "SchedulerUnclear", f"the scheduler's answer cannot be read: {error}")
    return {
        "job_id": job.id,
        "state": job.state,
        "answered_by": "scheduler",
        "position": explanation.position or None,
        **_said(explanation),
    }


def _said(explanation: Explanation) -> dict[str, Any]:
    return {
        "reasons": [render.reason(each) for each in explanation.reasons],
        "starts_at_ns": explanation.starts_at_ns,
        "starts_basis": explanation.starts_basis,
    }


def _by_gateway(job: Job, code: str, detail: str) -> dict[str, Any]:
    explanation = Explanation(reasons=(Reason(code=code, detail=detail),))
    about = {"job_id": job.id, "state": job.state, "answered_by": "gateway", "position": None}
    return {**about, **_said(explanation)}


def _waiting(job: Job, place: int, said: Explanation | None) -> dict[str, Any]:
    explanation = said if said is not None else Explanation(reasons=job.reasons)
    return {
        "position": place,
        "job_id": job.id,
        "tenant": job.tenant,
        "name": job.spec.name,
        "state": job.state,
        "priority": job.priority,
        "held": job.held,
        "gang_size": job.spec.gang_size,
        "submitted_at_ns": job.submitted_at_ns,
        "attempt": job.attempt,
        **_said(explanation),
    }
