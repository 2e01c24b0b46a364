"""Endpoints whose answers come from a node's agent or from the checkpoint service."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events import subjects

from tidegate_gateway.asks.base import (
    CHECKPOINT_SECONDS_MAX,
    NODE_SECONDS_MAX,
    BadAnswerError,
    NobodyAnsweredError,
)
from tidegate_gateway.http.asking import permit_for_tenant, read_asked
from tidegate_gateway.http.bodies import read_body
from tidegate_gateway.http.errors import ApiError, ProblemsError, json_response
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import Gateway, find_job, fresh, gateway_of, trace_headers
from tidegate_gateway.submission import bounds
from tidegate_gateway.submission.problems import Problems, listed_names
from tidegate_gateway.submission.shape import Field, record, sequence, text
from tidegate_gateway.submission.text import parse
from tidegate_gateway.view.model import Job

LOG_BYTES_MAX, LOG_BYTES_DEFAULT = 256 * 1024, 64 * 1024
LOG_OFFSET_MAX = 2**53
LAYERS_MAX = 16
RESTORE_BODY_BYTES_MAX = 16 * 1024
ERROR_CHARS_MAX = 1000
RESTORE_SUBJECT = "tg.ask.checkpoint.restore"
ROLLBACK_SUBJECT = "tg.ask.checkpoint.rollback"

_LAYER = text(64, pattern=bounds.NAME, accepted="the name of a layer, such as model")
_RESTORE = {
    "layers": Field(sequence(_LAYER, LAYERS_MAX, count_min=1, of="layers")),
    "layer": Field(_LAYER),
    "checkpoint_id": Field(text(128, pattern=bounds.CODE_DIGEST, accepted="the id of a checkpoint")),
}
_ROLLBACK = {
    "layers": Field(sequence(_LAYER, LAYERS_MAX, count_min=1, of="layers"), required=True),
    "checkpoint_id": Field(text(128, pattern=bounds.CODE_DIGEST, accepted="the id of a checkpoint"), required=True),
}


class _LogPart(msgspec.Struct, frozen=True):
    """What an agent answers; `data` is base64."""

    data: str = ""
    offset: int = 0
    size: int = 0
    truncated: bool = False
    components: tuple[str, ...] = ()


async def logs(request: Request) -> Response:
    """GET /v1/jobs/{job_id}/logs."""
    gateway = gateway_of(request)
    parameters = Parameters(request, "component", "replica", "rank", "attempt", "offset", "limit")
    component = parameters.text("component", bounds.COMPONENT, "the name of a component")
    replica = parameters.integer("replica", 0, 0, bounds.REPLICAS_MAX)
    rank = parameters.integer("rank", 0, 0, bounds.GANG_SIZE_MAX)
    attempt = parameters.integer("attempt", 0, 0, 1_000_000)
    offset = parameters.integer("offset", 0, -LOG_OFFSET_MAX, LOG_OFFSET_MAX)
    limit = parameters.integer("limit", LOG_BYTES_DEFAULT, 1, LOG_BYTES_MAX)
    parameters.done()
    await fresh(gateway)
    job = await find_job(gateway, request.path_params["job_id"])
    attempt = attempt or job.attempt
    component = _component(job, component)
    where = {"job": job.id, "attempt": attempt, "rank": rank, "component": component, "replica": replica}
    node = _node(job, attempt, rank)
    if offset < 0:
        size = (await _ask_log(gateway, node, {**where, "offset": 0, "limit": 1})).size
        offset = max(0, size + offset)
    part = await _ask_log(gateway, node, {**where, "offset": offset, "limit": limit})
    answer = {
        "job_id": job.id,
        "component": component,
        "replica": replica,
        "rank": rank,
        "attempt": attempt,
        "node": node,
        "offset": part.offset,
        "next_offset": part.offset + _decoded_bytes(part.data),
        "size": part.size,
        "truncated": part.truncated,
        "data": part.data,
        "components": part.components or [each.name for each in job.spec.components],
    }
    return json_response(answer, headers=trace_headers(job.id))


def _component(job: Job, name: str | None) -> str:
    known = [component.name for component in job.spec.components]
    if name is not None and name not in known:
        problems = Problems()
        problems.add("?component", "the job has no such component", "one of " + ", ".join(known))
        raise ProblemsError(problems.listed())
    return name or job.spec.main_component.name


def _node(job: Job, attempt: int, rank: int) -> str:
    """Return where a member ran. Raises ApiError where it never did."""
    for known in job.attempts:
        for member in known.members:
            if known.number == attempt and member.placement.rank == rank:
                return member.placement.node
    have = listed_names(str(known.number) for known in job.attempts)
    raise ApiError(
        404,
        "no_attempt",
        "the job has no such attempt and rank" if job.attempts else "the job was not placed yet, so there is no log",
        f"attempts {have}, ranks below {job.spec.gang_size}" if job.attempts else "the same once the job has run",
    )


def _decoded_bytes(data: str) -> int:
    """Return how many bytes base64 text stands for."""
    return len(data) // 4 * 3 - data[-2:].count("=")


async def _ask_log(gateway: Gateway, node: str, question: dict[str, Any]) -> _LogPart:
    try:
        answer = await gateway.asker.ask(subjects.ask_node(node, "logs"), question, NODE_SECONDS_MAX)
    except NobodyAnsweredError as error:
        raise ApiError(503, "node_away", f"the agent of node {node} did not answer", "the same again later") from error
    if error_text := answer.get("error"):
        why = str(error_text)[:ERROR_CHARS_MAX]
        raise ApiError(404, "no_log", f"node {node} has no such log: {why}", "a log that is there")
    try:
        return msgspec.convert(answer, _LogPart)
    except msgspec.ValidationError as error:
        raise BadAnswerError(f"the answer of node {node} cannot be read: {error}") from error


async def restore(request: Request) -> Response:
    """POST /v1/jobs/{job_id}/restore."""
    gateway = gateway_of(request)
    problems = Parameters(request).problems
    body = await read_body(request, RESTORE_BODY_BYTES_MAX, problems)
    value = parse(body, problems) if body is not None else None
    if value is None and problems:
        raise ProblemsError(problems.listed())
    read = record(value, "", problems, _RESTORE, {}) or {}
    if "layers" in read and "layer" in read:
        problems.add("layers", "stands beside layer", '{"layers": ["model"]}, or {} for all layers')
    ProblemsError.raise_if(problems)
    await fresh(gateway)
    job = await find_job(gateway, request.path_params["job_id"])
    question = {"job": job.id, "layers": [read["layer"]] if "layer" in read else list(read.get("layers", ()))}
    if "checkpoint_id" in read:
        question["checkpoint_id"] = read["checkpoint_id"]
    plan = await _ask_checkpoint(gateway, RESTORE_SUBJECT, question, "cannot_restore")
    return json_response(plan, headers=trace_headers(job.id))


async def rollback(request: Request) -> Response:
    """POST /v1/jobs/{job_id}/rollback."""
    gateway = gateway_of(request)
    asked, given = await read_asked(request, _ROLLBACK)
    await fresh(gateway)
    job = await find_job(gateway, request.path_params["job_id"])
    permit_for_tenant(gateway, asked.actor, job.tenant)
    question = {"job": job.id, "layers": list(given["layers"]), "checkpoint_id": given["checkpoint_id"]}
    made = await _ask_checkpoint(gateway, ROLLBACK_SUBJECT, question, "cannot_roll_back")
    return json_response(made, 202, trace_headers(job.id))


async def _ask_checkpoint(gateway: Gateway, subject: str, question: dict[str, Any], code: str) -> dict[str, Any]:
    try:
        answer = await gateway.asker.ask(subject, question, CHECKPOINT_SECONDS_MAX)
    except NobodyAnsweredError as error:
        raise ApiError(
            503, "checkpoint_away", "the checkpoint service did not answer", "the same again later"
        ) from error
    if error_text := answer.get("error"):
        reason = str(answer.get("code", ""))
        status = 503 if reason in ("TierUnavailable", "NotPromoted") else 404
        accepted = answer.get("accepted") or "a checkpoint and layers that are there"
        raise ApiError(status, code, str(error_text)[:ERROR_CHARS_MAX], str(accepted), reason=reason)
    return answer
