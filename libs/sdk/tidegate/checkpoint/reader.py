"""Reads layers back out of packs. Every byte is compared with its hash before anybody sees it."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from tidegate.checkpoint import codec, files, hashes, layer
from tidegate.checkpoint.arrays import Buffer
from tidegate.checkpoint.crew import Crew
from tidegate.checkpoint.direct import AROUND_BYTES_MIN, DIRECT, Arena, address_of, is_cached, skip_to_page
from tidegate.checkpoint.manifest import BlobEntry, Manifest
from tidegate.checkpoint.pack import ALIGNMENT, CHUNK_BYTES, Index, Located
from tidegate.checkpoint.places import Places
from tidegate.errors import CorruptCheckpointError, UnknownLayerError

_local = threading.local()


class DamagedChunkError(CorruptCheckpointError):
    """A chunk's stored bytes are not those of its hash; `located` says which."""

    def __init__(self, message: str, located: Located) -> None:
        super().__init__(message)
        self.located = located


class Want(NamedTuple):
    """One chunk to read: what it belongs to in words, and the memory it goes to; without, it is only compared."""

    what: str
    hash_name: str
    chunk: bytes
    size: int
    target: Optional[memoryview] = None


class _Fetched(NamedTuple):
    """What was read of a want: the chunk as it is, or what is stored of it and of its bases, to be decoded."""

    chain: List[Located]
    target: memoryview
    stored: List[memoryview]
    lent: Optional[Arena]


class _OpenPack:
    """A pack opened for reading: through the page cache, and around it where the cache lacks most of it."""

    def __init__(self, places: Places, located: Located) -> None:
        name = located.pack.name
        self._through = files.open_inside(places.packs, name)
        self._around: Optional[BinaryIO] = None
        size = located.pack.size_bytes
        if DIRECT and size >= AROUND_BYTES_MIN and not is_cached(self._through.fileno(), size):
            self._around = files.open_inside(places.packs, name)
            files.add_flags(self._around.fileno(), DIRECT)

    def close(self) -> None:
        self._through.close()
        if self._around is not None:
            self._around.close()

    def read_into(self, target: memoryview, offset: int) -> int:
        """Fill memory with what begins at `offset`; return how many bytes there were, fewer at the end of the file."""
        filled = 0
        if self._around is not None and len(target) >= AROUND_BYTES_MIN and skip_to_page(address_of(target)) == 0:
            try:
                filled = _filled_around(self._around, target, offset)
            except OSError as error:
                if error.errno != errno.EINVAL:  # else this file system wants larger blocks: through the cache then
                    raise
        return filled + _filled(self._through, target[filled:], offset + filled)


def _filled_around(file: BinaryIO, target: memoryview, offset: int) -> int:
    """Fill memory by one request: what is no whole block at its end comes by way of a block of its own."""
    whole = len(target) // ALIGNMENT * ALIGNMENT
    if whole == len(target):
        return os.preadv(file.fileno(), [target], offset)
    if not hasattr(_local, "block"):
        _local.block = Arena(ALIGNMENT).view
    count = os.preadv(file.fileno(), [target[:whole], _local.block], offset)
    rest = max(0, min(count, len(target)) - whole)
    target[whole : whole + rest] = _local.block[:rest]
    return min(count, len(target))


def _filled(file: BinaryIO, target: memoryview, offset: int) -> int:
    filled = 0
    while filled < len(target):
        count = os.preadv(file.fileno(), [target[filled:]], offset + filled)
        if count == 0:
            break
        filled += count
    return filled


class Reader:
    """Reads out of one store; keeps the packs that it opened until it is closed."""

    def __init__(self, places: Places, index: Index, crew: Crew) -> None:
        self._places = places
        self._index = index
        self._crew = crew
        self._open: Dict[str, _OpenPack] = {}
        self._scratch: Dict[int, Arena] = {}
        self._idle: List[Arena] = []
        self.batch = crew.size

    def scratch(self, number: int) -> memoryview:
        """Return memory of one chunk, the same each time; there are `batch` different ones."""
        if number not in self._scratch:
            self._scratch[number] = Arena(CHUNK_BYTES)
        return self._scratch[number].view

    def close(self) -> None:
        """Close the packs."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read(self, wants: Sequence[Want], on_read: Callable[[int], None] = lambda size: None) -> None:
        """Fill the memory of every want. Raises CorruptCheckpointError, and what was filled is not to be used then.

        `on_read` is told the size of each that was compared, by one thread at a time; what it raises ends the reading.
        """
        for want in wants:
            for located in self._chain(want):
                self._file(located)
        lock = threading.Lock()

        def check(want: Want, fetched: _Fetched) -> None:
            self._check(want, fetched)
            with lock:
                on_read(want.size)

        self._crew.fetch(self._fetch, check, sorted(wants, key=self._place_of))

    def _place_of(self, want: Want) -> Tuple[str, int]:
        located = self._chain(want)[0]
        return located.pack.id, located.entry.offset

    def _chain(self, want: Want) -> List[Located]:
        try:
            return self._index.chain(want.hash_name, want.chunk)
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(f"{want.what}: {error}") from error

    def _file(self, located: Located) -> _OpenPack:
        pack = located.pack.id
        if pack not in self._open:
            try:
                self._open[pack] = _OpenPack(self._places, located)
            except OSError as error:
                raise CorruptCheckpointError(f"pack {pack[:12]} cannot be read: {error.strerror or error}") from error
        return self._open[pack]

    def _fetch(self, want: Want) -> _Fetched:
        chain = self._chain(want)
        head = chain[0]
        if head.entry.plain_bytes != want.size:
            raise self._damaged(want, head, f"has {head.entry.plain_bytes} bytes, not {want.size}")
        lent = self._lent() if want.target is None else None
        target = lent.view[: want.size] if lent is not None else want.target
        assert target is not None
        if head.entry.compressor == codec.RAW and not head.entry.item and head.entry.base is None:
            self._read_into(want, head, target)
            return _Fetched(chain, target, [], lent)
        return _Fetched(chain, target, [self._stored(want, located) for located in chain], lent)

    def _lent(self) -> Arena:
        """Return memory of one chunk, which goes back once it was looked at."""
        try:
            return self._idle.pop()
        except IndexError:
            return Arena(CHUNK_BYTES)

    def _check(self, want: Want, fetched: _Fetched) -> None:
        if fetched.stored:
            fetched.target[:] = memoryview(self._decoded(want, fetched)).cast("B")
        if hashes.named(want.hash_name)(fetched.target) != want.chunk:
            raise self._damaged(want, self._culprit(want, fetched.chain), "is damaged: its hash is another")
        if fetched.lent is not None:
            self._idle.append(fetched.lent)

    def _decoded(self, want: Want, fetched: _Fetched) -> Any:
        plain: Any = None
        for located, stored in zip(reversed(fetched.chain), reversed(fetched.stored)):  # noqa: B905
            entry = located.entry
            try:
                data = codec.decompress(entry.compressor, stored, entry.plain_bytes)
                data = codec.join(data, entry.item) if entry.item else data
                plain = data if entry.base is None else codec.xor(data, plain)
            except CorruptCheckpointError as error:
                raise self._damaged(want, located, f"is damaged: {error}") from error
        return plain

    def _stored(self, want: Want, located: Located) -> memoryview:
        stored = memoryview(bytearray(located.entry.stored_bytes))
        self._read_into(want, located, stored)
        return stored

    def _read_into(self, want: Want, located: Located, target: memoryview) -> None:
        try:
            filled = self._file(located).read_into(target, located.entry.offset)
        except OSError as error:
            raise self._damaged(want, located, f"cannot be read: {error.strerror}") from error
        if filled < len(target):
            raise self._damaged(want, located, "is cut off")

    def _culprit(self, want: Want, chain: List[Located]) -> Located:
        """Return the part of a chain whose stored bytes are wrong; the chunk itself where each of them is right."""
        hash_of = hashes.named(want.hash_name)
        for located in reversed(chain):
            if hash_of(self._stored(want, located)) != located.entry.stored_hash:
                return located
        return chain[0]

    def _damaged(self, want: Want, located: Located, how: str) -> DamagedChunkError:
        entry = located.entry
        where = f"chunk {entry.id.hex()[:12]} in pack {located.pack.id[:12]} at offset {entry.offset}"
        return DamagedChunkError(f"{want.what}: {where} {how}", located)


@contextmanager
def reading(places: Places, index: Index, crew: Crew) -> Iterator[Reader]:
    """Yield a reader that is closed at the end."""
    reader = Reader(places, index, crew)
    try:
        yield reader
    finally:
        reader.close()


def wants_of(what: str, hash_name: str, blob: BlobEntry, memory: memoryview) -> List[Want]:
    """Return the chunks of a blob, to be read into `memory`, which is as large as the blob."""
    pieces = (memory[start : start + CHUNK_BYTES] for start in range(0, len(memory), CHUNK_BYTES))
    return [
        Want(what, hash_name, chunk, len(piece), piece)
        for chunk, piece in zip(blob.chunks, pieces)  # noqa: B905
    ]


def load(
    reader: Reader,
    name: str,
    manifest: Manifest,
    map_location: Optional[Any] = None,
    tensors: Optional[Sequence[str]] = None,
) -> Any:
    """Return the value of layer `name`; with `tensors` (names, or patterns with *) a dict of those by their names."""
    leaves = list(layer.leaves(manifest.tree))
    names = {leaf.blob: leaf.path for leaf in reversed(leaves)}
    if tensors is not None:
        leaves = _chosen(name, leaves, tensors)
    needed = dict.fromkeys(leaf.blob for leaf in leaves)
    buffers: Dict[int, Buffer] = {}
    wants: List[Want] = []
    for number in needed:
        if type(number) is not int or not 0 <= number < len(manifest.blobs):
            raise CorruptCheckpointError(f"layer {name} refers to a blob that it lacks")
        blob = manifest.blobs[number]
        buffer = buffers[number] = layer.allocate(blob.kind, blob.size)
        if blob.inline:
            buffer.view[:] = blob.inline
        else:
            wants += wants_of(f"layer {name}, {names[number]}", manifest.hash_name, blob, buffer.view)
    reader.read(wants)
    if tensors is None:
        return layer.value(manifest.tree, buffers, map_location)
    return layer.value({"d": [[leaf.path, leaf.node] for leaf in leaves]}, buffers, map_location)


def _chosen(name: str, leaves: List[layer.Leaf], patterns: Sequence[str]) -> List[layer.Leaf]:
    for pattern in patterns:
        if not any(fnmatchcase(leaf.path, pattern) for leaf in leaves):
            known = ", ".join(leaf.path for leaf in leaves[:10])
            raise UnknownLayerError(f"layer {name} holds nothing named {pattern!r}: it begins with {known}")
    return [leaf for leaf in leaves if any(fnmatchcase(leaf.path, pattern) for pattern in patterns)]


def verify(reader: Reader, name: str, manifest: Manifest, on_read: Callable[[int], None] = lambda size: None) -> None:
    """Read a whole layer back and compare every hash, each chunk once, in memory of some chunks."""
    distinct: Dict[bytes, Tuple[str, int]] = {}
    for number, blob in enumerate(manifest.blobs):
        what = f"layer {name}, {blob.path or f'blob {number}'}"
        for at, chunk in enumerate(blob.chunks):
            size = min(CHUNK_BYTES, blob.size - at * CHUNK_BYTES)
            if distinct.setdefault(chunk, (what, size))[1] != size:
                raise CorruptCheckpointError(f"{what}: chunk {chunk.hex()[:12]} is said to have two sizes")
    reader.read([Want(what, manifest.hash_name, chunk, size) for chunk, (what, size) in distinct.items()], on_read)
