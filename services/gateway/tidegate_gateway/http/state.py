"""What the endpoints work with, and how they find a job."""

from __future__ import annotations

import asyncio

import msgspec
import nats.errors
import structlog
from starlette.requests import Request
from tidegate_events import trace
from tidegate_events.clock import Clock
from tidegate_events.journal.base import Journal, JournalError

from tidegate_gateway.asks.base import Asker
from tidegate_gateway.blobs import BlobStore
from tidegate_gateway.database import generations
from tidegate_gateway.database.connection import Database
from tidegate_gateway.database.loader import load_job
from tidegate_gateway.desk import Desk
from tidegate_gateway.fold import Fold
from tidegate_gateway.http.errors import ApiError, unknown_job
from tidegate_gateway.live import Live
from tidegate_gateway.settings import Settings
from tidegate_gateway.submission.places import Places
from tidegate_gateway.tenants import Tenants
from tidegate_gateway.view.model import Job

READ_SECONDS_MAX = 2.0
JOURNAL_SECONDS_MAX = 2.0


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a running gateway."""

    settings: Settings
    journal: Journal
    fold: Fold
    desk: Desk
    blobs: BlobStore
    asker: Asker
    tenants: Tenants
    places: Places
    clock: Clock
    live: Live = msgspec.field(default_factory=Live)
    database: Database | None = None
    """Where the read models are kept; None where the gateway was started without one."""

    @property
    def ready(self) -> bool:
        """Say whether reads are current and writes can be taken."""
        return self.fold.caught_up and self.asker.connected


def gateway_of(request: Request) -> Gateway:
    """Return the gateway that the application was made for."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


async def fresh(gateway: Gateway) -> None:
    """Wait until what the gateway itself wrote can be read. Raises NotCaughtUpError."""
    await gateway.fold.wait_caught_up(READ_SECONDS_MAX)
    await gateway.fold.wait_for(gateway.desk.last_seq, READ_SECONDS_MAX)


async def journal_end(gateway: Gateway) -> int | None:
    """Return the journal's last sequence, None while it does not answer."""
    try:
        async with asyncio.timeout(JOURNAL_SECONDS_MAX):
            return await gateway.journal.end()
    except (JournalError, nats.errors.Error, TimeoutError):
        return None


async def find_job(gateway: Gateway, job_id: str, *, with_timeline: bool = False) -> Job:
    """Return a job, from the database where memory holds no more of it.

    Raises ApiError for one that is unknown, or forgotten by a gateway without a database, and DatabaseAwayError.
    """
    job = gateway.fold.view.jobs.get(job_id)
    forgotten = gateway.fold.view.forgotten.get(job_id)
    if job is not None or forgotten is not None:
        structlog.contextvars.bind_contextvars(job=job_id, trace_id=trace.trace_id(job_id))
    if forgotten is not None or (with_timeline and job is not None and job.timeline.absent):
        job = await _kept_job(gateway, job_id) or job
    if job is not None:
        return job
    if forgotten is not None:
        raise ApiError(
            410,
            "forgotten",
            f"the job is {forgotten.state} and ended so long ago that only this is kept here",
            "the journal, which keeps everything",
            job_id=job_id,
            state=forgotten.state,
        )
    raise unknown_job(job_id)


async def _kept_job(gateway: Gateway, job_id: str) -> Job | None:
    if gateway.database is None:
        return None
    async with gateway.database.transaction(read_only=True) as connection:
        generation = await generations.active(connection)
        return None if generation is None else await load_job(connection, generation.schema, job_id)


def trace_headers(job_id: str) -> dict[str, str]:
    """Return the headers that tie an answer to the job's trace."""
    return {"traceparent": trace.traceparent(job_id)}
