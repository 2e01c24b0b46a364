"""Pack files: many chunks in one file that is written once, with an index at its end that is hashed.

    records   one per chunk, each at a multiple of 4096 bytes; the gaps are zero
    index     one entry per record (below), at a multiple of 4096; zero up to the next multiple
    footer    4096 bytes: magic "TGPACK01", the hash that names chunks (16 bytes of ASCII, zero-filled), the number
              of entries, the offset of the index, both as 8 bytes; SHA-256 of those 40 bytes and the index; zero

    entry     chunk id (32), hash of the stored bytes (32), id of the base or zero (32), offset (8), stored bytes (4),
              plain bytes (4), compressor (1), size of the items split into planes or 0 (1), depth (1), zero (1)

All numbers are little-endian. A chunk's id is the hash of its plain bytes, a pack's id is the SHA-256 in its footer and
stands in its name. Depth counts the deltas from a chunk down to one that is stored whole: 0 for that one. A job writes
packs, so a reader believes nothing in them.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from typing import Any, BinaryIO, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from tidegate.checkpoint import codec, files, hashes
from tidegate.errors import CorruptCheckpointError

MAGIC = b"TGPACK01"
ALIGNMENT = 4096
CHUNK_BYTES = 4 << 20
DEPTH_MAX = 8
PACK_BYTES_MAX = 1 << 30
"""A writer begins another pack beyond this: a pack is what tiers move and collect as one."""
ENTRIES_MAX = PACK_BYTES_MAX // ALIGNMENT
SUFFIX = ".pack"
NAME = re.compile(r"[0-9a-f]{64}\.pack\Z")

_ENTRY = struct.Struct("<32s32s32sQIIBBBx")
_FOOTER = struct.Struct("<8s16sQQ")
_NO_BASE = bytes(hashes.DIGEST_BYTES)


class Entry(NamedTuple):
    """Where and how one chunk is stored; `base` is None for a chunk that is stored whole."""

    id: bytes
    stored_hash: bytes
    base: Optional[bytes]
    offset: int
    stored_bytes: int
    plain_bytes: int
    compressor: int
    item: int
    depth: int


class Pack(NamedTuple):
    """The index of a pack. `size_bytes` is that of its file."""

    id: str
    hash_name: str
    entries: Tuple[Entry, ...]
    size_bytes: int

    @property
    def name(self) -> str:
        """Return the file's name."""
        return self.id + SUFFIX


def aligned(size: int) -> int:
    """Return `size` rounded up to whole blocks."""
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def encode_index(hash_name: str, entries: Iterable[Entry], end: int) -> Tuple[str, bytes]:
    """Return a pack's id, and what is written at offset `end`, behind its records."""
    table = b"".join(
        _ENTRY.pack(
            entry.id,
            entry.stored_hash,
            entry.base or _NO_BASE,
            entry.offset,
            entry.stored_bytes,
            entry.plain_bytes,
            entry.compressor,
            entry.item,
            entry.depth,
        )
        for entry in entries
    )
    head = _FOOTER.pack(MAGIC, hash_name.encode(), len(table) // _ENTRY.size, end)
    digest = hashlib.sha256(head + table).digest()
    return digest.hex(), table.ljust(aligned(len(table)), b"\0") + (head + digest).ljust(ALIGNMENT, b"\0")


def read_index(packs: int, name: str) -> Pack:
    """Return the index of a pack. Raises CorruptCheckpointError where it is damaged, OSError where it is not there."""
    with files.open_inside(packs, name) as file:
        return read_open_index(file, name)


def read_open_index(file: BinaryIO, name: str) -> Pack:
    """Return the index of an open pack."""
    size = os.fstat(file.fileno()).st_size
    return read_index_by(lambda offset, length: _read_at(file, offset, length, name), size, name)


def read_index_by(read_at: Callable[[int, int], bytes], size: int, name: str) -> Pack:
    """Return the index of a pack of `size` bytes; `read_at` returns its bytes by offset and length."""
    if not NAME.match(name):
        raise CorruptCheckpointError(f"{name!r} is no pack's name")
    if size < ALIGNMENT or size % ALIGNMENT or size > 2 * PACK_BYTES_MAX:
        raise CorruptCheckpointError(f"pack {name[:12]} has {size} bytes, which no pack has: it was cut or grew")
    footer = read_at(size - ALIGNMENT, ALIGNMENT)
    magic, hash_field, count, offset = _FOOTER.unpack_from(footer)
    digest = footer[_FOOTER.size : _FOOTER.size + hashes.DIGEST_BYTES]
    if magic != MAGIC or digest.hex() + SUFFIX != name or any(footer[_FOOTER.size + hashes.DIGEST_BYTES :]):
        raise CorruptCheckpointError(f"pack {name[:12]}: its footer at offset {size - ALIGNMENT} is damaged")
    if count > ENTRIES_MAX or offset % ALIGNMENT or offset + aligned(count * _ENTRY.size) + ALIGNMENT != size:
        raise CorruptCheckpointError(f"pack {name[:12]}: its footer does not fit its {size} bytes")
    table = read_at(offset, aligned(count * _ENTRY.size))
    used = count * _ENTRY.size
    if hashlib.sha256(footer[: _FOOTER.size] + table[:used]).digest() != digest or any(table[used:]):
        raise CorruptCheckpointError(f"pack {name[:12]}: its index at offset {offset} is damaged")
    entries = tuple(_entry(fields) for fields in _ENTRY.iter_unpack(table[:used]))
    _check_entries(entries, offset, name)
    hash_name = hash_field.rstrip(b"\0").decode("ascii", "replace")
    if hash_name not in (hashes.BLAKE3, hashes.BLAKE2B):
        raise CorruptCheckpointError(f"pack {name[:12]} names chunks by {hash_name!r}, which is not known")
    return Pack(name[: -len(SUFFIX)], hash_name, entries, size)


def _entry(fields: Tuple[Any, ...]) -> Entry:
    base = None if fields[2] == _NO_BASE else fields[2]
    return Entry(fields[0], fields[1], base, *fields[3:])


def _check_entries(entries: Tuple[Entry, ...], end: int, name: str) -> None:
    free = 0
    for entry in sorted(entries, key=lambda each: each.offset):
        fits = entry.offset % ALIGNMENT == 0 and entry.offset >= free
        free = entry.offset + aligned(entry.stored_bytes)
        known = entry.compressor < len(codec.COMPRESSORS) and entry.item <= codec.ITEM_BYTES_MAX
        sized = 0 < entry.stored_bytes <= CHUNK_BYTES and 0 < entry.plain_bytes <= CHUNK_BYTES
        deep = entry.depth <= DEPTH_MAX and (entry.base is None) == (entry.depth == 0)
        if not (fits and known and sized and deep and free <= end):
            raise CorruptCheckpointError(f"pack {name[:12]}: its index has an entry that no writer makes")


def _read_at(file: BinaryIO, offset: int, size: int, name: str) -> bytes:
    data = os.pread(file.fileno(), size, offset)
    if len(data) != size:
        raise CorruptCheckpointError(f"pack {name[:12]} ends within {size} bytes at offset {offset}")
    return data


def verify_records(file: BinaryIO, pack: Pack) -> List[str]:
    """Read every record of an open pack and compare it; return what is wrong, one sentence for each damaged place.

    What is compared are stored bytes, so no base is needed; the gaps between records have to be zero.
    """
    hash_of = hashes.named(pack.hash_name)
    wrong, position = [], 0
    for entry in sorted(pack.entries, key=lambda each: each.offset):
        if entry.offset != position:
            wrong += _nonzero(file, position, entry.offset - position, pack)
        padded = aligned(entry.stored_bytes)
        data = os.pread(file.fileno(), padded, entry.offset)
        if len(data) != padded or hash_of(data[: entry.stored_bytes]) != entry.stored_hash:
            wrong.append(f"pack {pack.id[:12]}: chunk {entry.id.hex()[:12]} at offset {entry.offset} is damaged")
        elif any(data[entry.stored_bytes :]):
            wrong.append(f"pack {pack.id[:12]}: the gap behind offset {entry.offset + entry.stored_bytes} is not zero")
        position = entry.offset + padded
    return wrong + _nonzero(file, position, _records_end(pack) - position, pack)


def _records_end(pack: Pack) -> int:
    return pack.size_bytes - ALIGNMENT - aligned(len(pack.entries) * _ENTRY.size)


def _nonzero(file: BinaryIO, start: int, size: int, pack: Pack) -> List[str]:
    while size > 0:
        data = os.pread(file.fileno(), min(size, CHUNK_BYTES), start)
        if not data or any(data):
            return [f"pack {pack.id[:12]}: the gap at offset {start} is not zero"]
        start, size = start + len(data), size - len(data)
    return []


class Located(NamedTuple):
    """A chunk and the pack that holds it."""

    pack: Pack
    entry: Entry


class Index:
    """Which pack holds which chunk, over several packs of one store."""

    def __init__(self) -> None:
        self.packs: Dict[str, Pack] = {}
        self._located: Dict[Tuple[str, bytes], Located] = {}

    def add(self, pack: Pack) -> None:
        """Take a pack in; where two packs hold a chunk, the one with the shorter chain counts."""
        self.packs[pack.id] = pack
        for entry in pack.entries:
            key = (pack.hash_name, entry.id)
            known = self._located.get(key)
            if known is None or entry.depth < known.entry.depth:
                self._located[key] = Located(pack, entry)

    def drop(self, located: Located) -> None:
        """Forget a chunk in one place; another pack that has it too is not looked for."""
        key = (located.pack.hash_name, located.entry.id)
        if self._located.get(key) == located:
            del self._located[key]

    def find(self, hash_name: str, chunk: bytes) -> Optional[Located]:
        """Return where a chunk is, or None."""
        return self._located.get((hash_name, chunk))

    def chain(self, hash_name: str, chunk: bytes) -> List[Located]:
        """Return a chunk and the bases below it, down to one that is stored whole.

        Raises CorruptCheckpointError naming what is missing.
        """
        found: List[Located] = []
        wanted: Optional[bytes] = chunk
        while wanted is not None:
            located = self.find(hash_name, wanted)
            if located is None:
                what = "base" if found else "chunk"
                raise CorruptCheckpointError(f"{what} {wanted.hex()[:12]} is in no pack of the store")
            if found and located.entry.depth >= found[-1].entry.depth:
                raise CorruptCheckpointError(f"chunk {chunk.hex()[:12]}: its chain of bases does not end")
            found.append(located)
            wanted = located.entry.base
        return found


class Above(Index):
    """An index over packs that lie above those of another index, which knows nothing of them."""

    def __init__(self, below: Index, packs: Iterable[Pack]) -> None:
        super().__init__()
        self._below = below
        for pack in packs:
            self.add(pack)

    def find(self, hash_name: str, chunk: bytes) -> Optional[Located]:
        """Return where a chunk is, or None."""
        return super().find(hash_name, chunk) or self._below.find(hash_name, chunk)
