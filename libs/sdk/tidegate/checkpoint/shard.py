"""A piece of a tensor or array that several ranks hold together, and how pieces are put together again."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Optional, Sequence, Tuple

from tidegate.errors import CorruptCheckpointError, UsageError

DIMENSIONS_MAX = 64


class Shard(NamedTuple):
    """`data`, a torch tensor or numpy array, is what lies at `offset` of a whole of `shape`."""

    data: Any
    offset: Tuple[int, ...]
    shape: Tuple[int, ...]


class Region(NamedTuple):
    """Rows `start` to `stop` (along the first dimension) of a whole of `shape`; all of it where it has no dimension."""

    shape: Tuple[int, ...]
    start: int
    stop: int

    @property
    def offset(self) -> Tuple[int, ...]:
        """Return where it begins in the whole."""
        return (self.start, *(0 for _ in self.shape[1:])) if self.shape else ()

    @property
    def size(self) -> Tuple[int, ...]:
        """Return its own shape."""
        return (self.stop - self.start, *self.shape[1:]) if self.shape else ()


def check(shard: Shard, path: str) -> None:
    """Raise UsageError for a piece that does not lie in its whole."""
    sizes, offset, shape = tuple(shard.data.shape), tuple(shard.offset), tuple(shard.shape)
    is_inside = len(offset) == len(shape) == len(sizes) <= DIMENSIONS_MAX and all(
        start >= 0 and start + size <= whole
        for start, size, whole in zip(offset, sizes, shape)  # noqa: B905
    )
    if not is_inside:
        raise UsageError(f"{path} was refused: a shard of shape {sizes} at {offset} does not lie in {shape}")


def check_whole(path: str, shape: Tuple[int, ...], held: Sequence[Tuple[Sequence[int], Sequence[int]]]) -> None:
    """Raise UsageError where pieces, each (offset, sizes), do not make up a whole of `shape`, each number once."""
    pieces = [(tuple(offset), tuple(sizes)) for offset, sizes in held if _count(sizes)]
    found = sum(_count(sizes) for _, sizes in pieces)
    if found != _count(shape) or _some_overlap(pieces):
        raise UsageError(
            f"{path} was refused: the shards hold {found} numbers of {_count(shape)}: they overlap, or some are missing"
        )


def _some_overlap(pieces: Sequence[Tuple[Tuple[int, ...], Tuple[int, ...]]]) -> bool:
    ordered = sorted(pieces)
    for at, (offset, sizes) in enumerate(ordered):
        for other, others in ordered[at + 1 :]:
            if offset and other[0] >= offset[0] + sizes[0]:
                break  # so do all that follow
            if all(
                low < start + size and start < low + length
                for low, length, start, size in zip(offset, sizes, other, others)  # noqa: B905
            ):
                return True
    return False


def region(shape: Tuple[int, ...], part: Optional[Tuple[int, int]]) -> Region:
    """Return part `index` of `count` of a whole, cut along its first dimension as evenly as that goes."""
    if part is None or not shape:
        return Region(shape, 0, shape[0] if shape else 1)
    index, count = part
    if not 0 <= index < count:
        raise UsageError(f"part {index} of {count} was refused: parts count from 0")
    each, more = divmod(shape[0], count)
    start = index * each + min(index, more)
    return Region(shape, start, start + each + (1 if index < more else 0))


def overlaps(wanted: Region, offset: Sequence[int], sizes: Sequence[int]) -> bool:
    """Say whether a piece has anything of a region."""
    if not wanted.shape:
        return True
    return 0 not in sizes and offset[0] < wanted.stop and offset[0] + sizes[0] > wanted.start


def assemble(name: str, wanted: Region, shards: Sequence[Shard]) -> Any:
    """Return the region put together out of pieces. Raises CorruptCheckpointError where they do not make it up."""
    whole: Any = None
    filled = 0
    for shard in shards:
        if whole is None:
            whole = _empty(shard.data, wanted.size)
        target, source = [], []
        for dimension, (start, size) in enumerate(zip(shard.offset, shard.data.shape)):  # noqa: B905
            low = max(start, wanted.offset[dimension])
            high = min(start + size, wanted.offset[dimension] + wanted.size[dimension])
            target.append(slice(low - wanted.offset[dimension], max(low, high) - wanted.offset[dimension]))
            source.append(slice(low - start, max(low, high) - start))
        piece = shard.data[tuple(source)]
        whole[tuple(target)] = piece
        filled += _count(piece.shape)
    if whole is None or filled != _count(wanted.size):
        raise CorruptCheckpointError(
            f"{name}: the shards hold {filled} numbers of {_count(wanted.size)}: they overlap, or some are missing"
        )
    return whole


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _empty(like: Any, size: Tuple[int, ...]) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.empty(size, dtype=like.dtype, device=like.device)
    numpy = sys.modules["numpy"]
    return numpy.empty(size, like.dtype)
