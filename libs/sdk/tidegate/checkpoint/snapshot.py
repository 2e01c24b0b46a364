"""Layers copied in memory: the one thing that a training loop waits for. No copy aliases the caller's data."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from tidegate.checkpoint import layer
from tidegate.checkpoint.arrays import Source, Target
from tidegate.checkpoint.crew import SHARED, Crew
from tidegate.checkpoint.direct import Arena, Arenas
from tidegate.checkpoint.manifest import INLINE_BYTES_MAX
from tidegate.checkpoint.pack import aligned
from tidegate.errors import SaveFailedError, UsageError

PIECE_BYTES = 4 << 20
"""What one thread copies at a time: one core alone does not use all that memory gives."""


class Copied(NamedTuple):
    """One blob of a layer: in the arena at `offset`, or in `inline` where it is small.

    With an `address` its bytes are still there: whoever stores a chunk of it copies that chunk first.
    """

    kind: str
    size: int
    item: int
    offset: int
    inline: Optional[bytes]
    address: int = 0


class LayerCopy(NamedTuple):
    """One copied layer. `names` maps the number of a blob to the path of what is in it."""

    name: str
    tree: Any
    layout: str
    blobs: Tuple[Copied, ...]
    names: Dict[int, str]


class Borrowed:
    """What was given to a save whose caller waits for it: kept alive, and copied chunk by chunk as it is stored.

    Each tensor and array is, not only the dicts that they were given in: who interrupts the wait may empty those.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self.is_abandoned = False
        """The caller waits no longer, and may change what it gave."""

    def check(self) -> None:
        """Raise SaveFailedError where the caller may have changed something before all of it was copied."""
        if self.is_abandoned:
            raise SaveFailedError("the wait for it was interrupted before everything was copied")


class Snapshot(NamedTuple):
    """Copied layers; their large blobs are in `arena`. With `borrowed` they are copied only while they are stored."""

    layers: Tuple[LayerCopy, ...]
    arena: Arena
    borrowed: Optional[Borrowed] = None

    @property
    def bytes(self) -> int:
        """Return how many bytes were copied."""
        return sum(blob.size for each in self.layers for blob in each.blobs)


def refuse_shards(snapshot: Snapshot) -> None:
    """Raise UsageError where a layer holds shards: in a checkpoint of one rank nothing would make them whole."""
    for each in snapshot.layers:
        for piece in layer.pieces(each.tree):
            raise UsageError(
                f"{each.name}.{piece.path} was refused: it is a shard (or a DTensor), which is saved by all ranks "
                "together: job.save(..., together=True)"
            )


class _Piece(NamedTuple):
    """A run of bytes to copy from address to address."""

    target: int
    source: int
    size: int


def take(given: Dict[str, Any], arenas: Arenas, crew: Crew = SHARED, *, borrow: bool = False) -> Snapshot:
    """Copy layers by name; raises UnsupportedObjectError, which names the path of what is refused, before it copies.

    Whoever waits until the snapshot is durable, and changes nothing meanwhile, may have it `borrow`: then large values
    are copied as they are stored, which takes less time than doing one after the other.
    """
    described = {name: layer.describe(name, value) for name, value in given.items()}
    room = sum(
        aligned(source.size) for each in described.values() for source in each.sources if source.size > INLINE_BYTES_MAX
    )
    arena = arenas.take(room)
    pieces: List[_Piece] = []
    copied = tuple(_copy(name, each, arena, pieces) for name, each in described.items())
    if borrow:
        sources = [source for each in described.values() for source in each.sources]
        addresses = {piece.target - arena.address: piece.source for piece in pieces}
        return Snapshot(tuple(_borrowing(each, addresses) for each in copied), arena, Borrowed(sources))
    crew.map(_copy_piece, pieces)
    return Snapshot(copied, arena)


def _borrowing(each: LayerCopy, addresses: Dict[int, int]) -> LayerCopy:
    """Return a layer whose blobs say where their bytes still are; `addresses` has them by offset."""
    blobs = (
        blob if blob.inline is not None else blob._replace(address=addresses.get(blob.offset, 0)) for blob in each.blobs
    )
    return each._replace(blobs=tuple(blobs))


def _copy_piece(piece: _Piece) -> None:
    ctypes.memmove(piece.target, piece.source, piece.size)  # other threads run meanwhile


def _copy(name: str, described: layer.Described, arena: Arena, pieces: List[_Piece]) -> LayerCopy:
    blobs = tuple(_blob(source, arena, pieces) for source in described.sources)
    names: Dict[int, str] = {}
    for leaf in layer.leaves(described.tree):
        names.setdefault(leaf.blob, leaf.path)
    return LayerCopy(name, described.tree, layer.layout(described.tree), blobs, names)


def _blob(source: Source, arena: Arena, pieces: List[_Piece]) -> Copied:
    """Copy a blob, or lay down in `pieces` how that is to be done where several threads can do it."""
    if source.size <= INLINE_BYTES_MAX:
        return Copied(source.kind, source.size, source.item, 0, _small(source))
    offset, view = arena.take(source.size)
    target = arena.address + offset
    if source.address and source.size > PIECE_BYTES:
        for start in range(0, source.size, PIECE_BYTES):
            pieces.append(_Piece(target + start, source.address + start, min(PIECE_BYTES, source.size - start)))
    else:
        source.copy(Target(view, target))
    return Copied(source.kind, source.size, source.item, offset, None)


def _small(source: Source) -> bytes:
    if source.size == 0:
        return b""
    memory = (ctypes.c_ubyte * source.size)()
    source.copy(Target(memoryview(memory).cast("B"), ctypes.addressof(memory)))
    return bytes(memory)
