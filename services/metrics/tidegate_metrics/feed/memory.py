"""Telemetry in memory: for tests of what stands on it; same contract as the real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from tidegate_events.subjects import telemetry as subject_of
from tidegate_events.telemetry import Sample, encode

from tidegate_metrics.feed.base import Message, read


class MemoryFeed:
    """Messages in a list; they go through the wire form, as real ones do."""

    def __init__(self, stream: str = "memory") -> None:
        self._stream = stream
        self._messages: list[Message] = []
        self._grown = asyncio.Condition()

    async def publish(self, node: str, at_ns: int, samples: Iterable[Sample]) -> None:
        """Add messages of one node."""
        async with self._grown:
            for data in encode(samples):
                seq = len(self._messages) + 1
                self._messages.append(read(self._stream, seq, at_ns, subject_of(node), data))
            self._grown.notify_all()

    async def follow(self, since_ns: int) -> AsyncGenerator[Message, None]:
        """Yield as the port says."""
        sent = 0
        while True:
            async with self._grown:
                while len(self._messages) <= sent:
                    await self._grown.wait()
            for message in self._messages[sent:]:
                sent += 1
                if message.at_ns > since_ns:
                    yield message
