"""Where PostgreSQL is: from the environment alone, because a flag would show the password to `ps`."""

from __future__ import annotations

from collections.abc import Mapping

DATABASE_URL_VARIABLE = "TIDEGATE_DATABASE_URL"
_SCHEMES = ("postgresql://", "postgres://")


class DatabaseUrlError(Exception):
    """TIDEGATE_DATABASE_URL cannot be used; says what is accepted."""


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
