"""Another job's process, which speaks to its agent all the time: whatever is tried beside it, it must be heard."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from pathlib import Path
from typing import Any, Self

BEAT_SECONDS = 0.2
ANSWER_SECONDS_MAX = 20.0


class Neighbour:
    """`seconds_max` is the longest that an acknowledgement took."""

    def __init__(self, path: Path, client: str) -> None:
        self._path = path
        self._client = client
        self.seconds_max = 0.0

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_unix_connection(str(self._path))
        greeting = {"component": "main", "replica": 0, "pid": 1, "first_seq": 1, "stop_group": "g"}
        self._send({"kind": "hello", "protocol": [1, 1], "client": self._client, "sdk": "0", "python": "3", **greeting})
        assert (await self._receive())["kind"] == "welcome"
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        self._writer.close()

    async def _beat(self) -> None:
        seq = 0
        while True:
            seq += 1
            began = time.monotonic()
            self._send({"kind": "publish", "seq": seq, "at_ns": 1, "event": "Beat", "payload": {}})
            assert await self._receive() == {"kind": "ack", "seq": seq}
            self.seconds_max = max(self.seconds_max, time.monotonic() - began)
            await asyncio.sleep(BEAT_SECONDS)

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self._writer.write(struct.pack(">I", len(body)) + body)

    async def _receive(self) -> dict[str, Any]:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            found: dict[str, Any] = json.loads(await self._reader.readexactly(length))
        return found
