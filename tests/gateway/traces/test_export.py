"""Export to a real OTLP receiver: whole, once where nothing crashes, and never lost where something does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from tidegate_events import trace
from tidegate_events.clock import ManualClock
from tidegate_events.deadletter import DeadLetters, StoredLetter
from tidegate_events.register.memory import MemoryRegister
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


def exporting(to: OtlpSettings, database: Database, letters: DeadLetters | None = None) -> Exporter:
    return Exporter(to, database, letters or DeadLetters(MemoryRegister()), ManualClock())


async def test_the_receiver_gets_what_the_gateway_answers(
    kept: Kept, receiver: OtlpReceiver, client: httpx.AsyncClient
) -> None:
    await kept.write(derived(preempted_and_resumed()))
    exporter = exporting(settings(receiver, authorization="secret"), kept.database)
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
    while await exporting(settings(receiver), kept.database).step(client):
        pass
    await kept.write(spans)
    # A new exporter, as after a restart, goes on where the last one was acknowledged.
    while await exporting(settings(receiver), kept.database).step(client):
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
    exporter = exporting(settings(receiver), kept.database)
    for _ in range(4):
        await exporter.step(client)
    assert len(receiver.spans) == len(spans)
    nobody = exporting(OtlpSettings("http://127.0.0.1:1/v1/traces"), kept.database)
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
    exporter = exporting(settings(receiver), kept.database)
    for journal, requests in (("first", 1), ("first", 1), ("second", 2)):
        async with kept.database.connection() as connection:
            await connection.execute("UPDATE tidegate.position SET journal = $1", journal)
        while await exporter.step(client):
            pass
        assert len(receiver.requests) == requests


@pytest.mark.usefixtures("quick")
async def test_a_span_that_is_refused_for_good_stops_nobody_and_is_set_aside(
    kept: Kept, receiver: OtlpReceiver, client: httpx.AsyncClient
) -> None:
    spans = derived(preempted_and_resumed())
    await kept.write(spans)
    bad = spans[9]
    receiver.answer = lambda came: 400 if any(span["span_id"] == bad.span_id for span in came) else 200
    letters = DeadLetters(MemoryRegister())
    exporter = exporting(settings(receiver), kept.database, letters)
    while await exporter.step(client):
        pass
    assert exporter.refused == 1
    wanted = sorted(span.span_id for span in spans if span is not bad)
    assert sorted(span["span_id"] for span in receiver.spans) == wanted
    (stored,) = [each async for each in letters.newer(0)]
    letter = stored.letter
    assert (letter.consumer, letter.seq, letter.index, letter.job) == ("projector", bad.seq, bad.ordinal, bad.job)
    assert (letter.kind, letter.error_type) == (f"span {bad.name}", "EndpointRefusedError")
    assert letter.error_text.startswith("HTTP status 400")
    assert bad.span_id.encode() in bytes(letter.event)


@pytest.mark.usefixtures("quick")
async def test_a_span_that_was_set_aside_is_sent_again_when_that_is_asked_for(
    kept: Kept, receiver: OtlpReceiver, client: httpx.AsyncClient
) -> None:
    spans = derived(preempted_and_resumed())
    await kept.write(spans)
    bad = [spans[3], spans[9]]
    refused = {span.span_id for span in bad}
    receiver.answer = lambda came: 400 if any(span["span_id"] in refused for span in came) else 200
    letters = DeadLetters(MemoryRegister())
    exporter = exporting(settings(receiver), kept.database, letters)
    while await exporter.step(client):
        pass
    before = len(receiver.spans)
    refused.remove(bad[0].span_id)
    gone = msgspec.structs.replace((await one(letters, bad[1])).letter, seq=10**6)
    await letters.add(gone)
    for place in (*(f"{span.seq}.{span.ordinal}" for span in bad), gone.place):
        await letters.ask_retry("projector", place, by="op", reason="mended", now_ns=1)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(exporter.run())
        async for _ in letters.follow("projector", 0):
            if "retry" not in {stored.letter.state async for stored in letters.newer(0)}:
                break
        running.cancel()
    assert [span["span_id"] for span in receiver.spans[before:]] == [bad[0].span_id]
    assert (await one(letters, bad[0])).letter.state == "handled"
    again = (await one(letters, bad[1])).letter
    assert (again.state, again.attempts) == ("dead", 2)
    lost = await letters.find("projector", gone.place)
    assert lost is not None
    assert (lost.letter.state, lost.letter.error_type) == ("dead", "SpanGoneError")


async def one(letters: DeadLetters, span: store.Span) -> StoredLetter:
    found = await letters.find("projector", f"{span.seq}.{span.ordinal}")
    assert found is not None
    return found


@pytest.mark.usefixtures("quick")
async def test_it_follows_through_a_restart_of_the_database(
    kept: Kept, postgres: PostgresServer, receiver: OtlpReceiver
) -> None:
    spans = derived(preempted_and_resumed())
    exporter = exporting(settings(receiver), kept.database)
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
    exporter = exporting(OtlpSettings("http://127.0.0.1:1/"), Database("postgresql://", name="t"))
    with pytest.raises(ExceptionGroup) as caught:
        await exporter.run()
    assert caught.group_contains(RuntimeError, match="not open")
