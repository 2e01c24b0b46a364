"""The scripted gateway, and the two clients behind one face."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tidegate.client import AsyncClient, Client

from tests.client.scripted import Scripted


@pytest.fixture
def gateway() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.close()


def _collected(chunks: Any) -> list[Any]:
    return list(chunks)


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, gateway: Scripted) -> Callable[..., Any]:
    """Call a method of either client by name; streams come back as lists."""

    def sync_call(name: str, *arguments: Any, **named: Any) -> Any:
        with Client(gateway.url) as client:
            result = getattr(client, name)(*arguments, **named)
            return _collected(result) if name == "logs" else result

    async def run(name: str, *arguments: Any, **named: Any) -> Any:
        async with AsyncClient(gateway.url) as client:
            if name == "logs":
                return [chunk async for chunk in client.logs(*arguments, **named)]
            return await getattr(client, name)(*arguments, **named)

    def async_call(name: str, *arguments: Any, **named: Any) -> Any:
        return asyncio.run(run(name, *arguments, **named))

    return sync_call if request.param == "sync" else async_call
