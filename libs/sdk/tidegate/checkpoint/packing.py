"""Writes the chunks of a save into new packs, each chunk once, those that the store has already not at all."""

from __future__ import annotations

import ctypes
import os
import threading
from functools import partial
from types import TracebackType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

from tidegate.checkpoint import codec, files, hashes
from tidegate.checkpoint.crew import Crew, Task
from tidegate.checkpoint.direct import DIRECT, Arena
from tidegate.checkpoint.naming import Unnamed
from tidegate.checkpoint.pack import (
    CHUNK_BYTES,
    DEPTH_MAX,
    PACK_BYTES_MAX,
    Above,
    Entry,
    Index,
    Pack,
    aligned,
    encode_index,
)
from tidegate.checkpoint.places import Places
from tidegate.checkpoint.reserving import Reserved
from tidegate.errors import CorruptCheckpointError

OnStored = Callable[[int], None]
"""Told how many bytes more are stored, from whichever thread stored them."""


class Base(NamedTuple):
    """What a blob was in the save before: its bytes, still in memory, and its chunks."""

    view: memoryview
    chunks: Tuple[bytes, ...]


class Blob(NamedTuple):
    """A run of bytes in an arena, to be stored as chunks; `item` is the size of the numbers in it, 1 for no numbers.

    With an `address` its bytes are still there, and are copied into the arena chunk by chunk.
    """

    arena: Arena
    offset: int
    size: int
    item: int
    base: Optional[Base] = None
    address: int = 0

    @property
    def view(self) -> memoryview:
        """Return its bytes."""
        return self.arena.view[self.offset : self.offset + self.size]


class _Part(NamedTuple):
    blob: Blob
    number: int

    @property
    def plain(self) -> memoryview:
        start = self.number * CHUNK_BYTES
        return self.blob.view[start : start + CHUNK_BYTES]

    def fetch(self) -> None:
        """Copy its bytes into the arena, where they are not there yet."""
        if self.blob.address:
            start = self.number * CHUNK_BYTES
            target = self.blob.arena.address + self.blob.offset + start
            ctypes.memmove(target, self.blob.address + start, len(self.plain))

    @property
    def padded(self) -> memoryview:
        """Return its bytes up to the end of their last block: zeros stand there, see Arena.take."""
        start = self.blob.offset + self.number * CHUNK_BYTES
        return self.blob.arena.view[start : start + aligned(len(self.plain))]


class _OpenPack:
    def __init__(self, places: Places) -> None:
        self.temporary = files.Temporary(places.staging, DIRECT)
        self.reserved = Reserved(self.temporary.descriptor)
        self.end = 0
        self.entries: List[Entry] = []


class Packer:
    """The packs of one save. Leaving the `with` block removes what has no name."""

    hash_name = hashes.BEST

    def __init__(self, places: Places, index: Index, crew: Crew, on_stored: OnStored = lambda size: None) -> None:
        self.places = places
        self.index = index
        self.crew = crew
        self._on_stored = on_stored
        self.refresh: Callable[[], None] = lambda: None
        self.check_time: Callable[[], None] = lambda: None
        self._hash = hashes.named(self.hash_name)
        self._lock = threading.Lock()
        self._packs: List[_OpenPack] = []
        self._finished: List[Pack] = []
        self._claimed: Dict[bytes, None] = {}
        self._expected_bytes = 0
        self._new_bytes = 0
        self._scratch: List[Arena] = []

    def __enter__(self) -> "Packer":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        for pack in self._packs:
            pack.temporary.__exit__(kind, error, trace)
        self._packs.clear()

    def put(self, blobs: Sequence[Blob]) -> List[Tuple[bytes, ...]]:
        """Store blobs; return the ids of the chunks of each. Nothing is durable before they have their names."""
        parts = [_Part(blob, number) for blob in blobs for number in range(-(-blob.size // CHUNK_BYTES))]
        self._expected_bytes = sum(blob.size for blob in blobs)
        self._new_bytes = sum(blob.size for blob in blobs if blob.base is None)
        ids = iter(self.crew.store(self._store, parts))
        return [tuple(next(ids) for _ in range(-(-blob.size // CHUNK_BYTES))) for blob in blobs]

    def _store(self, part: _Part) -> "Tuple[bytes, Optional[Task]]":
        """Return a chunk's id, and what writes it where the store lacks it."""
        self.check_time()
        size = len(part.plain)
        part.fetch()
        chunk = self._hash(part.plain)
        with self._lock:
            is_claimed = chunk in self._claimed
            self._claimed[chunk] = None
        if is_claimed or self._depth_of(chunk) is not None:
            with self._lock:
                self._expect_less(part)
            self._on_stored(size)
            return chunk, None
        base, base_view = self._base(part)
        encoded = codec.encode(part.plain, part.blob.item, base_view)
        depth = 0
        if encoded.is_delta and base is not None:
            depth = (self._depth_of(base) or 0) + 1
        is_raw = encoded.compressor == codec.RAW
        entry = Entry(
            id=chunk,
            stored_hash=chunk if is_raw else self._hash(encoded.data),
            base=base if encoded.is_delta else None,
            offset=0,
            stored_bytes=len(encoded.data),
            plain_bytes=size,
            compressor=encoded.compressor,
            item=encoded.item,
            depth=depth,
        )
        scratch = None if is_raw else self._scratch_of(encoded.data)
        return chunk, partial(self._write, entry, part, scratch)

    def _expect_less(self, part: _Part) -> None:
        size = len(part.plain)
        self._expected_bytes -= size
        self._new_bytes -= size if part.blob.base is None else 0

    def _depth_of(self, chunk: bytes) -> Optional[int]:
        """Return the depth at which the store holds a chunk; None where it lacks it, or a base below it."""
        try:
            return self.index.chain(self.hash_name, chunk)[0].entry.depth
        except CorruptCheckpointError:
            return None

    def _base(self, part: _Part) -> "Tuple[Optional[bytes], Optional[memoryview]]":
        before = part.blob.base
        if before is None or part.number >= len(before.chunks):
            return None, None
        chunk = before.chunks[part.number]
        start = part.number * CHUNK_BYTES
        view = before.view[start : start + CHUNK_BYTES]
        depth = self._depth_of(chunk)
        if depth is None or depth >= DEPTH_MAX or len(view) != len(part.plain):
            return None, None
        return chunk, view

    def _scratch_of(self, data: Any) -> Arena:
        """Return compressed bytes in memory that can be written around the cache."""
        try:
            arena = self._scratch.pop()
        except IndexError:
            arena = Arena(CHUNK_BYTES)
        arena.reset()
        _, view = arena.take(len(data))
        view[:] = data
        return arena

    def _write(self, entry: Entry, part: _Part, scratch: Optional[Arena]) -> None:
        padded = part.padded if scratch is None else scratch.view[: scratch.used]
        with self._lock:
            self._expect_less(part)
            if not self._packs or self._packs[-1].end + len(padded) > PACK_BYTES_MAX:
                self._packs.append(_OpenPack(self.places))
            pack = self._packs[-1]
            offset, pack.end = pack.end, pack.end + len(padded)
            room = PACK_BYTES_MAX - pack.end
            pack.reserved.cover(pack.end, min(self._expected_bytes, room), min(self._new_bytes, room))
            pack.entries.append(entry._replace(offset=offset))
        _write_at(pack.temporary.descriptor, padded, offset)
        if scratch is not None:
            self._scratch.append(scratch)
        self._on_stored(entry.plain_bytes)

    def finish(self) -> List[Unnamed]:
        """Write the end of every pack; return them. Nothing more is put then, and nothing is durable yet."""
        return [self._finish(pack) for pack in self._packs]

    @property
    def above(self) -> Index:
        """Return the store's index with the finished packs in it, which nobody else may know of yet."""
        return Above(self.index, self._finished)

    def named(self) -> None:
        """Take the finished packs, which are durable under their names now, into the store's index."""
        for pack in self._finished:
            self.index.add(pack)
        self._packs.clear()
        self._finished.clear()

    def _finish(self, pack: _OpenPack) -> Unnamed:
        pack_id, tail = encode_index(self.hash_name, pack.entries, pack.end)
        arena = Arena(len(tail))
        _, view = arena.take(len(tail))
        view[:] = tail
        _write_at(pack.temporary.descriptor, arena.view[: len(tail)], pack.end)
        pack.reserved.give_back(pack.end + len(tail))
        finished = Pack(pack_id, self.hash_name, tuple(pack.entries), pack.end + len(tail))
        self._finished.append(finished)
        return Unnamed(pack.temporary, self.places.packs, finished.name)


def _write_at(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
