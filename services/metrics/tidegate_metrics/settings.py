"""The metrics service's settings, from TIDEGATE_* variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
from tidegate_events.bus import BusSettings
from tidegate_events.process import bus_settings
from tidegate_events.subjects import token

from tidegate_metrics.rates import Thresholds

PORT_DEFAULT = 9464


class SettingsError(Exception):
    """A setting cannot be used; says which, and what is accepted."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bus and the database are, and how step rates are judged. `port` 0 takes a free one.

    Without `database_url` nothing is stored, and counters begin anew with each start. `telemetry_bytes_max` makes the
    telemetry stream with that size where it is missing; 0 waits for whoever may make streams.
    """

    bus: BusSettings
    instance: str = "m1"
    port: int = PORT_DEFAULT
    database_url: str = ""
    window_seconds: int = 10
    thresholds: Thresholds = Thresholds()
    flush_seconds: float = 2.0
    retention_days: int = 7
    telemetry_bytes_max: int = 0

    def __repr__(self) -> str:
        return f"Settings(instance={self.instance!r}, port={self.port}, database={bool(self.database_url)})"


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings. Raises SettingsError."""
    try:
        instance = token(environ.get("TIDEGATE_INSTANCE", "m1"))
    except ValueError as error:
        raise SettingsError(f"TIDEGATE_INSTANCE: {error}") from error
    url = environ.get("TIDEGATE_DATABASE_URL", "")
    if url and not url.startswith(("postgresql://", "postgres://")):
        # The value may hold a password, so it is not shown.
        raise SettingsError("TIDEGATE_DATABASE_URL refused; a URL that begins with postgresql:// is accepted")
    return Settings(
        bus=bus_settings("metrics"),
        instance=instance,
        port=_whole(environ, "TIDEGATE_METRICS_PORT", PORT_DEFAULT, 0, 65_535),
        database_url=url,
        window_seconds=_whole(environ, "TIDEGATE_RATE_WINDOW_SECONDS", 10, 1, 3600),
        thresholds=Thresholds(
            windows=_whole(environ, "TIDEGATE_RATE_WINDOWS", 3, 1, 1000),
            margin_percent=_whole(environ, "TIDEGATE_RATE_MARGIN_PERCENT", 5, 0, 1000),
        ),
        flush_seconds=_whole(environ, "TIDEGATE_METRICS_FLUSH_MILLIS", 2000, 50, 60_000) / 1000,
        retention_days=_whole(environ, "TIDEGATE_METRICS_RETENTION_DAYS", 7, 1, 3650),
        telemetry_bytes_max=_whole(environ, "TIDEGATE_TELEMETRY_BYTES_MAX", 0, 0, 2**40),
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
