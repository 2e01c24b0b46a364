"""The feed, in memory and on a real bus: every message once, in order, from a time on, across lost consumers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from tidegate_events.subjects import TELEMETRY_STREAM
from tidegate_metrics.feed.base import Feed, Message
from tidegate_metrics.feed.memory import MemoryFeed
from tidegate_metrics.feed.nats import NatsFeed

from tests.metrics.conftest import SECONDS_MAX, Streams
from tests.metrics.samples import Node

Send = Callable[[list[Any]], Awaitable[None]]
Both = tuple[Feed, Send]


@pytest.fixture(params=["memory", "nats"])
def both(request: pytest.FixtureRequest, streams: Streams) -> Both:
    if request.param == "memory":
        memory = MemoryFeed()

        async def send(samples: list[Any]) -> None:
            await memory.publish(samples[0].node, time.time_ns(), samples)

        return memory, send
    return NatsFeed(streams.client), streams.sample


async def read(feed: Feed, since_ns: int, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(SECONDS_MAX), aclosing(feed.follow(since_ns)) as messages:
        async for message in messages:
            found.append(message)
            if len(found) == count:
                break
    return found


async def test_messages_come_in_order_past_and_live_and_from_a_time_on(both: Both) -> None:
    feed, send = both
    node = Node()
    for step in range(600):  # more than one request for messages brings
        await send([node.process(time.time_ns(), step)])
    middle_ns = time.time_ns()
    await asyncio.sleep(0.01)
    await send([node.process(time.time_ns(), 600)])
    late = asyncio.ensure_future(read(feed, 0, 602))
    await asyncio.sleep(0.1)
    await send([node.process(time.time_ns(), 601)])
    found = await late
    assert [message.samples[0].seq for message in found] == list(range(1, 603))
    assert [message.seq for message in found] == list(range(1, 603))
    assert len({message.stream for message in found}) == 1
    assert [message.samples[0].seq for message in await read(feed, middle_ns, 2)] == [601, 602]


async def test_a_consumer_that_is_lost_is_made_anew_without_loss_or_repeat(streams: Streams) -> None:
    node, feed = Node(), NatsFeed(streams.client)

    async def delete_consumers() -> int:
        names = await api(streams, f"CONSUMER.NAMES.{TELEMETRY_STREAM}")
        for name in names.get("consumers") or ():
            await api(streams, f"CONSUMER.DELETE.{TELEMETRY_STREAM}.{name}")
        return len(names.get("consumers") or ())

    reading = asyncio.ensure_future(read(feed, 0, 40))
    deleted = 0
    for step in range(40):
        await streams.sample([node.process(time.time_ns(), step)])
        if step == 20:
            await asyncio.sleep(0.2)
            deleted = await delete_consumers()
    found = await reading
    assert deleted == 1
    assert [message.samples[0].seq for message in found] == list(range(1, 41))


async def test_a_stream_that_is_made_anew_is_told_from_the_old_one(streams: Streams) -> None:
    node, feed = Node(), NatsFeed(streams.client)
    await streams.sample([node.process(time.time_ns(), 0)])
    reading = asyncio.ensure_future(read(feed, 0, 2))
    await asyncio.sleep(0.3)
    await api(streams, f"STREAM.DELETE.{TELEMETRY_STREAM}")
    await streams.create_telemetry()
    await streams.sample([node.process(time.time_ns(), 1)])
    old, new = await reading
    assert (old.seq, new.seq) == (1, 1)
    assert old.stream != new.stream


async def api(streams: Streams, call: str) -> dict[str, Any]:
    answer = await streams.client.request(f"$JS.API.{call}", b"", timeout=5)
    decoded: dict[str, Any] = msgspec.json.decode(answer.data)
    assert "error" not in decoded, decoded
    return decoded
