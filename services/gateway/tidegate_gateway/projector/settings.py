"""What the projector can be told, all of it by environment: a flag would show the database's password to `ps`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from tidegate_events.bus import BusSettings
from tidegate_events.process import bus_settings
from tidegate_events.subjects import token

DATABASE_URL_VARIABLE = "TIDEGATE_DATABASE_URL"
_SCHEMES = ("postgresql://", "postgres://")


class DatabaseUrlError(Exception):
    """TIDEGATE_DATABASE_URL or TIDEGATE_INSTANCE cannot be used; says what is accepted."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the journal is, where the tables are, and what this projector is called."""

    instance: str
    bus: BusSettings
    database_url: str


def database_url(environment: Mapping[str, str]) -> str | None:
    """Return where PostgreSQL is, None where nothing is said. Raises DatabaseUrlError, which never repeats the URL."""
    url = environment.get(DATABASE_URL_VARIABLE, "").strip()
    if not url:
        return None
    if not url.startswith(_SCHEMES):
        raise DatabaseUrlError(
            f"{DATABASE_URL_VARIABLE} is refused: postgresql://user:password@host/database is accepted"
        )
    return url


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Return the settings. Raises DatabaseUrlError."""
    url = database_url(environment)
    if url is None:
        raise DatabaseUrlError(
            f"{DATABASE_URL_VARIABLE} is not set: postgresql://user:password@host/database is needed"
        )
    try:
        instance = token(environment.get("TIDEGATE_INSTANCE", "p1"))
    except ValueError as error:
        raise DatabaseUrlError(f"TIDEGATE_INSTANCE: {error}") from error
    return Settings(instance=instance, bus=bus_settings(f"tidegate-projector-{instance}"), database_url=url)
