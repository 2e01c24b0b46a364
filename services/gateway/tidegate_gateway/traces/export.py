"""Hands spans to an OTLP endpoint over HTTP, as a reader of the table that the projector writes.

Nothing waits for it: spans lie in PostgreSQL until they are acknowledged, the position moves only after that, and ids
are stable, so an endpoint may see a span twice (after a crash between both) but never misses one. A span that the
endpoint cannot take becomes a dead letter, and is sent again when that is asked for.
https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Literal
from urllib.parse import unquote

import asyncpg
import httpx
import msgspec
import structlog
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from tidegate_events.clock import Clock
from tidegate_events.deadletter import DeadLetter, DeadLetters, Failure, encode_event
from tidegate_events.register.base import RegisterUnavailableError

from tidegate_gateway.database.connection import Database, DatabaseAwayError
from tidegate_gateway.traces import store
from tidegate_gateway.traces.otlp import export_request, traces_document
from tidegate_gateway.traces.span import Span
from tidegate_gateway.traces.store import Position

BATCH_SPANS_MAX = 512
REQUEST_SECONDS_MAX = 10.0
POLL_SECONDS = 1.0
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses between tries of one batch; after the last one it rests for REST_SECONDS and begins anew."""
REST_SECONDS = 15.0
REFUSAL_CHARS_MAX = 500
CONSUMER = "projector"
"""What the exporter is called among consumers: by the login that it runs with."""
_REFUSED_FOR_GOOD = frozenset({400, 413, 422})
"""What an endpoint answers where it is the spans that it cannot take, so that a retry could only repeat it."""

log = structlog.get_logger()

Answer = Literal["taken", "refused", "away"]


class OtlpSettings(msgspec.Struct, frozen=True):
    """Where spans go; headers may hold credentials and are never logged."""

    url: str
    headers: Mapping[str, str] = {}


class OtlpSettingsError(Exception):
    """An OTEL_EXPORTER_OTLP_* variable cannot be used; says which, and what is accepted."""


def from_environment(environment: Mapping[str, str]) -> OtlpSettings | None:
    """Return where OTEL_EXPORTER_OTLP_[TRACES_]ENDPOINT says that spans go, None where it says nothing.

    Raises OtlpSettingsError. https://opentelemetry.io/docs/specs/otel/protocol/exporter/
    """
    url = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    if not url and (base := environment.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()):
        url = base.rstrip("/") + "/v1/traces"
    if not url:
        return None
    if not _usable(url):
        raise OtlpSettingsError("OTEL_EXPORTER_OTLP_ENDPOINT is refused: a URL of http:// or https:// is accepted")
    text = environment.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environment.get("OTEL_EXPORTER_OTLP_HEADERS", "")
    return OtlpSettings(url, _headers(text))


def _usable(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host)


def _headers(text: str) -> dict[str, str]:
    headers = {}
    for part in text.split(","):
        if not part.strip():
            continue
        name, separator, value = part.partition("=")
        if not separator or not name.strip():
            raise OtlpSettingsError("OTEL_EXPORTER_OTLP_HEADERS is refused: name=value,name=value is accepted")
        headers[name.strip()] = unquote(value.strip())
    return headers


class SpanGoneError(Exception):
    """The tables no longer hold the span of a dead letter."""


class EndpointRefusedError(Exception):
    """The endpoint answered that it cannot take the span."""


class Exporter:
    """Follows the spans table; `run` is a task of the projector's process."""

    def __init__(self, settings: OtlpSettings, database: Database, letters: DeadLetters, clock: Clock) -> None:
        self._settings = settings
        self._database = database
        self._letters = letters
        self._clock = clock
        self._news = asyncio.Event()
        self._batch_max = BATCH_SPANS_MAX
        self.exported = self.refused = 0

    def wake(self) -> None:
        """Say that spans were written; without that, they are noticed within POLL_SECONDS."""
        self._news.set()

    async def run(self) -> None:
        """Export for ever; an endpoint, a database or a bus that is away is tried again."""
        # No proxy of the environment: what is exported stays with whoever the endpoint names.
        async with (
            httpx.AsyncClient(timeout=REQUEST_SECONDS_MAX, trust_env=False) as client,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._export(client))
            tasks.create_task(self._answer_retries(client))

    async def _export(self, client: httpx.AsyncClient) -> None:
        while True:
            try:
                more = await self.step(client)
            except (DatabaseAwayError, RegisterUnavailableError) as error:
                log.warning("span_export_waits", error=str(error))
                more = False
            except asyncpg.UndefinedTableError:
                more = False  # a fresh database: the projector, in this same process, is about to make the tables
            if not more:
                await self._wait(POLL_SECONDS)

    async def _answer_retries(self, client: httpx.AsyncClient) -> None:
        async with aclosing(self._letters.follow(CONSUMER, 0)) as letters:
            async for stored in letters:
                settled = stored.letter.state != "retry"
                while not settled:
                    settled = await self._retry(client, stored.letter)
                    await asyncio.sleep(0 if settled else POLL_SECONDS)

    async def _retry(self, client: httpx.AsyncClient, letter: DeadLetter) -> bool:
        """Send the span of a letter; say whether it is settled, or whether something was away."""
        began_ns = self._clock.now_ns()
        try:
            current = await self._letters.find(CONSUMER, letter.place)
            if current is None or current.letter.state != "retry":
                return True  # dropped, while something was away
            async with self._database.connection() as connection:
                spans = await store.read_after(connection, Position(letter.seq, letter.index - 1), 1)
            if not spans or (spans[0].seq, spans[0].ordinal) != (letter.seq, letter.index):
                raise SpanGoneError(f"there is no span {letter.place} any more")
            answer, why = await self._send(client, spans)
            if answer == "refused":
                raise EndpointRefusedError(why)
            if answer == "taken":
                await self._letters.settle(CONSUMER, letter.place, self._clock.now_ns())
        except (DatabaseAwayError, RegisterUnavailableError) as error:
            log.warning("span_retry_waits", error=str(error))
            return False
        except (SpanGoneError, EndpointRefusedError) as error:
            failure = Failure(type(error).__name__, str(error), 1, began_ns, self._clock.now_ns())
            return await self._note_failure(letter.place, failure)
        return answer == "taken"

    async def _note_failure(self, place: str, failure: Failure) -> bool:
        try:
            await self._letters.failed_again(CONSUMER, place, failure)
        except RegisterUnavailableError as error:
            log.warning("span_retry_waits", error=str(error))
            return False
        return True

    async def step(self, client: httpx.AsyncClient) -> bool:
        """Export one batch; say whether there may be more. Raises DatabaseAwayError and RegisterUnavailableError."""
        async with self._database.transaction(read_only=True) as connection:
            position, journal = await store.exported(connection)
            spans = await store.read_after(connection, position, self._batch_max)
        if not spans:
            return False
        answer, why = await self._send(client, spans)
        if answer == "away":
            await asyncio.sleep(REST_SECONDS)
            return True
        if answer == "refused" and len(spans) > 1:
            self._batch_max = len(spans) // 2
            return True
        if answer == "refused":
            # Before the position moves, so that no kill can lose it; the letter of one place is kept once.
            await self._set_aside(spans[0], why)
        last = Position(spans[-1].seq, spans[-1].ordinal)
        async with self._database.connection() as connection:
            await store.note_exported(connection, last, journal, len(spans) if answer == "taken" else 0)
        if answer == "refused":
            self.refused += 1
        else:
            self.exported += len(spans)
            self._batch_max = BATCH_SPANS_MAX
        return True

    async def _set_aside(self, span: Span, why: str) -> None:
        now_ns = self._clock.now_ns()
        letter = DeadLetter(
            consumer=CONSUMER,
            seq=span.seq,
            index=span.ordinal,
            kind=f"span {span.name}",
            job=span.job,
            error_type=EndpointRefusedError.__name__,
            error_text=why,
            attempts=1,
            first_at_ns=now_ns,
            last_at_ns=now_ns,
            event=encode_event(traces_document([span])),
        )
        await self._letters.add(letter)

    async def _send(self, client: httpx.AsyncClient, spans: list[Span]) -> tuple[Answer, str]:
        """Send a batch; return what became of it, and why where it was not taken."""
        body = export_request(spans).SerializeToString()
        headers = {**self._settings.headers, "content-type": "application/x-protobuf"}
        why = ""
        for pause_seconds in (*RETRY_SECONDS, None):
            try:
                reply = await client.post(self._settings.url, content=body, headers=headers)
            except httpx.HTTPError as error:
                why = f"{type(error).__name__}: {error}"
            else:
                if reply.is_success:
                    _note_partial(reply.content)
                    return "taken", ""
                if reply.status_code in _REFUSED_FOR_GOOD:
                    return "refused", f"HTTP status {reply.status_code}: {reply.text[:REFUSAL_CHARS_MAX]}"
                why = f"HTTP status {reply.status_code}"
            if pause_seconds is not None:
                await asyncio.sleep(pause_seconds)
        log.warning("span_export_waits", error=why, spans=len(spans), rest_seconds=REST_SECONDS)
        return "away", why

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
        finally:
            self._news.clear()


def _note_partial(body: bytes) -> None:
    """Log what the endpoint took only in part: by the protocol such spans are not to be sent again."""
    try:
        answer = ExportTraceServiceResponse.FromString(body)
    except DecodeError:
        return  # some answer with nothing or with JSON; the status has said that the spans were taken
    if answer.partial_success.rejected_spans:
        log.warning(
            "spans_rejected",
            count=answer.partial_success.rejected_spans,
            why=answer.partial_success.error_message[:200],
        )
