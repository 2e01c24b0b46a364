"""A layer's bytes on their way: decompressed, counted, and compared with the digests that name them. All block."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import zstandard

from tidegate_executor.oci.blobs import Blobs, ImageRefusedError
from tidegate_executor.oci.manifest import LayerPart

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BLOCK_BYTES = 1024 * 1024


class Counted(io.RawIOBase):
    """Reads through, keeps the digest, and refuses to give more bytes than there is room for."""

    def __init__(self, source: BinaryIO, room_bytes: int) -> None:
        self._source = source
        self._room_bytes = room_bytes
        self._left_bytes = room_bytes
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # of any buffer, says typeshed
        data = self._source.read(len(buffer))
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise ImageRefusedError(f"a layer has more than the {self._room_bytes} bytes that there is room for")
        self._hash.update(data)
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def content(blobs: Blobs, layer: LayerPart, room_bytes: int) -> Iterator[BinaryIO]:
    """Open a layer's tar stream. What the block leaves is read too, and both digests are compared at its end.

    Raises ImageRefusedError.
    """
    with blobs.open(layer.part) as reading:
        packed = Counted(reading, room_bytes)
        buffered = io.BufferedReader(packed, _BLOCK_BYTES)
        try:
            plain = Counted(_decompressed(buffered), room_bytes)
            yield io.BufferedReader(plain, _BLOCK_BYTES)
            _drain(plain)
            _drain(packed)
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError, EOFError) as error:
            raise ImageRefusedError(f"layer {layer.diff_id} cannot be decompressed: {error}") from error
    for found, named in ((plain.digest, layer.diff_id), (packed.digest, layer.part_digest)):
        if found != named:
            raise ImageRefusedError(f"layer {named} has the digest {found}")


def _decompressed(reading: io.BufferedReader[Counted]) -> BinaryIO:
    magic = reading.peek(4)[:4]
    if magic.startswith(GZIP):
        return gzip.GzipFile(fileobj=reading, mode="rb")  # type: ignore[return-value]  # a file in all but its class
    if magic == ZSTD:
        return zstandard.ZstdDecompressor().stream_reader(reading, read_across_frames=True)
    return reading


def _drain(stream: Counted) -> None:
    while stream.read(_BLOCK_BYTES):
        pass
