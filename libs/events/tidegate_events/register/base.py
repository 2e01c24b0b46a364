"""The register port: the newest value of each key, changed only by who has seen the value before.

Keys are tokens with dots between them. Every change gets the next revision, over all keys: so revisions are an order of
changes, and what changed since a revision can be asked for.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec


class Kept(msgspec.Struct, frozen=True):
    """The value of a key, and the revision that it came with."""

    key: str
    data: bytes
    revision: int


class Stale(msgspec.Struct, frozen=True):
    """The key has another revision than was expected; nothing was written."""

    expected: int
    actual: int


class RegisterUnavailableError(Exception):
    """No answer within the bound, or no room; infrastructure. Retriable: a value that was written is found again."""


class Register(Protocol):
    """Keys and their newest values; the oldest may have been let go where the register is bounded."""

    async def get(self, key: str) -> Kept | None:
        """Return the key's value, None where it has none. Raises RegisterUnavailableError."""
        ...

    async def put(self, key: str, data: bytes, expected: int) -> int | Stale:
        """Write `data` if the key still has revision `expected` (0: no value); return the new revision.

        A doubtful answer is settled by reading back. Raises RegisterUnavailableError.
        """
        ...

    async def next(self, after: int, under: str = "") -> Kept | None:
        """Return the oldest value newer than revision `after`, of the keys below the tokens `under` (all, if empty).

        None where there is none. Raises RegisterUnavailableError.
        """
        ...

    async def oldest(self) -> int:
        """Return the revision below which nothing is kept any more. Raises RegisterUnavailableError."""
        ...

    def changes(self, under: str) -> AbstractAsyncContextManager[asyncio.Event]:
        """Yield an event that is set when a key below `under` changes: a hint that may get lost, so look anyway."""
        ...
