"""Whether a bus server's disk takes writes, for whoever starts and stops the server.

After a write that failed (a full disk, mostly) nats-server refuses all writes to that stream until it is started anew,
also when there is room again; what it had acknowledged is intact. One of a cluster turns JetStream off altogether, and
the others go on. It says so at `/healthz` of its monitoring address.
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import msgspec

HEALTH_SECONDS_MAX = 2.0
ROOM_BYTES_MIN = 16 * 1024**2
# What nats-server 2.15 says alone, and in a cluster; the last where it came back and learned of a generation's closing
# later than of the next one, which it refused and will not take before it is started anew.
_SAYS_SO = ("write error", "JetStream not enabled", "subjects overlap with an existing stream")


class _Health(msgspec.Struct):
    status: str = ""
    error: str = ""


async def write_error(monitor_url: str) -> str | None:
    """Return what the server at `monitor_url` says of a write that failed; None where none did, or nobody answers."""
    try:
        async with httpx.AsyncClient(timeout=HEALTH_SECONDS_MAX, trust_env=False) as client:
            health = msgspec.json.decode((await client.get(f"{monitor_url}/healthz")).content, type=_Health)
    except (httpx.HTTPError, msgspec.MsgspecError):
        return None
    return health.error if is_write_error(health.error) else None


def is_write_error(error: str) -> bool:
    """Say whether what a server says of its health means that a write failed, or that it does not store a stream."""
    return any(words in error for words in _SAYS_SO)


def has_room(store_dir: Path, room_bytes: int = ROOM_BYTES_MIN) -> bool:
    """Say whether the disk of `store_dir` has that much room."""
    disk = os.statvfs(store_dir)
    return disk.f_bavail * disk.f_frsize >= room_bytes


async def restart_is_due(monitor_url: str, store_dir: Path, room_bytes: int = ROOM_BYTES_MIN) -> bool:
    """Say whether the server must be started anew: a write has failed, and there is room again.

    Without room a new start would only fail later, and take away what still can be read.
    """
    return await write_error(monitor_url) is not None and has_room(store_dir, room_bytes)
