"""Endpoints by which people act on a job: hold, release, suspend, resume, requeue, priority, limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events import trace

from tidegate_gateway.acts import jobs as acts
from tidegate_gateway.acts.base import AlreadyEndedError, Asked, EventMaker, UnknownJobError
from tidegate_gateway.http.asking import permit_for_tenant, read_asked
from tidegate_gateway.http.errors import ProblemsError, already_ended, json_response, unknown_job
from tidegate_gateway.http.state import Gateway, fresh, gateway_of, trace_headers
from tidegate_gateway.submission import bounds
from tidegate_gateway.submission.problems import Problems
from tidegate_gateway.submission.shape import Field, integer, optional
from tidegate_gateway.view.model import Job
from tidegate_gateway.view.projection import View

log = structlog.get_logger()

Endpoint = Callable[[Request], Awaitable[Response]]
_SIMPLE = Callable[[View, str, Asked], EventMaker | None]
_PRIORITY = {"priority": Field(integer(0, bounds.PRIORITY_MAX, "priority"), required=True)}
_LIMIT = {"time_limit_seconds": Field(optional(integer(1, bounds.YEAR_SECONDS, "seconds")), required=True)}


def _endpoint(name: str, act: _SIMPLE, *, needs_reason: bool = False) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        asked, _ = await read_asked(request, needs_reason=needs_reason)
        return await _take(request, name, asked, act)

    endpoint.__name__ = name
    endpoint.__doc__ = f"POST /v1/jobs/{{job_id}}/{name}."
    return endpoint


hold = _endpoint("hold", acts.hold)
release = _endpoint("release", acts.release)
suspend = _endpoint("suspend", acts.suspend, needs_reason=True)
resume = _endpoint("resume", acts.resume)
requeue = _endpoint("requeue", acts.requeue, needs_reason=True)


async def priority(request: Request) -> Response:
    """POST /v1/jobs/{job_id}/priority."""
    asked, given = await read_asked(request, _PRIORITY)
    wished = given["priority"]

    def act(view: View, job_id: str, asked: Asked) -> EventMaker | None:
        judge_priority(gateway_of(request), acts.live_job(view, job_id), wished)
        return acts.set_priority(view, job_id, asked, wished)

    return await _take(request, "priority", asked, act)


async def limit(request: Request) -> Response:
    """POST /v1/jobs/{job_id}/limit."""
    asked, given = await read_asked(request, _LIMIT)
    return await _take(
        request, "limit", asked, lambda view, job, asked: acts.set_limit(view, job, asked, given["time_limit_seconds"])
    )


def judge_priority(gateway: Gateway, job: Job, wished: int) -> None:
    """Refuse a priority above the tenant's bound; what is there already may stay. Raises ProblemsError."""
    tenant = gateway.tenants.of(job.tenant)
    most = max(tenant.max_priority if tenant is not None else 0, job.priority)
    if wished > most:
        problems = Problems()
        problems.add("priority", f"{wished} is more than the tenant may use", f"0 to {most} for this job")
        raise ProblemsError(problems.listed())


async def _take(request: Request, name: str, asked: Asked, act: _SIMPLE) -> Response:
    """Judge and write what is asked of a job; answer 202 where something was written, 200 where it was so already."""
    gateway, job_id = gateway_of(request), request.path_params["job_id"]
    await fresh(gateway)
    try:
        job = acts.live_job(gateway.fold.view, job_id)
        permit_for_tenant(gateway, asked.actor, job.tenant)
        written = await gateway.desk.record(lambda view: act(view, job_id, asked))
    except UnknownJobError as error:
        raise unknown_job(job_id) from error
    except AlreadyEndedError as error:
        raise already_ended(job_id, error.state) from error
    structlog.contextvars.bind_contextvars(job=job_id, trace_id=trace.trace_id(job_id))
    log.info("act_taken", act=name, tenant=job.tenant, written=written)
    return json_response(_document(job, written), 202 if written else 200, trace_headers(job_id))


def _document(job: Job, written: bool) -> dict[str, object]:
    return {
        "job_id": job.id,
        "trace_id": trace.trace_id(job.id),
        "tenant": job.tenant,
        "state": job.state,
        "held": job.held,
        "suspend_requested": job.suspend_requested,
        "requeue_requested": job.requeue_requested,
        "priority": job.priority,
        "time_limit_seconds": job.time_limit_seconds,
        "changed": written,
    }
