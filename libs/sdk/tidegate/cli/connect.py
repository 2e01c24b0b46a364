"""Gives a command its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.client import Client


def connect() -> Client:
    """Return a client of the gateway that the environment or the local stack names; use it as a context manager."""
    # Imported when a command runs: `tidegate --help` needs neither httpx nor asyncio.
    from tidegate.client import Client  # noqa: PLC0415

    return Client()
