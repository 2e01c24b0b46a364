"""Memory that begins at a page, which is what writes around the page cache take, and which is used again."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import List

from tidegate.checkpoint.pack import aligned

DIRECT = getattr(os, "O_DIRECT", 0)
"""Zero where the system has no such writes: files are written through its cache then."""


class Arena:
    """One block of page-aligned memory, filled from the front. It stays mapped, so filling it again is only a copy:
    memory that the system hands out anew costs three times as much as copying into it."""

    def __init__(self, size: int) -> None:
        self.size = max(aligned(size), mmap.PAGESIZE)
        self._memory = mmap.mmap(-1, self.size)
        self.view = memoryview(self._memory)
        self._anchor = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(self._anchor)
        self.used = 0

    def reset(self) -> None:
        """Begin at the front again."""
        self.used = 0

    def take(self, size: int) -> "tuple[int, memoryview]":
        """Return (offset, the next `size` bytes), which begin at a block; what remains of the last block is zero."""
        start, end = self.used, self.used + aligned(size)
        if end > self.size:
            raise ValueError(f"an arena of {self.size} bytes has no room for {size} more")
        self.view[start + size : end] = bytes(end - start - size)
        self.used = end
        return start, self.view[start : start + size]


class Arenas:
    """The arenas of one process, kept between saves; at most `kept_max` of them idle."""

    def __init__(self, kept_max: int) -> None:
        self._kept_max = kept_max
        self._idle: List[Arena] = []

    def take(self, size: int) -> Arena:
        """Return an arena of at least `size` bytes, one that was used before where one is large enough."""
        fitting = [arena for arena in self._idle if arena.size >= size]
        if fitting:
            chosen = min(fitting, key=lambda arena: arena.size)
            self._idle.remove(chosen)
            chosen.reset()
            return chosen
        # One that is too small has seen its day: saves of a job grow once, then stay as they are.
        if self._idle:
            self._idle.pop(0)
        return Arena(size)

    def give_back(self, arena: Arena) -> None:
        """Keep an arena for the next save, or let it go. Nothing may refer to its bytes any more."""
        assert all(arena is not idle for idle in self._idle), "an arena was given back twice: two saves would share it"
        if len(self._idle) < self._kept_max:
            self._idle.append(arena)


def copy_bytes(target: int, source: int, size: int) -> None:
    """Copy memory from address to address; other threads run meanwhile."""
    ctypes.memmove(target, source, size)
