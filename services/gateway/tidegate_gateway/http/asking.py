"""Reads what somebody asks for: who it is, why, and the fields of the body; and refuses whom it does not belong to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from tidegate_gateway.acts.base import Asked
from tidegate_gateway.http.bodies import read_body, read_header
from tidegate_gateway.http.errors import ApiError, ProblemsError
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import Gateway
from tidegate_gateway.submission import bounds
from tidegate_gateway.submission.job import DEFAULT_SUBMITTER
from tidegate_gateway.submission.problems import Problems, listed_names
from tidegate_gateway.submission.shape import Field, record, text
from tidegate_gateway.submission.text import parse

BODY_BYTES_MAX = 64 * 1024
REASON_CHARS_MAX = 500
_REASON = re.compile(r"[^\x00-\x1f\x7f-\x9f]*")
_REASON_FORM = f"one line of at most {REASON_CHARS_MAX} characters"
_HINTS = {"note": "reason", "why": "reason", "comment": "reason"}


def read_actor(request: Request, problems: Problems) -> str:
    """Return who asks, by the header that says so."""
    pattern, form = bounds.SUBMITTER, bounds.SUBMITTER_FORM
    return read_header(request, "x-tidegate-submitter", pattern, form, problems) or DEFAULT_SUBMITTER


async def read_asked(
    request: Request, fields: Mapping[str, Field] | None = None, *, needs_reason: bool = False
) -> tuple[Asked, dict[str, Any]]:
    """Return who asks, and the body's fields other than `reason`. Raises ProblemsError with all that is wrong."""
    problems = Parameters(request).problems
    actor = read_actor(request, problems)
    known = {**(fields or {}), "reason": Field(text(REASON_CHARS_MAX, pattern=_REASON, accepted=_REASON_FORM))}
    body = await read_body(request, BODY_BYTES_MAX, problems)
    value = parse(body, problems) if body else {}
    read = record(value, "", problems, known, _HINTS) if body is not None and not (value is None and problems) else None
    given = read or {}
    note = str(given.pop("reason", "")).strip()
    if needs_reason and not note and not problems:
        problems.add("reason", "is missing: what is asked for interrupts others' work", _REASON_FORM)
    ProblemsError.raise_if(problems)
    return Asked(actor, note), given


def permit_for_tenant(gateway: Gateway, actor: str, tenant: str) -> None:
    """Raise ApiError unless `actor` acts for the tenant."""
    if gateway.tenants.acts_for(actor, tenant):
        return
    bounds_of = gateway.tenants.of(tenant)
    members = bounds_of.members if bounds_of is not None else None
    accepted = "somebody who acts for it" + (f": {listed_names(members)}, or an operator" if members else "")
    raise ApiError(403, "not_a_member", f"who asks does not act for tenant {tenant}", accepted, tenant=tenant)


def permit_operator(gateway: Gateway, actor: str) -> None:
    """Raise ApiError unless `actor` is an operator."""
    if not gateway.tenants.is_operator(actor):
        accepted = "an operator: " + (listed_names(gateway.tenants.operators or ()) or "nobody, by the tenants file")
        raise ApiError(403, "not_an_operator", "who asks is no operator", accepted)
