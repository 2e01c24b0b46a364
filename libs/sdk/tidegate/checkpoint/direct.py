"""Memory that begins at a page, which is what reads and writes around the page cache take."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any, List, Optional

from tidegate.checkpoint.pack import ALIGNMENT, aligned

DIRECT = getattr(os, "O_DIRECT", 0)
"""Zero where the system has no such writes: files are written through its cache then."""
AROUND_BYTES_MIN = 1 << 20
"""Less is read through the cache: memory that begins at a page, and a file opened twice, are for what is large."""
CACHED_SAMPLES = 256
"""Pages of a file that are looked for in the cache: the system takes 5 ms to look for all of half a gigabyte."""
_MADV_WIPEONFORK = 18
"""Linux's number for it, which `mmap` does not name."""
LARGE_PAGES_BYTES_MIN = 4 << 20
"""Two megabytes are a large page: what is smaller than a few of them has little of it."""


class Arena:
    """One block of page-aligned memory, filled from the front. It stays mapped, so filling it again is only a copy:
    memory that the system hands out anew costs three times as much as copying into it."""

    def __init__(self, size: int) -> None:
        self.size = max(aligned(size), mmap.PAGESIZE)
        self._memory = _mapped(self.size)
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


def _mapped(size: int) -> mmap.mmap:
    """Return memory, in large pages where the system has them: then it is filled for the first time in a third of the
    time, and what takes several requests of scattered small pages is written by one.

    Large pages are for private memory only, and that is no good in a process that forks: each page that is filled
    again would be copied, and a write under way might be of the copy. So a child has it empty.
    """
    if sys.platform == "linux":
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel before 4.14, or what stands in for one
            memory.madvise(_MADV_WIPEONFORK)
            if size >= LARGE_PAGES_BYTES_MIN:
                with suppress(OSError):  # a kernel built without them
                    memory.madvise(mmap.MADV_HUGEPAGE)
            return memory
    return mmap.mmap(-1, size)


def use_large_pages(address: int, size: int) -> None:
    """Ask for large pages in memory that was not touched yet; where there are none, it stays as it is."""
    call = _libc_call("madvise")
    if size >= LARGE_PAGES_BYTES_MIN and call is not None and hasattr(mmap, "MADV_HUGEPAGE"):
        skipped = skip_to_page(address)
        call(address + skipped, (size - skipped) // ALIGNMENT * ALIGNMENT, mmap.MADV_HUGEPAGE)


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


def skip_to_page(address: int) -> int:
    """Return how many bytes lie between an address and the next one that reads around the cache take."""
    return -address % ALIGNMENT


def address_of(view: memoryview) -> int:
    """Return where writable memory begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0


@lru_cache(maxsize=None)
def _libc_call(name: str) -> Optional[Any]:
    call = getattr(ctypes.CDLL(None), name, None)
    if call is not None:
        call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p if name == "mincore" else ctypes.c_int)
    return call


def is_cached(descriptor: int, size: int) -> bool:
    """Say whether the page cache has most of a file of `size` bytes: then reading it from there is the faster way.

    Judged by samples. Also said where it cannot be told: what is read through the cache is never wrong.
    """
    call = _libc_call("mincore")
    if call is None or size == 0:
        return True
    try:
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    except (OSError, ValueError):  # this file system maps no files, or the file was cut meanwhile
        return True
    page = (ctypes.c_ubyte * 1)()
    there = looked = 0
    step = max(1, size // mmap.PAGESIZE // CACHED_SAMPLES) * mmap.PAGESIZE
    with mapped:
        anchor = ctypes.c_char.from_buffer(mapped)
        start = ctypes.addressof(anchor)
        for offset in range(0, size, step):
            if call(start + offset, 1, ctypes.addressof(page)):
                looked = 0
                break
            looked += 1
            there += page[0] & 1  # its other bits mean nothing
        del anchor  # the mapping can be closed only once nothing refers to it
    return there * 2 > looked or looked == 0
