"""Files that are in no directory and on no disk: what is to be read by a child through its descriptor."""

from __future__ import annotations

import errno
import os

MFD_EXEC = 0x10  # linux/memfd.h, Linux 6.3


def memory_file(name: str, content: bytes) -> int:
    """A descriptor to read `content` from."""
    return _filled(os.memfd_create(name, os.MFD_CLOEXEC), content)


def memory_program(name: str, content: bytes) -> int:
    """A descriptor to execute `content` by. Raises PermissionError where the host forbids such (vm.memfd_noexec)."""
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)  # of an older kernel, which executes any
    return _filled(descriptor, content)


def _filled(descriptor: int, content: bytes) -> int:
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
