"""Endpoints that take something: submissions, also those that only ask what would become of them, and cancellations."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events import trace
from tidegate_events.spec import JobSpec, PathBinding

from tidegate_gateway import identity
from tidegate_gateway.acts import jobs as acts
from tidegate_gateway.acts.base import AlreadyEndedError, UnknownJobError
from tidegate_gateway.desk import Accepted
from tidegate_gateway.http import dry_run
from tidegate_gateway.http.asking import permit_for_tenant, read_actor
from tidegate_gateway.http.bodies import read_body, read_header
from tidegate_gateway.http.errors import ProblemsError, already_ended, json_response, unknown_job
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import READ_SECONDS_MAX, Gateway, fresh, gateway_of, trace_headers
from tidegate_gateway.submission import bounds, fit, places
from tidegate_gateway.submission.job import Draft, read_job
from tidegate_gateway.submission.problems import Problems
from tidegate_gateway.submission.text import parse

log = structlog.get_logger()


async def submit(request: Request) -> Response:
    """POST /v1/jobs; with `dry_run=1` nothing is taken, and the answer says what would become of the job."""
    gateway = gateway_of(request)
    parameters = Parameters(request, "dry_run")
    only_asks = bool(parameters.integer("dry_run", 0, 0, 1))
    problems = parameters.problems
    submitter = read_header(request, "x-tidegate-submitter", bounds.SUBMITTER, bounds.SUBMITTER_FORM, problems)
    key = read_header(request, "idempotency-key", bounds.IDEMPOTENCY_KEY, bounds.IDEMPOTENCY_KEY_FORM, problems)
    body = await read_body(request, gateway.settings.limits.body_bytes_max, problems)
    value = parse(body, problems) if body is not None else None
    if value is None and problems:
        raise ProblemsError(problems.listed())
    draft = read_job(value, problems, submitter=submitter)
    if key and draft.idempotency_key and key != draft.idempotency_key:
        problems.add("idempotency_key", "differs from the header idempotency-key", "one key, in one place")
    key = key or draft.idempotency_key
    spec = draft.spec if not problems else None
    if spec is None:
        await _judge(gateway, draft, value if isinstance(value, dict) else (), problems)
        raise ProblemsError(problems.listed())
    await gateway.fold.wait_caught_up(READ_SECONDS_MAX)
    judged = Problems()
    bindings = await _judge(gateway, draft, value or {}, judged)
    spec = msgspec.structs.replace(spec, **bindings)
    if only_asks:
        ProblemsError.raise_if(judged)
        return await dry_run.answer(gateway, spec)
    return _accepted(await _take(gateway, spec, key, judged), spec.tenant)


async def _take(gateway: Gateway, spec: JobSpec, key: str | None, problems: Problems) -> Accepted:
    """Put a well-formed job into the journal, once for each key, unless there are problems with cluster or tenant."""
    if key is not None:
        # A retry gets its answer even where the cluster has changed since and would refuse the job now.
        job_id = identity.job_id(spec.tenant, key)
        if (known := await gateway.desk.find(job_id, spec)) is not None:
            return known
    else:
        job_id = identity.job_id(spec.tenant, f"{identity.spec_digest(spec)} {secrets.token_hex(16)}")
    ProblemsError.raise_if(problems)
    return await gateway.desk.submit(job_id, spec, keyed=key is not None)


async def _judge(
    gateway: Gateway, draft: Draft, given: Iterable[str], problems: Problems
) -> dict[str, tuple[PathBinding, ...]]:
    """Note all that is wrong beyond the text; return the path bindings with links resolved."""
    if not draft.values:
        return {}
    fit.judge_tenant(draft.values, gateway.tenants, problems)
    fit.judge_cluster(draft.values, given, gateway.fold.view.nodes.values(), problems)
    # The file system may be slow; the event loop must not wait for it.
    return await asyncio.to_thread(places.judge, draft.values, gateway.places, problems)


def _accepted(accepted: Accepted, tenant: str) -> Response:
    job_id, trace_id = accepted.job_id, trace.trace_id(accepted.job_id)
    structlog.contextvars.bind_contextvars(job=job_id, trace_id=trace_id)
    log.info("job_accepted", tenant=tenant, replayed=accepted.replayed)
    headers = trace_headers(job_id)
    if accepted.replayed:
        headers["idempotency-replayed"] = "true"
    answer = {"job_id": job_id, "trace_id": trace_id, "tenant": tenant, "state": "pending"}
    return json_response(answer, 201, headers)


async def cancel(request: Request) -> Response:
    """DELETE /v1/jobs/{job_id} and POST /v1/jobs/{job_id}/cancel."""
    gateway = gateway_of(request)
    parameters = Parameters(request)
    actor = read_actor(request, parameters.problems)
    parameters.done()
    await fresh(gateway)
    job_id = request.path_params["job_id"]
    try:
        job = acts.live_job(gateway.fold.view, job_id)
        permit_for_tenant(gateway, actor, job.tenant)
        await gateway.desk.record(lambda view: acts.cancel(view, job_id, actor))
    except UnknownJobError as error:
        raise unknown_job(job_id) from error
    except AlreadyEndedError as error:
        if error.state == "cancelled":
            return _cancelled(job_id, error.tenant, "cancelled", 200)
        raise already_ended(job_id, error.state) from error
    return _cancelled(job_id, job.tenant, job.state, 202)


def _cancelled(job_id: str, tenant: str, state: str, status: int) -> Response:
    trace_id = trace.trace_id(job_id)
    structlog.contextvars.bind_contextvars(job=job_id, trace_id=trace_id)
    log.info("cancel_taken", tenant=tenant, state=state)
    answer = {"job_id": job_id, "trace_id": trace_id, "tenant": tenant, "state": state, "cancel_requested": True}
    return json_response(answer, status, trace_headers(job_id))
