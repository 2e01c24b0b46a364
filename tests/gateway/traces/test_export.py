"""Export to a real OTLP receiver: whole, once where nothing crashes, and never lost where something does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from tidegate_events import trace
from tidegate_gateway.database.connection import Database
from tidegate_gateway.traces import export, store
from tidegate_gateway.traces.export import Exporter, OtlpSettings, OtlpSettingsError, from_environment
from tidegate_gateway.traces.otlp import traces_document
from tidegate_gateway.traces.store import Position

from tests.gateway.traces.conftest import Kept
from tests.gateway.traces.story import LOW, preempted_and_resumed
from tests.gateway.traces.telling import derived
from tests.support.otlp import OtlpReceiver, from_json
from tests.support.postgres import PostgresServer


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as made:
        yield made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "RETRY_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(export, "REST_SECONDS", 0.01)
    monkeypatch.setattr(export, "POLL_SECONDS", 0.01)


def settings(receiver: OtlpReceiver, **headers: str) -> OtlpSettings:
    found = from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    assert found is not None
    return OtlpSettings(found.url, headers)


async def test_the_receiver_gets_what_the_gateway_answers(
    kept: Kept, receiver: OtlpReceiver, client: httpx.AsyncClient
) -> None:
    await kept.write(derived(preempted_and_resumed()))
    exporter = Exporter(settings(receiver, authorization="secret"), kept.database)
    assert await exporter.step(client)
    assert not await exporter.step(client)
    async with kept.database.connection() as connection:
        spans = await store.read_trace(connection, trace.trace_id(LOW))
    answered = {span["span_id"]: span for span in from_json({"result": traces_document(spans)})}
    assert answered
    assert receiver.of_trace(trace.trace_id(LOW)) == answered
    assert receiver.headers[0]["authorization"] == "secret"
    assert "content-encoding" not in {name.lower() for name in receiver.headers[0]}


async def test_every_span_goes_out_once(
    kept: Kept, receiver: OtlpReceiver, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "BATCH_SPANS_MAX", 7)
    spans = derived(preempted_and_resumed())
    await kept.write(spans[:10])
    while await Exporter(settings(receiver), kept.database).step(client):
        pass
    await kept.write(spans)
    # A new exporter, as after a restart, goes on where the last one was acknowledged.
    while await Exporter(settings(receiver), kept.database).step(client):
        pass
    # A request groups its spans by resource, so their order says nothing; none may be missing, none come twice.
    assert sorted(span["span_id"] for span in receiver.spans) == sorted(span.span_id for span in spans)


@pytest.mark.usefixtures("quick")
async def test_an_endpoint_that_is_away_loses_nothing(
    kept: Kept, receiver: OtlpReceiver, client: httpx.AsyncClient
) -> None:
    spans = derived(preempted_and_resumed())
    await kept.write(spans)
    answers = iter([503, 429, 500, 401, 503, 502])
    receiver.answer = lambda _spans: next(answers, 200)
    exporter = Exporter(settings(receiver), kept.database)
    for _ in range(4):
        await exporter.step(client)
    assert len(receiver.spans) == len(spans)
    nobody = Exporter(OtlpSettings("http://127.0.0.1:1/v1/traces"), kept.database)
    await kept.write(derived(preempted_and_resumed()))
    async with kept.database.connection() as connection:
        await connection.execute("UPDATE tidegate.span_export SET seq = 0, ordinal = 0")
    await nobody.step(client)
    async with kept.database.connection() as connection:
        assert await store.exported(connection) == (Position(0, 0), "")


async def test_another_history_is_exported_from_its_beginning(
    kept: Kept, receiver: OtlpReceiver, client: httpx.AsyncClient
) -> None:
    spans = derived(preempted_and_resumed())
    await kept.write(spans)
    exporter = Exporter(settings(receiver), kept.database)
    for journal, requests in (("first", 1), ("first", 1), ("second", 2)):
        async with kept.database.connection() as connection:
            await connection.execute("UPDATE tidegate.position SET journal = $1", journal)
        while await exporter.step(client):
            pass
        assert len(receiver.requests) == requests


@pytest.mark.usefixtures("quick")
async def test_a_span_that_is_refused_for_good_stops_nobody(
    kept: Kept, receiver: OtlpReceiver, client: httpx.AsyncClient
) -> None:
    spans = derived(preempted_and_resumed())
    await kept.write(spans)
    bad = spans[9].span_id
    receiver.answer = lambda came: 400 if any(span["span_id"] == bad for span in came) else 200
    exporter = Exporter(settings(receiver), kept.database)
    while await exporter.step(client):
        pass
    assert exporter.refused == 1
    wanted = sorted(span.span_id for span in spans if span.span_id != bad)
    assert sorted(span["span_id"] for span in receiver.spans) == wanted


@pytest.mark.usefixtures("quick")
async def test_it_follows_through_a_restart_of_the_database(
    kept: Kept, postgres: PostgresServer, receiver: OtlpReceiver
) -> None:
    spans = derived(preempted_and_resumed())
    exporter = Exporter(settings(receiver), kept.database)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(exporter.run())
        await kept.write(spans[:8])
        exporter.wake()
        await asyncio.to_thread(receiver.wait_for, lambda came: len(came) >= 8, 20)
        await postgres.restart()
        await written(kept, spans)
        await asyncio.to_thread(receiver.wait_for, lambda came: len(came) >= len(spans), 20)
        running.cancel()
    assert {span["span_id"] for span in receiver.spans} == {span.span_id for span in spans}


async def written(kept: Kept, spans: list[store.Span]) -> None:
    """Write once the pool has noticed that its connections are gone."""
    for _ in range(20):
        try:
            await kept.write(spans)
        except export.DatabaseAwayError:
            await asyncio.sleep(0.1)
        else:
            return
    raise AssertionError("the database did not come back")


def test_the_environment_says_where_spans_go() -> None:
    assert from_environment({}) is None
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318/"}
    assert from_environment(base) == OtlpSettings("http://h:4318/v1/traces")
    own = {**base, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://t/x", "OTEL_EXPORTER_OTLP_HEADERS": "a=b%20c, d=e"}
    assert from_environment(own) == OtlpSettings("https://t/x", {"a": "b c", "d": "e"})
    for url in ("h:4318", "grpc://h", "http://"):
        with pytest.raises(OtlpSettingsError):
            from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": url})
    with pytest.raises(OtlpSettingsError):
        from_environment({**base, "OTEL_EXPORTER_OTLP_HEADERS": "token"})


async def test_an_unopened_database_is_a_fault_and_no_wait() -> None:
    exporter = Exporter(OtlpSettings("http://127.0.0.1:1/"), Database("postgresql://", name="t"))
    with pytest.raises(RuntimeError, match="not open"):
        await exporter.run()
