"""Nothing that a client can send ends in a 500, and what is accepted is in the journal, readable by everybody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidegate_events.events import JobSubmitted
from tidegate_events.frame import decode, encode

FUZZ = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "default", "main", "2GB", "\x00", "../..", "/etc", "9" * 30, 0, -1, 2**63, 2**64, 1e308]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(
                st.text(max_size=12),
                st.sampled_from(["default", "minimum", "cpu_millis", "gpu_millis", "name", "command"]),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
FIELDS = [
    *[
        "name",
        "tenant",
        "submitter",
        "type",
        "image",
        "workdir",
        "env",
        "secrets",
        "components",
        "priority",
        "gang_size",
    ],
    *[
        "isolation",
        "expected_seconds",
        "time_limit_seconds",
        "target_steps_per_second",
        "restart",
        "preemption",
        "determinism",
        "threads",
        "seed",
    ],
    *["communication", "locality_wait_seconds", "widest_domain", "gpu_models"],
    *["inputs", "outputs", "labels", "source", "command", "resources", "idempotency_key", "surplus"],
]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *[deeper for key, element in inner for deeper in _paths(element, (*path, key))]]


def _mutate(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _mutate(value[path[0]], path[1:], new)
    return copy


def _post(make_bench: Any, directory: Path, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    """Post to a fresh gateway with one node; check that whatever was accepted can be read from the journal."""

    async def post() -> httpx.Response:
        async with make_bench(directory, input_roots=(directory,)) as bench:
            await bench.history.node()
            await bench.settle()
            answer: httpx.Response = await bench.client.post("/v1/jobs", content=body, headers=headers)
            end = await bench.journal.end()
            assert end == (2 if answer.status_code == 201 else 1)
            if answer.status_code == 201:
                recorded = await bench.journal.last("tg.fact.gateway.g1")
                (event,) = decode(encode(recorded.frame)).events
                assert isinstance(event, JobSubmitted)
                assert (await bench.client.get(f"/v1/jobs/{answer.json()['job_id']}")).status_code == 200
            return answer

    return asyncio.run(post())


def _check(answer: httpx.Response) -> None:
    assert answer.status_code in (201, 422)
    if answer.status_code == 422:
        problems = answer.json()
        assert problems
        assert all(set(problem) == {"path", "problem", "accepted"} for problem in problems)
        assert all(problem["path"] and problem["problem"] and problem["accepted"] for problem in problems)


@FUZZ
@given(body=st.one_of(st.binary(max_size=200), st.text(alphabet='{}[]":,\\ntruefalse0123456789.eE-+', max_size=60)))
def test_any_bytes(make_bench: Any, tmp_path: Path, body: bytes | str) -> None:
    _check(_post(make_bench, tmp_path, body if isinstance(body, bytes) else body.encode()))


@FUZZ
@given(value=st.one_of(VALUES, st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8)))
def test_any_json(make_bench: Any, tmp_path: Path, value: Any) -> None:
    _check(_post(make_bench, tmp_path, json.dumps(value).encode()))


@FUZZ
@given(data=st.data())
def test_mutations_of_a_valid_job(make_bench: Any, tmp_path: Path, valid: Any, data: st.DataObject) -> None:
    job = valid
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(_paths(job)))
        job = _mutate(job, path, data.draw(VALUES))
    if isinstance(job, dict) and data.draw(st.booleans()):
        job[data.draw(st.one_of(st.sampled_from(FIELDS), st.text(max_size=10)))] = data.draw(VALUES)
    _check(_post(make_bench, tmp_path, json.dumps(job).encode()))


@FUZZ
@given(
    key=st.text(alphabet=st.characters(codec="latin-1", exclude_characters="\r\n\x00"), max_size=140),
    who=st.text(alphabet=st.characters(codec="latin-1", exclude_characters="\r\n\x00"), max_size=140),
)
def test_any_header(make_bench: Any, tmp_path: Path, valid: Any, key: str, who: str) -> None:
    headers = {b"idempotency-key": key.encode("latin-1"), b"x-tidegate-submitter": who.encode("latin-1")}
    _check(_post(make_bench, tmp_path, json.dumps(valid).encode(), headers))  # type: ignore[arg-type]


@FUZZ
@given(
    path=st.sampled_from(
        ["jobs", "jobs/j-x", "jobs/j-x/logs", "jobs/j-x/explain", "nodes", "status", "events", "checkpoints", "blobs/x"]
    ),
    query=st.dictionaries(
        st.one_of(
            st.sampled_from(["limit", "tenant", "state", "before", "after", "job", "offset"]), st.text(max_size=8)
        ),
        st.one_of(st.text(max_size=12), st.integers().map(str)),
        max_size=4,
    ),
)
def test_any_query(make_bench: Any, tmp_path: Path, path: str, query: dict[str, str]) -> None:
    async def get() -> None:
        async with make_bench(tmp_path) as bench:
            answer = await bench.client.get(f"/v1/{path}", params=query)
            assert answer.status_code in (200, 404, 422)
            json.loads(answer.content)

    asyncio.run(get())


@pytest.mark.parametrize(
    "path", ["/v1/jobs/%00", "/v1/jobs/%ff%fe", "/v1/jobs/" + "x" * 5000, "/v1/blobs/..%2f..%2fetc"]
)
async def test_odd_paths(bench: Any, path: str) -> None:
    assert (await bench.client.get(path)).status_code in (404, 422)
    assert (await bench.client.delete(path)).status_code in (404, 405, 422)
