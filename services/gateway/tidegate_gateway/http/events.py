"""The endpoint of events: read history, filter it, look at its end, and wait for what comes."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import nats.errors
import structlog
from starlette.requests import Request
from starlette.responses import Response
from tidegate_events.frame import KINDS
from tidegate_events.journal.base import JournalError

from tidegate_gateway.database import generations
from tidegate_gateway.database.connection import DatabaseAwayError
from tidegate_gateway.fold import NotCaughtUpError
from tidegate_gateway.history import database as database_history
from tidegate_gateway.history import journal as journal_history
from tidegate_gateway.history.query import PAST_FRAME, Page, Query, join, newest, page_of, parse_cursor, show_cursor
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
DATABASE_PAUSE_SECONDS = 0.25
"""Between two looks into a projection that is behind the fold that woke the reader."""
_CURSOR = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,6})?")

log = structlog.get_logger()


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
        if page.end < gateway.fold.view.seq:
            await asyncio.sleep(DATABASE_PAUSE_SECONDS)
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
        return await _read_job(gateway, query, query.job)
    end = await journal_end(gateway)
    if end is None:
        raise ApiError(503, "journal_unavailable", "the journal did not answer", "the same again later")
    tail = query
    kept = await _read_kept(gateway, query, end) if database_history.is_deep(query) else None
    if kept is not None and query.last is None:
        return msgspec.structs.replace(kept, end=end, more=kept.cursor < (end, PAST_FRAME))
    if kept is not None:
        tail = msgspec.structs.replace(query, last=None, after=kept.cursor, limit=EVENTS_MAX)
    try:
        async with asyncio.timeout(JOURNAL_SECONDS_MAX):
            page = await journal_history.read(gateway.journal, tail, end)
            return page if kept is None else newest(kept, page, query.last or 0)
    except (JournalError, nats.errors.Error, TimeoutError) as error:
        raise ApiError(503, "journal_unavailable", "the journal did not answer", "the same again later") from error


async def _read_job(gateway: Gateway, query: Query, job_id: str) -> Page:
    """Return a job's events: from memory where all that is asked for is kept there, else from the database."""
    folded, job = gateway.fold.view.seq, gateway.fold.view.jobs.get(job_id)
    if job is not None and job.timeline.reaches(query.after, query.last):
        return page_of(job.timeline.entries(), query, folded, job.timeline.dropped)
    try:
        page = await _from_database(gateway, query)
    except DatabaseAwayError:
        if job is None or job.timeline.absent:
            raise
        page = None
    if page is None or (job is None and not page.entries):
        timeline = (await find_job(gateway, job_id)).timeline
        return page_of(timeline.entries(), query, folded, timeline.dropped)
    return page if job is None else join(page, job.timeline, query, folded)


async def _read_kept(gateway: Gateway, query: Query, end: int) -> Page | None:
    """Return the projection's answer, None where the journal itself is the better one: near its end, or without it."""
    if query.last is None and end - query.after[0] <= journal_history.FRAMES_PER_ANSWER:
        return None
    try:
        page = await _from_database(gateway, query)
    except DatabaseAwayError as error:
        log.info("events_from_journal", why=str(error))
        return None
    if page is None:
        return None
    near = end - page.end <= journal_history.FRAMES_PER_ANSWER
    return page if (near if query.last is not None else page.cursor > query.after) else None


async def _from_database(gateway: Gateway, query: Query) -> Page | None:
    """Return what the projection holds, None where there is none. Raises DatabaseAwayError."""
    if gateway.database is None:
        return None
    async with gateway.database.transaction(read_only=True) as connection:
        generation = await generations.active(connection)
        return None if generation is None else await database_history.read(connection, generation.schema, query)


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
