"""Endpoints about the whole: health, nodes, status and the journal's events."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import aclosing
from typing import Any

import msgspec
import nats.errors
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events.journal.base import JournalError, Recorded

from tidegate_gateway.http.errors import ApiError, json_response
from tidegate_gateway.http.jobs import JOB_FORM
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import Gateway, find_job, fresh, gateway_of
from tidegate_gateway.view import render
from tidegate_gateway.view.model import Entry

JOURNAL_SECONDS_MAX = 2.0
EVENTS_MAX, EVENTS_DEFAULT = 1000, 200
_CURSOR = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))?")

Cursor = tuple[int, int]


async def healthz(request: Request) -> Response:
    """GET /healthz: the process answers."""
    return json_response({"alive": True})


async def readyz(request: Request) -> Response:
    """GET /readyz: reads are current and the bus is there."""
    gateway = gateway_of(request)
    answer = {
        "ready": gateway.ready,
        "fold_caught_up": gateway.fold.caught_up,
        "bus_connected": gateway.asker.connected,
        "folded": gateway.fold.view.seq,
        "journal_end": gateway.fold.target,
    }
    return json_response(answer, 200 if gateway.ready else 503)


async def nodes(request: Request) -> Response:
    """GET /v1/nodes."""
    Parameters(request).done()
    gateway = gateway_of(request)
    await fresh(gateway)
    known = gateway.fold.view.nodes
    return json_response({"nodes": [render.node(known[name]) for name in sorted(known)]})


async def status(request: Request) -> Response:
    """GET /v1/status: answers also while the journal is away, and then says so."""
    Parameters(request).done()
    gateway = gateway_of(request)
    view = gateway.fold.view
    end = await _end(gateway)
    leader = view.leader
    answer = {
        "instance": gateway.settings.instance,
        "now_ns": gateway.clock.now_ns(),
        "ready": gateway.ready,
        "journal": {"end": end, "folded": view.seq, "lag": None if end is None else max(0, end - view.seq)},
        "leader": msgspec.structs.asdict(leader) if leader else None,
        "policy": view.policy,
        "services": render.services(view),
        "jobs": Counter(job.state for job in view.jobs.values()),
        "nodes": Counter(node.state for node in view.nodes.values()),
        "events": view.events,
        "passes": view.passes,
        "decisions": view.decisions,
        "void_events": view.void_events,
        "forgotten_jobs": len(view.forgotten),
    }
    return json_response(answer)


async def _end(gateway: Gateway) -> int | None:
    try:
        async with asyncio.timeout(JOURNAL_SECONDS_MAX):
            return await gateway.journal.end()
    except (JournalError, nats.errors.Error, TimeoutError):
        return None


async def events(request: Request) -> Response:
    """GET /v1/events: the journal in its order, or one job's part of it."""
    gateway = gateway_of(request)
    parameters = Parameters(request, "job", "after", "limit")
    job_id = parameters.text("job", JOB_FORM, "the id of a job")
    after_text = parameters.text("after", _CURSOR, 'a cursor "<seq>.<index>"')
    limit = parameters.integer("limit", EVENTS_DEFAULT, 1, EVENTS_MAX)
    parameters.done()
    after = _cursor(after_text)
    await fresh(gateway)
    if job_id is not None:
        return json_response(_events_of(gateway, job_id, after, limit))
    end = await _end(gateway)
    if end is None:
        raise ApiError(503, "journal_unavailable", "the journal did not answer", "the same again later")
    try:
        async with asyncio.timeout(JOURNAL_SECONDS_MAX):
            entries = await _read(gateway, after, end, limit)
    except (JournalError, nats.errors.Error, TimeoutError) as error:
        raise ApiError(503, "journal_unavailable", "the journal did not answer", "the same again later") from error
    shown = []
    for entry in entries[:limit]:
        document = render.history_entry(entry)
        del document["void"]  # known only for what is folded
        shown.append(document)
    return json_response({"events": shown, "next": _next(entries, limit), "end": end})


def _events_of(gateway: Gateway, job_id: str, after: Cursor, limit: int) -> dict[str, Any]:
    job = find_job(gateway, job_id)
    entries = [entry for entry in job.timeline.entries() if (entry.seq, entry.index) > after][: limit + 1]
    return {
        "events": [render.history_entry(entry) for entry in entries[:limit]],
        "next": _next(entries, limit),
        "end": gateway.fold.view.seq,
        "dropped": job.timeline.dropped,
    }


async def _read(gateway: Gateway, after: Cursor, end: int, limit: int) -> list[Entry]:
    """Return up to `limit` events after a place, and one more where there is one."""
    entries: list[Entry] = []
    async with aclosing(gateway.journal.read(max(0, after[0] - 1), end)) as frames:
        async for recorded in frames:
            entries.extend(entry for entry in _entries(recorded) if (entry.seq, entry.index) > after)
            if len(entries) > limit:
                break
    return entries[: limit + 1]


def _entries(recorded: Recorded) -> list[Entry]:
    frame = recorded.frame
    return [Entry(recorded.seq, index, event, frame.writer, False) for index, event in enumerate(frame.events)]


def _cursor(text: str | None) -> Cursor:
    """Return the place after which to read; without an index, the whole frame lies before it."""
    match = _CURSOR.fullmatch(text) if text else None
    if match is None:
        return (0, 0)
    return (int(match[1]), int(match[2]) if match[2] else 10**6)


def _next(entries: list[Entry], limit: int) -> str | None:
    if len(entries) <= limit:
        return None
    last = entries[limit - 1]
    return f"{last.seq}.{last.index}"
