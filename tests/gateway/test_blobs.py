"""Blobs: whole and verified, or not there."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest


def _path(data: bytes) -> str:
    return f"/v1/blobs/{hashlib.sha256(data).hexdigest()}"


async def test_a_blob_comes_back_as_it_went(bench: Any) -> None:
    data = bytes(range(256)) * 6000
    assert (await bench.client.head(_path(data))).status_code == 404

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 70_000):
            yield data[start : start + 70_000]

    answer = await bench.client.put(_path(data), content=chunks())
    assert (answer.status_code, answer.json()["size_bytes"]) == (201, len(data))
    assert (await bench.client.put(_path(data), content=data)).status_code == 200
    assert (await bench.client.get(_path(data))).content == data
    head = await bench.client.head(_path(data))
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(data)), b"")


async def test_an_uploaded_workdir_can_be_named(bench: Any) -> None:
    digest = hashlib.sha256(b"tar").hexdigest()
    job = {"command": ["x"], "resources": {"cpu_millis": 10, "memory_mib": 4}, "workdir": digest}
    assert "PUT /v1/blobs" in (await bench.problems(job))["workdir"]
    await bench.client.put(f"/v1/blobs/{digest}", content=b"tar")
    assert (await bench.submit(job)).status_code == 201


async def test_other_bytes_and_too_many_leave_nothing(bench: Any) -> None:
    wrong = await bench.client.put(_path(b"a"), content=b"b")
    assert wrong.status_code == 422
    assert hashlib.sha256(b"b").hexdigest() in wrong.text
    large = b"x" * 2_000_001
    assert (await bench.client.put(_path(large), content=large)).json()["code"] == "too_large"
    assert list(bench.gateway.blobs.directory.iterdir()) == []


async def test_a_sender_that_breaks_off_leaves_nothing(bench: Any) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"part"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await bench.client.put(_path(b"part and more"), content=broken())
    assert list(bench.gateway.blobs.directory.iterdir()) == []


async def test_what_a_killed_gateway_left_is_dropped_at_the_next_start(
    bench: Any, make_bench: Any, tmp_path: Path
) -> None:
    (bench.gateway.blobs.directory / ".partial-0123").write_bytes(b"half")
    make_bench(tmp_path / "gateway")
    assert list(bench.gateway.blobs.directory.iterdir()) == []
