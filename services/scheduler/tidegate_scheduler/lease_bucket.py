"""Where the lease lies: the port, its adapter for a key-value bucket of JetStream, and one in memory for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from tidegate_scheduler.lease import Entry, LeaseRecord, Write

BUCKET = "LEASE"
KEY = "scheduler"

log = structlog.get_logger()
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LeaseRecord)


class LeaseUnavailableError(Exception):
    """The bucket did not answer in time: nobody knows what it holds, and whether a write is in it."""


class LeaseBucket(Protocol):
    """One record, changed by compare-and-set."""

    async def read(self) -> Entry | None:
        """Return what the bucket holds, None for nothing yet. Raises LeaseUnavailableError."""
        ...

    async def write(self, write: Write) -> int | None:
        """Return the new revision, None if the bucket was not at the expected one. Raises LeaseUnavailableError."""
        ...

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` soon after most changes: a hint, which may be missing or wrong."""
        ...


class NatsLeaseBucket:
    """The bucket LEASE. Its stream's leader answers reads (`allow_direct` is off), so none is of an old replica."""

    def __init__(self, client: Client, timeout_seconds: float) -> None:
        self._client = client
        self._values = KeyValue(
            name=BUCKET,
            stream=f"KV_{BUCKET}",
            pre=f"$KV.{BUCKET}.",
            js=client.jetstream(timeout=timeout_seconds),
            direct=False,
        )

    async def read(self) -> Entry | None:
        """Return the key's newest revision; one that was deleted by hand is an entry without a record."""
        try:
            found = await self._values.get(KEY)
        except KeyNotFoundError as error:
            deleted = error.entry
            return Entry(deleted.revision or 0, None) if deleted is not None else None
        except (nats.errors.Error, TimeoutError) as error:
            raise LeaseUnavailableError(f"bucket {BUCKET} cannot be read: {error!r}") from error
        return Entry(found.revision or 0, _decoded(found.value or b""))

    async def write(self, write: Write) -> int | None:
        """Update the key if its newest revision is the expected one."""
        try:
            return await self._values.update(KEY, _encoder.encode(write.record), last=write.expected_revision)
        except KeyWrongLastSequenceError:
            return None
        except (nats.errors.Error, TimeoutError) as error:
            raise LeaseUnavailableError(f"bucket {BUCKET} cannot be written: {error!r}") from error

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Listen to the writes themselves: they pass by on the bus as they go into the bucket."""

        async def heard(_message: Msg) -> None:
            on_change()

        await self._client.subscribe(f"$KV.{BUCKET}.{KEY}", cb=heard)


class MemoryLeaseBucket:
    """The record in a field, for tests of what stands on it."""

    def __init__(self) -> None:
        self.entry: Entry | None = None
        self.available = True
        self._watchers: list[Callable[[], None]] = []

    async def read(self) -> Entry | None:
        """Return the record."""
        self._answer()
        return self.entry

    async def write(self, write: Write) -> int | None:
        """Compare and set."""
        self._answer()
        revision = self.entry.revision if self.entry is not None else 0
        if write.expected_revision != revision:
            return None
        self.entry = Entry(revision + 1, _decoded(_encoder.encode(write.record)))
        for on_change in self._watchers:
            on_change()
        return revision + 1

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` at every write."""
        self._watchers.append(on_change)

    def _answer(self) -> None:
        if not self.available:
            raise LeaseUnavailableError("switched off")


def _decoded(data: bytes) -> LeaseRecord | None:
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        log.warning("lease_unreadable", error=str(error), begins=data[:80].decode(errors="replace"))
        return None
