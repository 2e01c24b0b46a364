"""What the projector can be told, all of it by environment: a flag would show the database's password to `ps`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from tidegate_events.bus import BusSettings
from tidegate_events.process import bus_settings
from tidegate_events.subjects import token

from tidegate_gateway.database.url import DATABASE_URL_VARIABLE, DatabaseUrlError, database_url


class ProjectorSettingsError(Exception):
    """A setting cannot be used; says what is accepted."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the journal is, where the tables are, and what this projector is called."""

    instance: str
    bus: BusSettings
    database_url: str


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Return the settings. Raises ProjectorSettingsError."""
    try:
        url = database_url(environment)
    except DatabaseUrlError as error:
        raise ProjectorSettingsError(str(error)) from error
    if url is None:
        raise ProjectorSettingsError(
            f"{DATABASE_URL_VARIABLE} is not set: postgresql://user:password@host/database is needed"
        )
    try:
        instance = token(environment.get("TIDEGATE_INSTANCE", "p1"))
    except ValueError as error:
        raise ProjectorSettingsError(f"TIDEGATE_INSTANCE: {error}") from error
    return Settings(instance=instance, bus=bus_settings(f"tidegate-projector-{instance}"), database_url=url)
