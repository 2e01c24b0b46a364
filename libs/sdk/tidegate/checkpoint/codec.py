"""How a chunk's bytes are stored: plain, or compressed, by byte planes, as the difference from an earlier chunk.

A stored chunk was made in up to three steps, each of which its index entry names: XOR with a base of the same length;
splitting into byte planes (all first bytes of its items, then all second ones, ...); compression. numpy and zstandard
make it faster and smaller where the interpreter has them; zlib and plain Python do else.
"""

from __future__ import annotations

import threading
import zlib
from functools import lru_cache
from typing import Any, NamedTuple, Optional

from tidegate.errors import CorruptCheckpointError, UsageError

RAW, ZLIB, ZSTD = 0, 1, 2
COMPRESSORS = ("raw", "zlib", "zstd")
SAVED_PERCENT_MIN = 40
"""Below this a chunk stays raw: a core compresses some 0.5 GB/s and a disk takes several times that, so a smaller
saving makes a save slower than the writing it spares."""
SAMPLE_PIECES, SAMPLE_PIECE_BYTES = 4, 8192
SMALL_BYTES = 4096
"""A chunk up to this size fills one block on disk whatever is done to it."""
ITEM_BYTES_MAX = 16

zstandard: Optional[Any]
try:
    import zstandard
except ImportError:
    zstandard = None

_local = threading.local()


@lru_cache(maxsize=None)
def _numpy() -> Optional[Any]:
    """Return numpy where the interpreter has it, once it is needed: it starts threads, and who only names checkpoints
    may have to be without any (a process with threads cannot change its mount namespace)."""
    try:
        import numpy  # noqa: PLC0415
    except ImportError:
        return None
    return numpy


class Encoded(NamedTuple):
    """What is stored of a chunk. `item` is 0 without planes; `is_delta` says that a base was used."""

    compressor: int
    item: int
    is_delta: bool
    data: Any


def encode(plain: memoryview, item: int, base: Optional[memoryview] = None) -> Encoded:
    """Return a chunk as it is best stored, judged by samples; `item` is the size of its numbers, `base` an earlier
    chunk of the same length."""
    if len(plain) > SMALL_BYTES:
        planes = item if 1 < item <= ITEM_BYTES_MAX and len(plain) % item == 0 else 0
        if base is not None and _worth(_sample(plain, item), planes, _sample(base, item)):
            return _compressed(plain, planes, base)
        sample = _sample(plain, item)
        if _worth(sample, 0, None):
            return _compressed(plain, 0, None)
        if planes and _worth(sample, planes, None):
            return _compressed(plain, planes, None)
    return Encoded(RAW, 0, False, plain)


def _compressed(plain: memoryview, planes: int, base: Optional[memoryview]) -> Encoded:
    compressor, data = compress(_transformed(plain, planes, base))
    if not _saves(len(data), len(plain)):
        return Encoded(RAW, 0, False, plain)
    return Encoded(compressor, planes, base is not None, data)


def _worth(sample: memoryview, planes: int, base: Optional[memoryview]) -> bool:
    return _saves(len(compress(_transformed(sample, planes, base))[1]), len(sample))


def _saves(stored: int, plain: int) -> bool:
    return stored * 100 <= plain * (100 - SAVED_PERCENT_MIN)


def _sample(plain: memoryview, item: int) -> memoryview:
    if len(plain) <= SAMPLE_PIECES * SAMPLE_PIECE_BYTES:
        return plain
    step = len(plain) // SAMPLE_PIECES // ITEM_BYTES_MAX * ITEM_BYTES_MAX
    starts = range(0, step * SAMPLE_PIECES, step)
    return memoryview(b"".join(plain[start : start + SAMPLE_PIECE_BYTES] for start in starts))


def _transformed(plain: memoryview, planes: int, base: Optional[memoryview]) -> Any:
    data: Any = plain if base is None else xor(plain, base)
    return split(data, planes) if planes else data


def compress(data: Any) -> "tuple[int, bytes]":
    """Return (compressor, compressed bytes), with the best one that there is."""
    if zstandard is None:
        return ZLIB, zlib.compress(data, 1)
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=1, write_checksum=False)
    packed: bytes = _local.compressor.compress(data)
    return ZSTD, packed


def decompress(compressor: int, data: Any, size: int) -> Any:
    """Return exactly `size` bytes, or raise CorruptCheckpointError; never takes more memory than that."""
    if compressor == RAW:
        plain = data
    elif compressor == ZLIB:
        plain = _inflate(data, size)
    else:
        plain = _unpack(data, size)
    if len(plain) != size:
        raise CorruptCheckpointError(f"a chunk has {len(plain)} bytes, not {size}")
    return plain


def _inflate(data: Any, size: int) -> bytes:
    inflating = zlib.decompressobj()
    try:
        plain = inflating.decompress(data, size + 1)
    except zlib.error as error:
        raise CorruptCheckpointError(f"a chunk's zlib data is damaged: {error}") from error
    if not inflating.eof or inflating.unused_data:
        raise CorruptCheckpointError("a chunk's zlib data does not end where it should")
    return plain


def _unpack(data: Any, size: int) -> bytes:
    if zstandard is None:
        raise UsageError(
            "this checkpoint has chunks compressed with zstd, which this interpreter lacks: install the package "
            "zstandard, or restore it where the agent or the command line runs"
        )
    try:
        # The frame says its size: one that says another is not decompressed at all.
        if zstandard.frame_content_size(data) != size:
            raise CorruptCheckpointError(f"a chunk's zstd data is not of {size} bytes")
        if not hasattr(_local, "decompressor"):
            _local.decompressor = zstandard.ZstdDecompressor()
        plain: bytes = _local.decompressor.decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CorruptCheckpointError(f"a chunk's zstd data is damaged: {error}") from error
    return plain


def split(data: Any, item: int) -> Any:
    """Return the byte planes of `data`, whose length is a multiple of `item`."""
    numpy = _numpy()
    if numpy is None:
        view = memoryview(data)
        return b"".join(view[start::item].tobytes() for start in range(item))
    flat = numpy.frombuffer(data, numpy.uint8).reshape(-1, item)
    return numpy.ascontiguousarray(flat.T).reshape(-1).data


def join(planes: Any, item: int) -> Any:
    """Undo `split`."""
    if len(planes) % item:
        raise CorruptCheckpointError("a chunk's byte planes are not of one length")
    numpy = _numpy()
    if numpy is None:
        plain, count = bytearray(len(planes)), len(planes) // item
        for start in range(item):
            plain[start::item] = planes[start * count : (start + 1) * count]
        return plain
    flat = numpy.frombuffer(planes, numpy.uint8).reshape(item, -1)
    return numpy.ascontiguousarray(flat.T).reshape(-1).data


def xor(left: Any, right: Any) -> Any:
    """Return the difference of two runs of bytes of one length; undoes itself."""
    if len(left) != len(right):
        raise CorruptCheckpointError(f"a chunk of {len(left)} bytes cannot differ from one of {len(right)}")
    numpy = _numpy()
    if numpy is None:
        number = int.from_bytes(left, "little") ^ int.from_bytes(right, "little")
        return number.to_bytes(len(left), "little")
    whole = len(left) // 8 * 8
    made = numpy.empty(len(left), numpy.uint8)
    one, two = numpy.frombuffer(left, numpy.uint8), numpy.frombuffer(right, numpy.uint8)
    numpy.bitwise_xor(
        one[:whole].view(numpy.uint64), two[:whole].view(numpy.uint64), out=made[:whole].view(numpy.uint64)
    )
    numpy.bitwise_xor(one[whole:], two[whole:], out=made[whole:])
    return made.data
