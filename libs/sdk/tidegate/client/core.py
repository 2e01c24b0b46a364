"""What the client can ask, as flows: shared by the synchronous and the asynchronous client."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple, TypeVar
from urllib.parse import quote

from tidegate.client.errors import JobEnded, NotFound, Unavailable, WaitTimeout
from tidegate.client.flow import Call, Emit, Flow, Pause, Stream, ask_document
from tidegate.client.source import submitter

ENDED_STATES = ("completed", "failed", "cancelled", "rejected")
POLL_SECONDS_MIN = 0.2
POLL_SECONDS_MAX = 2.0
POLL_GROWTH = 1.3
OUTAGE_SECONDS_MAX = 120.0
"""How long a wait for a job endures a gateway that is away before it gives up."""
PAGE_JOBS = 500
LOG_CHUNK_BYTES = 256 * 1024
PAGE_EVENTS = 1000
EVENTS_WAIT_SECONDS = 20
"""How long one request of a follower stays open: less than what the HTTP client endures."""
QUEUE_MAX = 1000
TOP_DEFAULT = 50
JOBS_DEFAULT = 100

Document = Dict[str, Any]
Clock = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True)
class LogSelection:
    """Which log: by default that of the main component, replica 0, rank 0, the newest attempt.

    `tail_lines` leaves out all but its last lines (of its last 256 KiB).
    """

    component: Optional[str] = None
    replica: int = 0
    rank: int = 0
    attempt: Optional[int] = None
    tail_lines: Optional[int] = None


@dataclass(frozen=True)
class LogChunk:
    """A piece of a log: bytes `offset` up to `next_offset`; the node dropped `missing_bytes` right before it."""

    component: str
    replica: int
    rank: int
    attempt: int
    offset: int
    next_offset: int
    missing_bytes: int
    data: bytes

    @property
    def truncated(self) -> bool:
        """Say whether something is missing right before this piece."""
        return self.missing_bytes > 0

    @property
    def text(self) -> str:
        """Return the bytes as text; what is not UTF-8 is shown replaced."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class EventFilter:
    """Which events: of a job, of a tenant's jobs, of some kinds, of a time (Unix nanoseconds, `until` exclusive).

    A kind with a minus before it (`-DecisionPass`) is left out.
    """

    job: Optional[str] = None
    tenant: Optional[str] = None
    kinds: Collection[str] = ()
    since_ns: Optional[int] = None
    until_ns: Optional[int] = None

    def params(self) -> Dict[str, str]:
        """Return the filter as the gateway takes it."""
        named = {"job": self.job, "tenant": self.tenant, "since": self.since_ns, "until": self.until_ns}
        params = {name: str(value) for name, value in named.items() if value is not None}
        return {**params, "kind": ",".join(self.kinds)} if self.kinds else params


def job(job_id: str) -> Flow[Document]:
    """Return one job in detail."""
    return (yield from ask_document(Call("GET", _job_path(job_id))))


def part(job_id: str, what: str) -> Flow[Document]:
    """Return the job's `timeline` or `explain`."""
    return (yield from ask_document(Call("GET", _job_path(job_id, what))))


def jobs(tenant: Optional[str], states: Collection[str], limit: int) -> Flow[List[Document]]:
    """Return the newest `limit` jobs, over as many pages as that takes."""
    found: List[Document] = []
    before: Optional[int] = None
    while len(found) < limit:
        params = {"limit": str(min(PAGE_JOBS, limit - len(found)))}
        if tenant is not None:
            params["tenant"] = tenant
        if states:
            params["state"] = ",".join(states)
        if before is not None:
            params["before"] = str(before)
        page = yield from ask_document(Call("GET", "/v1/jobs", params=params))
        found.extend(page["jobs"])
        before = page.get("next")
        if before is None or not page["jobs"]:
            break
    return found


def newest_events(chosen: EventFilter, count: int) -> Flow[Document]:
    """Return the newest `count` events that match, in order, as the gateway's page with its `cursor`."""
    return (yield from ask_document(Call("GET", "/v1/events", params={**chosen.params(), "last": str(count)})))


def events(chosen: EventFilter, after: Optional[str], on_page: Callable[[Document], None]) -> Stream:
    """Emit every event that matches, in order, up to the end of history; tell `on_page` each page."""
    more = True
    while more:
        page = yield from _events_page(chosen, after, 0)
        on_page(page)
        for event in page["events"]:
            yield Emit(event)
        after, more = page["cursor"], page["next"] is not None


def follow_events(chosen: EventFilter, after: Optional[str], now: Clock) -> Stream:
    """Emit every event that matches, in order, and for ever what comes; a gateway that is away is endured."""
    while True:
        page = yield from _endure(partial(_events_page, chosen, after, EVENTS_WAIT_SECONDS), now)
        for event in page["events"]:
            yield Emit(event)
        after = page["cursor"]


def _events_page(chosen: EventFilter, after: Optional[str], wait_seconds: int) -> Flow[Document]:
    params = {**chosen.params(), "limit": str(PAGE_EVENTS)}
    if after is not None:
        params["after"] = after
    if wait_seconds:
        params["wait_seconds"] = str(wait_seconds)
    return (yield from ask_document(Call("GET", "/v1/events", params=params)))


def document(path: str, params: Optional[Dict[str, str]] = None) -> Flow[Document]:
    """Return the JSON at `path`."""
    return (yield from ask_document(Call("GET", path, params=params or {})))


def trace(trace_id: str) -> Flow[Document]:
    """Return a trace by its id."""
    return (yield from ask_document(Call("GET", f"/api/v3/traces/{quote(trace_id, safe='')}")))


def cancel(job_id: str) -> Flow[Document]:
    """Ask for the job to end; asking again changes nothing."""
    headers = {"X-Tidegate-Submitter": submitter()}
    return (yield from ask_document(Call("POST", _job_path(job_id, "cancel"), headers=headers)))


def restore(job_id: str, layers: Sequence[str], checkpoint_id: Optional[str]) -> Flow[Document]:
    """Return the checkpoint service's plan to restore `layers`."""
    content: Document = {"layers": list(layers)}
    if checkpoint_id is not None:
        content["checkpoint_id"] = checkpoint_id
    return (yield from ask_document(Call("POST", _job_path(job_id, "restore"), content=content)))


def wait(
    job_id: str,
    states: Collection[str],
    timeout_seconds: Optional[float],
    now: Clock,
    on_seen: Callable[[Document], None],
) -> Flow[Document]:
    """Return the job as soon as it is in one of `states`; tell `on_seen` each look at it.

    Raises WaitTimeout after `timeout_seconds`, JobEnded where the job ended in another state.
    """
    deadline = None if timeout_seconds is None else now() + timeout_seconds
    pause_seconds, state = POLL_SECONDS_MIN, ""
    while True:
        detail = yield from _endure(partial(job, job_id), now)
        on_seen(detail)
        if detail["state"] != state:
            state, pause_seconds = detail["state"], POLL_SECONDS_MIN
        if state in states:
            return detail
        if state in ENDED_STATES:
            raise JobEnded(f"Job {job_id} is {state}; it will not become {_either(states)}.", job_id, state)
        if deadline is not None and now() >= deadline:
            message = f"Job {job_id} is {state} after {timeout_seconds:g} s, not {_either(states)}."
            raise WaitTimeout(message, job_id, state)
        left = pause_seconds if deadline is None else max(0.0, deadline - now())
        yield Pause(min(pause_seconds, left))
        pause_seconds = min(pause_seconds * POLL_GROWTH, POLL_SECONDS_MAX)


def _endure(ask: Callable[[], Flow[T]], now: Clock) -> Flow[T]:
    """Return what `ask` returns; go on asking for OUTAGE_SECONDS_MAX while a service is away, for it is restarted."""
    since = now()
    while True:
        try:
            return (yield from ask())
        except Unavailable:
            if now() - since >= OUTAGE_SECONDS_MAX:
                raise
        yield Pause(POLL_SECONDS_MAX)


def log(job_id: str, selection: LogSelection) -> Stream:
    """Emit the log that is there, piece by piece."""
    offset, more = 0, True
    if selection.tail_lines is not None:
        chunk = yield from _tail(job_id, selection, selection.tail_lines)
        if chunk.data:
            yield Emit(chunk)
        offset = chunk.next_offset
    while more:
        chunk, size = yield from _log_chunk(job_id, selection, offset)
        if chunk.data:
            yield Emit(chunk)
        more = chunk.next_offset < size and chunk.next_offset > offset
        offset = chunk.next_offset


def follow_log(job_id: str, selection: LogSelection, now: Clock) -> Stream:
    """Emit the log as it grows until the job ended; without a chosen attempt, go on with each new one."""
    attempt, offset, pause_seconds = selection.attempt, 0, POLL_SECONDS_MIN
    final, tail_lines = False, selection.tail_lines
    while True:
        at = replace(selection, attempt=attempt, tail_lines=tail_lines)
        chunk = yield from _endure(partial(_chunk_if_any, job_id, at, offset), now)
        if chunk is not None:
            tail_lines = None
        if chunk is not None:
            attempt, offset = chunk.attempt, chunk.next_offset
        if chunk is not None and chunk.data:
            yield Emit(chunk)
            pause_seconds = POLL_SECONDS_MIN
            continue
        if final:
            return
        detail = yield from _endure(partial(job, job_id), now)
        if attempt is not None and detail["attempt"] > attempt:
            if selection.attempt is None:
                attempt, offset = attempt + 1, 0
                continue
            final = True
        # An end is only final when one more read, after it was seen, finds nothing.
        final = final or detail["state"] in ENDED_STATES
        if not final:
            yield Pause(pause_seconds)
            pause_seconds = min(pause_seconds * POLL_GROWTH, POLL_SECONDS_MAX)


def _chunk_if_any(job_id: str, selection: LogSelection, offset: int) -> Flow[Optional[LogChunk]]:
    """Return the next piece, None where the job was not placed or has written nothing yet."""
    try:
        if selection.tail_lines is not None:
            return (yield from _tail(job_id, selection, selection.tail_lines))
        chunk, _ = yield from _log_chunk(job_id, selection, offset)
    except NotFound as error:
        if error.code not in ("no_attempt", "no_log"):
            raise
        return None
    return chunk


def _tail(job_id: str, selection: LogSelection, lines: int) -> Flow[LogChunk]:
    """Return the last `lines` lines of the log's last LOG_CHUNK_BYTES."""
    chunk, _ = yield from _log_chunk(job_id, selection, -LOG_CHUNK_BYTES)
    kept = b"".join(chunk.data.splitlines(keepends=True)[-lines:]) if lines else b""
    return replace(chunk, offset=chunk.next_offset - len(kept), missing_bytes=0, data=kept)


def _log_chunk(job_id: str, selection: LogSelection, offset: int) -> Flow[Tuple[LogChunk, int]]:
    params = {"offset": str(offset), "limit": str(LOG_CHUNK_BYTES)}
    params.update(replica=str(selection.replica), rank=str(selection.rank))
    if selection.component is not None:
        params["component"] = selection.component
    if selection.attempt is not None:
        params["attempt"] = str(selection.attempt)
    answer = yield from ask_document(Call("GET", _job_path(job_id, "logs"), params=params))
    chunk = LogChunk(
        component=answer["component"],
        replica=answer["replica"],
        rank=answer["rank"],
        attempt=answer["attempt"],
        offset=answer["offset"],
        next_offset=answer["next_offset"],
        missing_bytes=answer["offset"] - offset if answer["truncated"] and offset >= 0 else 0,
        data=base64.b64decode(answer["data"]),
    )
    return chunk, int(answer["size"])


def _job_path(job_id: str, what: str = "") -> str:
    path = f"/v1/jobs/{quote(job_id, safe='')}"
    return f"{path}/{what}" if what else path


def _either(states: Collection[str]) -> str:
    return " or ".join(sorted(states))
