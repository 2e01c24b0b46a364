"""The endpoint of events: read history, filter it, look at its end, and wait for what comes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import nats.errors
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events.frame import KINDS
from tidegate_events.journal.base import JournalError

from tidegate_gateway.fold import NotCaughtUpError
from tidegate_gateway.history import journal as journal_history
from tidegate_gateway.history.query import Page, Query, page_of, parse_cursor, show_cursor
from tidegate_gateway.http.errors import ApiError, json_response
from tidegate_gateway.http.jobs import JOB_FORM
from tidegate_gateway.http.params import Parameters
from tidegate_gateway.http.state import JOURNAL_SECONDS_MAX, Gateway, find_job, fresh, gateway_of, journal_end
from tidegate_gateway.submission import bounds
from tidegate_gateway.view import render

EVENTS_MAX, EVENTS_DEFAULT = 1000, 200
WAIT_SECONDS_MAX = 25
NS_MAX = 2**63 - 1
_KIND_WORDS = (*KINDS, *(f"-{kind}" for kind in KINDS))
_CURSOR = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,6})?")


async def events(request: Request) -> Response:
    """GET /v1/events: the journal in its order, or one job's part of it."""
    gateway = gateway_of(request)
    query, wait_seconds = _asked(request)
    await fresh(gateway)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    page = await _read(gateway, query)
    while not page.entries and not page.more and (left := deadline - loop.time()) > 0:
        try:
            await gateway.fold.wait_for(page.end + 1, left)
        except NotCaughtUpError:
            break
        page = await _read(gateway, query)
    return json_response(_shown(page, query))


def _asked(request: Request) -> tuple[Query, int]:
    """Return what the request asks for, and how long it would wait for it."""
    single = ("job", "tenant", "since", "until", "after", "last", "limit", "wait_seconds")
    parameters = Parameters(request, *single, repeated=("kind",))
    after = parameters.text("after", _CURSOR, 'a cursor "<seq>.<index>"')
    last = parameters.integer("last", 0, 1, EVENTS_MAX)
    wait_seconds = parameters.integer("wait_seconds", 0, 0, WAIT_SECONDS_MAX)
    given = frozenset(request.query_params)
    for name, others in (("last", ("after", "limit", "wait_seconds")), ("wait_seconds", ("until",))):
        for other in others:
            if name in given and other in given:
                parameters.problems.add(f"?{name}", f"stands beside {other}", "one of the two")
    kinds = parameters.choices("kind", _KIND_WORDS)
    left_out = frozenset(word[1:] for word in kinds if word.startswith("-"))
    query = Query(
        job=parameters.text("job", JOB_FORM, "the id of a job"),
        tenant=parameters.text("tenant", bounds.TENANT, "the name of a tenant"),
        kinds=frozenset(word for word in kinds if not word.startswith("-")),
        except_kinds=left_out,
        since_ns=parameters.integer("since", 0, 0, NS_MAX) if "since" in given else None,
        until_ns=parameters.integer("until", 0, 0, NS_MAX) if "until" in given else None,
        after=parse_cursor(after) if after else (0, 0),
        limit=parameters.integer("limit", EVENTS_DEFAULT, 1, EVENTS_MAX),
        last=last or None,
    )
    parameters.done()
    return query, wait_seconds


async def _read(gateway: Gateway, query: Query) -> Page:
    if query.job is not None:
        timeline = find_job(gateway, query.job).timeline
        return page_of(timeline.entries(), query, gateway.fold.view.seq, timeline.dropped)
    end = await journal_end(gateway)
    if end is None:
        raise ApiError(503, "journal_unavailable", "the journal did not answer", "the same again later")
    try:
        async with asyncio.timeout(JOURNAL_SECONDS_MAX):
            return await journal_history.read(gateway.journal, query, end)
    except (JournalError, nats.errors.Error, TimeoutError) as error:
        raise ApiError(503, "journal_unavailable", "the journal did not answer", "the same again later") from error


def _shown(page: Page, query: Query) -> dict[str, Any]:
    shown = [render.history_entry(entry) for entry in page.entries]
    cursor = show_cursor(page.cursor)
    answer: dict[str, Any] = {"events": shown, "next": cursor if page.more else None, "cursor": cursor, "end": page.end}
    if query.job is not None:
        answer["dropped"] = page.dropped
    else:
        for document in shown:
            del document["void"]  # known only for what is folded
    if query.last is not None:
        answer["complete"] = page.complete
    return answer
