"""Stores uploaded bytes under their own digest. A blob is there whole and verified, or not at all."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import msgspec

CHUNK_SECONDS_MAX = 30.0
WRITE_BYTES = 1024 * 1024
_PARTIAL = ".partial-"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class BlobTooLargeError(Exception):
    """More bytes came than a blob may have."""


class WrongDigestError(Exception):
    """The bytes have another digest than the name says; `actual` is theirs."""

    def __init__(self, actual: str) -> None:
        super().__init__(actual)
        self.actual = actual


class UploadTooSlowError(Exception):
    """Nothing came for too long."""


class UploadsBusyError(Exception):
    """Too many uploads run already. Retriable."""


class StorageFullError(Exception):
    """There is no room on the disk."""


class Stored(msgspec.Struct, frozen=True):
    """The blob is there; `created` says that this upload put it there."""

    size_bytes: int
    created: bool


class BlobStore:
    """Blobs in one directory, each a file named by the sha256 of its bytes."""

    def __init__(self, directory: Path, *, bytes_max: int, uploads_max: int) -> None:
        self.directory = directory
        self._bytes_max = bytes_max
        self._uploads_max = uploads_max
        self._uploads = 0

    def prepare(self) -> None:
        """Make the directory, and drop what a killed process left half-written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for left in self.directory.glob(f"{_PARTIAL}*"):
            left.unlink(missing_ok=True)

    def path(self, digest: str) -> Path:
        """Return where the blob is, or would be."""
        return self.directory / digest

    async def put(self, digest: str, chunks: AsyncIterator[bytes]) -> Stored:
        """Store the bytes if their digest is `digest`.

        Raises BlobTooLargeError, WrongDigestError, UploadTooSlowError, UploadsBusyError and StorageFullError.
        """
        if self._uploads >= self._uploads_max:
            raise UploadsBusyError(f"{self._uploads} uploads run already")
        self._uploads += 1
        partial = self.directory / f"{_PARTIAL}{secrets.token_hex(8)}"
        try:
            return await self._receive(digest, partial, chunks)
        except OSError as error:
            if error.errno in _FULL:
                raise StorageFullError("there is no room for the blob") from error
            raise
        finally:
            self._uploads -= 1
            partial.unlink(missing_ok=True)

    async def _receive(self, digest: str, partial: Path, chunks: AsyncIterator[bytes]) -> Stored:
        hasher, size, buffer = hashlib.sha256(), 0, bytearray()
        with partial.open("xb") as file:
            while chunk := await self._next(chunks):
                size += len(chunk)
                if size > self._bytes_max:
                    raise BlobTooLargeError(f"more than {self._bytes_max} bytes")
                buffer += chunk
                if len(buffer) >= WRITE_BYTES:
                    await asyncio.to_thread(_write, file, hasher, bytes(buffer))
                    buffer.clear()
            await asyncio.to_thread(_write, file, hasher, bytes(buffer))
            if (actual := hasher.hexdigest()) != digest:
                raise WrongDigestError(actual)
            if self.path(digest).exists():
                return Stored(size, created=False)
            await asyncio.to_thread(_settle, file, partial, self.path(digest))
        return Stored(size, created=True)

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes:
        """Return the next bytes, empty at the end."""
        try:
            async with asyncio.timeout(CHUNK_SECONDS_MAX):
                async for chunk in chunks:
                    if chunk:
                        return chunk
        except TimeoutError as error:
            raise UploadTooSlowError(f"nothing came for {CHUNK_SECONDS_MAX:g} s") from error
        return b""


def _write(file: BinaryIO, hasher: hashlib._Hash, data: bytes) -> None:
    hasher.update(data)
    file.write(data)


def _settle(file: BinaryIO, partial: Path, final: Path) -> None:
    """Make the bytes durable, then give them their name, then make the name durable."""
    file.flush()
    os.fsync(file.fileno())
    partial.replace(final)
    directory = os.open(final.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
