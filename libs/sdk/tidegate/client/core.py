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
JOBS_DEFAULT = 100

Document = Dict[str, Any]
Clock = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True)
class LogSelection:
    """Which log: by default that of the main component, replica 0, rank 0, the newest attempt."""

    component: Optional[str] = None
    replica: int = 0
    rank: int = 0
    attempt: Optional[int] = None


@dataclass(frozen=True)
class LogChunk:
    """A piece of a log: bytes `offset` up to `next_offset`; `truncated` where the node dropped what came before."""

    component: str
    replica: int
    rank: int
    attempt: int
    offset: int
    next_offset: int
    truncated: bool
    data: bytes

    @property
    def text(self) -> str:
        """Return the bytes as text; what is not UTF-8 is shown replaced."""
        return self.data.decode("utf-8", "replace")


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


def document(path: str, params: Optional[Dict[str, str]] = None) -> Flow[Document]:
    """Return the JSON at `path`."""
    return (yield from ask_document(Call("GET", path, params=params or {})))


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
    while more:
        chunk, size = yield from _log_chunk(job_id, selection, offset)
        if chunk.data:
            yield Emit(chunk)
        more = chunk.next_offset < size and chunk.next_offset > offset
        offset = chunk.next_offset


def follow_log(job_id: str, selection: LogSelection, now: Clock) -> Stream:
    """Emit the log as it grows until the job ended; without a chosen attempt, go on with each new one."""
    attempt, offset, pause_seconds = selection.attempt, 0, POLL_SECONDS_MIN
    final = False
    while True:
        chunk = yield from _endure(partial(_chunk_if_any, job_id, replace(selection, attempt=attempt), offset), now)
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
        chunk, _ = yield from _log_chunk(job_id, selection, offset)
    except NotFound as error:
        if error.code not in ("no_attempt", "no_log"):
            raise
        return None
    return chunk


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
        truncated=answer["truncated"],
        data=base64.b64decode(answer["data"]),
    )
    return chunk, int(answer["size"])


def _job_path(job_id: str, what: str = "") -> str:
    path = f"/v1/jobs/{quote(job_id, safe='')}"
    return f"{path}/{what}" if what else path


def _either(states: Collection[str]) -> str:
    return " or ".join(sorted(states))
