"""Files of a store, below directories that a job can write: no link is followed, nothing appears half-written."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import PurePosixPath
from typing import BinaryIO, Iterator, List, Optional, Union

from tidegate.errors import CheckpointError, CorruptCheckpointError

TEMPORARY_PREFIX = ".tmp-"
BLOCK_BYTES = 1 << 20
CREATE_TRIES_MAX = 10

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Place = Union[str, "os.PathLike[str]", int]
"""A directory: its path, or a descriptor of it."""


def open_directory(place: Place) -> int:
    """Return a descriptor of a directory that its owner named: links on the way to it are the owner's business."""
    if isinstance(place, int):
        return os.dup(place)
    return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_inside(directory: Place, relative: str) -> BinaryIO:
    """Open a regular file below `directory` for reading; no link is followed on the way, nothing can block."""
    *parents, name = PurePosixPath(relative).parts
    held = os.dup(directory) if isinstance(directory, int) else os.open(directory, DIRECTORY_FLAGS)
    try:
        for parent in parents:
            below = os.open(parent, DIRECTORY_FLAGS, dir_fd=held)
            os.close(held)
            held = below
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=held)
    finally:
        os.close(held)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{relative} is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0)


def read_bounded(directory: int, name: str, bytes_max: int) -> bytes:
    """Return a whole file of at most `bytes_max` bytes; CorruptCheckpointError where it is longer, or OSError."""
    with open_inside(directory, name) as file:
        data = b"".join(blocks(file, bytes_max + 1))
    if len(data) > bytes_max:
        raise CorruptCheckpointError(f"{name} is longer than {bytes_max} bytes")
    return data


def blocks(file: BinaryIO, bytes_max: Optional[int] = None) -> Iterator[bytes]:
    """Yield the rest of an open file, at most `bytes_max` bytes of it: it may grow for as long as it is read."""
    left = bytes_max
    while left is None or left > 0:
        block = file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left))
        if not block:
            return
        left = None if left is None else left - len(block)
        yield block


def write_all(descriptor: int, data: memoryview) -> None:
    """Write every byte; a write may take fewer than it is given."""
    while data:
        data = data[os.write(descriptor, data) :]


def seal(descriptor: int) -> None:
    """Make a file's bytes durable, and read-only: who opens it for writing by mistake is told so."""
    os.fchmod(descriptor, 0o444)
    os.fsync(descriptor)


def sync_directory(path: Place) -> None:
    """Make the entries of a directory durable."""
    descriptor = open_directory(path)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Temporary:
    """A file being written in the directory `staging`. Leaving the `with` block without a name removes it.

    Its writer holds a lock (flock) on it that the kernel drops when the process dies: one that can be locked belongs
    to nobody, and `clean_temporary` may remove it.
    """

    def __init__(self, staging: int, flags: int = 0) -> None:
        self._staging = staging
        self.name, self.descriptor = _create(staging, flags)

    def __enter__(self) -> "Temporary":
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            unlink_quietly(self._staging, self.name)

    def name_as(self, directory: int, name: str) -> None:
        """Give the sealed file its name, over one of the same content; durable once the directories are synced."""
        os.rename(self.name, name, src_dir_fd=self._staging, dst_dir_fd=directory)
        os.close(self.descriptor)
        self.descriptor = -1

    def name_once(self, directory: int, name: str) -> bool:
        """Give the sealed file its name where nothing has it (create-if-absent); say whether it was free."""
        try:
            os.link(self.name, name, src_dir_fd=self._staging, dst_dir_fd=directory, follow_symlinks=False)
        except FileExistsError:
            return False
        return True


def _create(staging: int, flags: int) -> "tuple[str, int]":
    """Make a temporary file and lock it, before a cleaner of another process can take it for an orphan."""
    for _ in range(CREATE_TRIES_MAX):
        name = f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
        wanted = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, wanted, 0o644, dir_fd=staging)
        try:
            if flags:
                add_flags(descriptor, flags)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return name, descriptor
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            unlink_quietly(staging, name)
            raise
        os.close(descriptor)
    raise CheckpointError("no temporary file could be kept: something removes them at once")


def add_flags(descriptor: int, flags: int) -> None:
    """Open a file's descriptor for more, for instance O_DIRECT; a file system that lacks that leaves it as it is."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | flags)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


class TemporaryDirectory:
    """A directory below `staging` that is gone at the end of the `with` block, or when its process is."""

    def __init__(self, staging: int) -> None:
        self._staging = staging
        self.name = f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
        self.descriptor = -1

    def __enter__(self) -> "TemporaryDirectory":
        for _ in range(CREATE_TRIES_MAX):
            os.mkdir(self.name, 0o755, dir_fd=self._staging)
            descriptor = _locked(self._staging, self.name)
            if descriptor is not None and _is_named(self._staging, self.name, descriptor):
                self.descriptor = descriptor
                return self
            if descriptor is not None:
                os.close(descriptor)
            self.name = f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"
        raise CheckpointError("no temporary directory could be kept: something removes them at once")

    def __exit__(self, *_: object) -> None:
        remove_tree(self._staging, self.name)
        os.close(self.descriptor)


def _is_named(staging: int, name: str, descriptor: int) -> bool:
    try:
        seen = os.stat(name, dir_fd=staging, follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (seen.st_dev, seen.st_ino) == (held.st_dev, held.st_ino)


def _locked(staging: int, name: str) -> Optional[int]:
    """Return a locked descriptor of a temporary file or directory; None where it is gone, or its writer lives."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=staging)
    except OSError:
        return None  # gone, or a link: no writer's
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def clean_temporary(staging: int) -> List[str]:
    """Remove temporary files and directories whose writer is dead; return their names."""
    removed = []
    for name in sorted(os.listdir(staging)):
        if not name.startswith(TEMPORARY_PREFIX):
            continue
        descriptor = _locked(staging, name)
        if descriptor is None:
            continue
        try:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                remove_tree(staging, name)
            else:
                unlink_quietly(staging, name)
            removed.append(name)
        finally:
            os.close(descriptor)
    return removed


def unlink_quietly(directory: int, name: str) -> None:
    """Remove a name; that it is gone already is as good."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def remove_tree(directory: int, name: str) -> None:
    """Remove what lies below a name, and the name; links are removed, not followed. What resists stays."""
    with suppress(OSError):
        for _, directories, plain, held in os.fwalk(name, topdown=False, follow_symlinks=False, dir_fd=directory):
            for below in plain:
                os.unlink(below, dir_fd=held)
            for below in directories:
                is_link = stat.S_ISLNK(os.stat(below, dir_fd=held, follow_symlinks=False).st_mode)
                (os.unlink if is_link else os.rmdir)(below, dir_fd=held)
        os.rmdir(name, dir_fd=directory)
