"""The keeper's settings, from TIDEGATE_* variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from tidegate_events.bus import BusSettings
from tidegate_events.process import bus_settings
from tidegate_events.subjects import token

from tidegate_scheduler.snapshot_store import BUCKET_BYTES_MAX, KEPT_DEFAULT

MIB = 1024**2
GENERATION_BYTES_DEFAULT = 1024 * MIB
CLOSED_MAX = 3
"""So many closed generations may wait for the archive; then none is closed any more, and a full journal says so."""


class SettingsError(Exception):
    """A setting cannot be used; says which, and what is accepted."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus and the archive are, and when the keeper does what.

    A generation has at most `generation_bytes`, and the next one is opened when `roll_percent` of them are used. The
    newest `sealed_kept` closed ones stay on the bus although they are in the archive. Every `poll_seconds` it looks how
    full the journal is; what is new is folded every `fold_seconds`, or when something depends on it.
    """

    bus: BusSettings
    archive_dir: Path
    instance: str = "k1"
    snapshot_events: int = 50_000
    snapshots_kept: int = KEPT_DEFAULT
    snapshots_bytes_max: int = BUCKET_BYTES_MAX
    generation_bytes: int = GENERATION_BYTES_DEFAULT
    roll_percent: int = 70
    sealed_kept: int = 0
    poll_seconds: float = 0.5
    fold_seconds: float = 5.0


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings. Raises SettingsError."""
    try:
        instance = token(environ.get("TIDEGATE_INSTANCE", "k1"))
    except ValueError as error:
        raise SettingsError(f"TIDEGATE_INSTANCE: {error}") from error
    archive = environ.get("TIDEGATE_JOURNAL_ARCHIVE_DIR", "")
    if not archive:
        raise SettingsError("TIDEGATE_JOURNAL_ARCHIVE_DIR is not set; a directory for closed generations is needed")
    return Settings(
        bus=bus_settings("keeper"),
        archive_dir=Path(archive),
        instance=instance,
        snapshot_events=_whole(environ, "TIDEGATE_SNAPSHOT_EVENTS", 50_000, 1, 10**9),
        snapshots_kept=_whole(environ, "TIDEGATE_SNAPSHOTS_KEPT", KEPT_DEFAULT, 1, 100),
        snapshots_bytes_max=_whole(environ, "TIDEGATE_SNAPSHOTS_BYTES_MAX", BUCKET_BYTES_MAX, MIB, 2**40),
        generation_bytes=_whole(environ, "TIDEGATE_GENERATION_BYTES", GENERATION_BYTES_DEFAULT, MIB, 2**50),
        roll_percent=_whole(environ, "TIDEGATE_GENERATION_PERCENT", 70, 1, 95),
        sealed_kept=_whole(environ, "TIDEGATE_SEALED_KEPT", 0, 0, CLOSED_MAX - 1),
        poll_seconds=_whole(environ, "TIDEGATE_KEEPER_POLL_MILLIS", 500, 20, 60_000) / 1000,
    )


def _whole(environ: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = environ.get(name) or str(default)
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise SettingsError(f"{name}={text!r} refused; a whole number from {least} to {most} is accepted")
    return value
