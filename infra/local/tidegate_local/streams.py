"""The bus's streams and buckets: what the stack's own login makes where it is missing, and the bounds of each."""

from __future__ import annotations

from pathlib import Path

from nats.aio.client import Client
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError
from tidegate_events import deadletter, positions, telemetry
from tidegate_events.journal.archive import ArchiveDirectory
from tidegate_events.journal.generations import open_archived, open_first
from tidegate_events.subjects import USER_STREAM, USER_SUBJECTS

JOURNAL_BYTES_MAX = 1024**3
GENERATION_BYTES_MIN = 1024**2
USER_BYTES_MAX = 64 * 1024**2
USER_AGE_SECONDS_MAX = 24 * 3600
USER_MESSAGES_PER_TENANT_MAX = 100_000
TELEMETRY_BYTES_MAX = 64 * 1024**2
SNAPSHOTS_BYTES_MAX = 1024**3
BUCKET_BYTES_MAX = 16 * 1024**2
DEADLETTER_BYTES_MAX = 64 * 1024**2
# A generation that is being archived lies beside the live one. And asked to create a stream that exists, the server
# wants room for it a second time before it compares the two.
GENERATIONS_HELD_MAX = 4
MEMORY_STORE_BYTES_MAX = 2 * TELEMETRY_BYTES_MAX
CONFIGURED_OTHERWISE = 10058

SNAPSHOTS = "SNAPSHOTS"
LEASE = "LEASE"


def store_bytes_max(journal_bytes: int) -> int:
    """Return the room that one server's store needs."""
    others = USER_BYTES_MAX + DEADLETTER_BYTES_MAX + SNAPSHOTS_BYTES_MAX + 2 * BUCKET_BYTES_MAX
    return GENERATIONS_HELD_MAX * journal_bytes + 2 * others


async def create(client: Client, *, journal_bytes: int, replicas: int, archive: Path | None = None) -> None:
    """Create what is missing, and give bounds of an earlier version their new value. Idempotent.

    A journal of which there is only the archive (it was imported) goes on after that.
    """
    if archive is not None:
        await open_archived(client, ArchiveDirectory(archive), max_bytes=journal_bytes, replicas=replicas)
    await open_first(client, max_bytes=journal_bytes, replicas=replicas)
    theirs = (
        telemetry.stream_config(max_bytes=TELEMETRY_BYTES_MAX),
        deadletter.stream_config(max_bytes=DEADLETTER_BYTES_MAX),
        positions.stream_config(max_bytes=BUCKET_BYTES_MAX),
    )
    for config in (_user(), _lease(), _snapshots(), *(StreamConfig.from_response(each) for each in theirs)):
        await _ensure(client, config.evolve(num_replicas=replicas))


async def _ensure(client: Client, config: StreamConfig) -> None:
    try:
        await client.jetstream().add_stream(config)
    except BadRequestError as error:
        if error.err_code != CONFIGURED_OTHERWISE:
            raise
        await client.jetstream().update_stream(config)


def _user() -> StreamConfig:
    return StreamConfig(
        name=USER_STREAM,
        subjects=list(USER_SUBJECTS),
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_bytes=USER_BYTES_MAX,
        max_age=USER_AGE_SECONDS_MAX,
        max_msgs_per_subject=USER_MESSAGES_PER_TENANT_MAX,
    )


def _snapshots() -> StreamConfig:
    """Return the stream of an object store (as the NATS clients lay it out)."""
    return StreamConfig(
        name=f"OBJ_{SNAPSHOTS}",
        subjects=[f"$O.{SNAPSHOTS}.C.>", f"$O.{SNAPSHOTS}.M.>"],
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_bytes=SNAPSHOTS_BYTES_MAX,
        allow_rollup_hdrs=True,
        allow_direct=True,
    )


def _lease() -> StreamConfig:
    """Return the stream of a key-value bucket (as the NATS clients lay it out); its leader alone answers reads."""
    return StreamConfig(
        name=f"KV_{LEASE}",
        subjects=[f"$KV.{LEASE}.>"],
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_bytes=BUCKET_BYTES_MAX,
        max_msgs_per_subject=1,
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=False,
    )
