"""Files that are in no directory and on no disk: what is to be read by a child through its descriptor."""

from __future__ import annotations

import os


def memory_file(name: str, content: bytes) -> int:
    """A descriptor to read `content` from."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
