"""Spans in a real PostgreSQL: written with their memory, found again, and answered as Jaeger answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tidegate_events import events as e
from tidegate_events import trace
from tidegate_events.clock import ManualClock
from tidegate_events.frame import Frame, Writer
from tidegate_events.journal.base import Recorded
from tidegate_events.journal.memory import MemoryJournal
from tidegate_gateway import shell
from tidegate_gateway.asks.memory import MemoryAsker
from tidegate_gateway.database.connection import Database
from tidegate_gateway.http.app import application
from tidegate_gateway.settings import Settings
from tidegate_gateway.traces import store
from tidegate_gateway.traces.derive import SpanDeriver
from tidegate_gateway.traces.otlp import export_request
from tidegate_gateway.traces.store import Position

from tests.gateway.traces.conftest import Kept
from tests.gateway.traces.story import HIGH, LOW, preempted_and_resumed
from tests.gateway.traces.telling import counted, derived
from tests.support.cluster import Cluster, spec
from tests.support.otlp import from_json, from_wire

DAY = {"query.startTimeMin": "2023-11-14T00:00:00Z", "query.start_time_max": "2023-11-15T00:00:00.5+00:00"}
NOT_THERE = "postgresql://nobody@127.0.0.1:1/nowhere"


def client_of(directory: Path, database: Database | None) -> httpx.AsyncClient:
    gateway = shell.build(Settings(data_dir=directory), MemoryJournal(), MemoryAsker(), ManualClock())
    gateway = msgspec.structs.replace(gateway, database=database)
    return httpx.AsyncClient(transport=httpx.ASGITransport(application(gateway)), base_url="http://gateway")


@pytest.fixture
async def jaeger(kept: Kept, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway whose database has the story's spans."""
    await kept.write(derived(preempted_and_resumed()))
    async with client_of(tmp_path, kept.database) as client:
        yield client


async def test_what_is_read_is_what_was_written(kept: Kept) -> None:
    spans = derived(preempted_and_resumed())
    await kept.write(spans)
    await kept.write(spans)
    async with kept.database.connection() as connection:
        low = await store.read_trace(connection, trace.trace_id(LOW))
        every = await store.read_after(connection, Position(), 1000)
        page = await store.read_after(connection, Position(every[4].seq, every[4].ordinal), 3)
    assert every == spans
    assert sorted(low, key=lambda span: (span.seq, span.ordinal)) == [span for span in spans if span.job == LOW]
    assert page == spans[5:8]


async def test_a_projector_that_restarts_after_every_frame_writes_the_same(kept: Kept) -> None:
    frames = preempted_and_resumed()
    for frame, counts in counted(frames):
        async with kept.database.transaction() as connection:
            states = await store.load_states(connection, kept.schema)
            deriver = SpanDeriver(states, seq=frame.seq - 1)
            spans = deriver.apply(frame, counts)
            await store.write(connection, kept.schema, spans, deriver.take_changes())
    async with kept.database.connection() as connection:
        assert await store.read_after(connection, Position(), 1000) == derived(frames)
        assert set(await store.load_states(connection, kept.schema)) == {LOW}, "one verdict is awaited, nothing else"


async def test_a_transaction_that_fails_leaves_nothing(kept: Kept) -> None:
    spans = derived(preempted_and_resumed())

    async def fail() -> None:
        async with kept.database.transaction() as connection:
            await store.write(connection, kept.schema, spans, {LOW: b"{}"})
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        await fail()
    async with kept.database.connection() as connection:
        assert await store.read_after(connection, Position(), 10) == []
        assert await store.load_states(connection, kept.schema) == {}


async def test_a_trace_is_answered_in_jaegers_form(jaeger: httpx.AsyncClient) -> None:
    answer = await jaeger.get(f"/api/v3/traces/{trace.trace_id(LOW)}")
    assert answer.status_code == 200
    resources = answer.json()["result"]["resourceSpans"]
    first = resources[0]
    assert first["resource"]["attributes"][0] == {"key": "service.name", "value": {"stringValue": "tidegate-gateway"}}
    (root,) = first["scopeSpans"][0]["spans"]
    assert root["traceId"] == trace.trace_id(LOW)
    assert root["spanId"] == trace.span_id(LOW)
    assert "parentSpanId" not in root
    assert (root["kind"], root["status"], root["startTimeUnixNano"]) == (2, {"code": 1}, "1700000000700000000")
    assert {"key": "tidegate.priority", "value": {"intValue": "1"}} in root["attributes"]
    services = {resource["resource"]["attributes"][0]["value"]["stringValue"] for resource in resources}
    assert services == {"tidegate-gateway", "tidegate-scheduler", "tidegate-node", "tidegate-checkpoint"}
    spans = from_json(answer.json())
    assert {span["trace_id"] for span in spans} == {trace.trace_id(LOW)}
    assert any(span["links"] for span in spans)
    short = trace.trace_id(LOW).lstrip("0").upper()
    assert (await jaeger.get(f"/api/v3/traces/{short}")).json() == answer.json()


async def search(jaeger: httpx.AsyncClient, **wanted: Any) -> set[str]:
    answer = await jaeger.get("/api/v3/traces", params={**DAY, **{f"query.{k}": v for k, v in wanted.items()}})
    if answer.status_code == 404:
        assert answer.json()["error"] == {"httpCode": 404, "message": "No traces found"}
        return set()
    assert answer.status_code == 200, answer.text
    return {span["trace_id"] for span in from_json(answer.json())}


async def test_traces_are_found_by_what_their_spans_are(jaeger: httpx.AsyncClient) -> None:
    low, high = trace.trace_id(LOW), trace.trace_id(HIGH)
    assert await search(jaeger, serviceName="tidegate-gateway") == {low, high}
    assert await search(jaeger, service_name="tidegate-node", operation_name="restore") == {low}
    assert await search(jaeger, durationMin="6.5s", durationMax="1m") == {low}
    assert await search(jaeger, attributes='{"tidegate.outcome":"completed"}') == {high}
    assert await search(jaeger, attributes='{"tidegate.exit_code":"3"}') == {low}
    assert await search(jaeger, attributes='{"tidegate.acknowledged":"true"}') == {low}
    assert len(await search(jaeger, searchDepth="1")) == 1
    assert await search(jaeger, serviceName="nobody") == set()
    late = {"query.startTimeMin": "2024-01-01T00:00:00Z", "query.startTimeMax": "2024-01-02T00:00:00Z"}
    assert (await jaeger.get("/api/v3/traces", params=late)).status_code == 404


async def test_services_and_operations_are_listed(jaeger: httpx.AsyncClient) -> None:
    services = (await jaeger.get("/api/v3/services")).json()
    assert services == {"services": ["tidegate-checkpoint", "tidegate-gateway", "tidegate-node", "tidegate-scheduler"]}
    found = (await jaeger.get("/api/v3/operations", params={"service": "tidegate-gateway"})).json()
    assert found == {"operations": [{"name": "submit", "spanKind": "server"}]}
    none = await jaeger.get("/api/v3/operations", params={"service": "tidegate-gateway", "spanKind": "internal"})
    assert none.json() == {"operations": []}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v3/traces/xyz", 400),
        ("/api/v3/traces/" + "0" * 33, 400),
        ("/api/v3/traces/0123", 404),
        ("/api/v3/traces/0123?startTime=yesterday", 400),
        ("/api/v3/traces", 400),
        ("/api/v3/traces?query.startTimeMin=2023-11-14T00:00:00Z", 400),
        ("/api/v3/traces?query.startTimeMin=2023-99-14T00:00:00Z&query.startTimeMax=2023-11-14T00:00:00Z", 400),
        ("/api/v3/traces?query.startTimeMin=0001-01-01T00:00:00Z&query.startTimeMax=9999-12-31T23:59:59Z"
         "&query.durationMin=soon", 400),
        ("/api/v3/traces?query.startTimeMin=0001-01-01T00:00:00Z&query.startTimeMax=9999-12-31T23:59:59Z"
         "&query.searchDepth=0", 400),
        ("/api/v3/traces?query.startTimeMin=0001-01-01T00:00:00Z&query.startTimeMax=9999-12-31T23:59:59Z"
         "&query.attributes=[1]", 400),
        ("/api/v3/traces?query.startTimeMin=0001-01-01T00:00:00Z&query.startTimeMax=9999-12-31T23:59:59Z"
         "&query.serviceName=%00", 400),
        ("/api/v3/traces?query.startTimeMin=0001-01-01T00:00:00Z&query.startTimeMax=9999-12-31T23:59:59Z", 200),
        ("/api/v3/operations", 400),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_refused_by_name(jaeger: httpx.AsyncClient, path: str, status: int) -> None:
    answer = await jaeger.get(path)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert answer.json()["error"]["httpCode"] == status
        assert answer.json()["error"]["message"] == answer.json()["problem"]


async def test_a_database_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    database = Database(NOT_THERE, name="test")
    await database.open()
    async with client_of(tmp_path, database) as client:
        for path in ("/api/v3/services", "/api/v3/traces/1", "/api/v3/operations?service=x"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "database_away")
            assert answer.headers["retry-after"]
            assert "nobody" not in answer.text
    await database.close()
    async with client_of(tmp_path, None) as client:
        assert (await client.get("/api/v3/services")).status_code == 501


async def test_odd_values_of_one_job_stop_nobody(kept: Kept) -> None:
    """A journal may hold what PostgreSQL and OTLP cannot: it is bounded, and the rest is there."""
    cluster = Cluster()
    cluster.node("n1")
    cluster.submit(spec(500), "j1")
    cluster.settle()
    member = cluster.members("j1")[0]
    cluster.node_fact("j1", member, e.SandboxStarted, level="\x00", start_ms=-(10**30), prepare_ms=10**30)
    huge = {f"k{number}": "x" * 5000 for number in range(200)}
    about = {"tenant": "t", "job": "j1", "attempt": 1, "rank": 0}
    odd = (
        e.PhaseChanged(id="\x00", at_ns=10**40, phase="\x00" * 3000, step=10**30, **about),  # type: ignore[arg-type]
        e.PhaseChanged(id="p", at_ns=-(10**40), phase="", **about),  # type: ignore[arg-type]
        e.SandboxExited(
            id="x", at_ns=0, node="n1", outcome="failed", signal=10**30, detail="\x00" * 9000, **about,  # type: ignore[arg-type]
        ),
    )  # fmt: skip
    frames = [*cluster.frames, cluster.append("node", "n1", *odd)]
    completed = e.JobCompleted(id="c", at_ns=-1, tenant="t", job="j1", revision=99, attempt=1, result=huge)
    frames.append(Recorded(len(frames) + 1, "tg.decision", Frame(Writer("scheduler", "s1", 1, 10**9), (completed,))))
    spans = derived(frames)
    await kept.write(spans, {"j\x00": b"{}"})
    async with kept.database.connection() as connection:
        assert await store.read_after(connection, Position(), 1000) == spans
    assert from_wire(ExportTraceServiceRequest.FromString(export_request(spans).SerializeToString()))
    names = {span.name for span in spans}
    assert {"phase " + "\ufffd" * 994, "sandbox", "end"} <= names
    assert len(spans[-1].attributes) < 100
