"""Keeps a program that runs on behalf of sandboxes in memory, whatever their limits are.

A guest's kernel is a process of its sandbox, so the pages of its program are charged to whichever group read them
first. Were that the sandbox at its limit, the kernel would give up those pages again and again and have them read anew,
for minutes, in place of finding that there is no more memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value

_kept: dict[tuple[int, int, int, int], int] = {}
"""By device, inode, size and time of change of a program, where it is mapped: for as long as this process lives."""


def keep_resident(program: str) -> None:
    """Lock all pages of a program into memory, once; a program that took its place is another one.

    They are charged to this process's group unless somebody uses them already. Raises OSError, where they may not be
    locked (RLIMIT_MEMLOCK, without CAP_IPC_LOCK) or there is no memory for them.
    """
    descriptor = os.open(program, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if identity in _kept or not found.st_size:
            return
        # What is in memory and nobody maps may be charged to a sandbox that read it first.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        address = _libc.mmap(None, found.st_size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            raise _error(program)
        if _libc.mlock(address, found.st_size):
            error = _error(program)
            _libc.munmap(address, found.st_size)
            raise error
        _kept[identity] = address
    finally:
        os.close(descriptor)


def _error(program: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), program)
