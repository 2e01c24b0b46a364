"""Writes a large object into a directory so that a writer who was killed goes on where it stood.

What is written lies below `partial/` of its job, where no reader looks, and has its name only once it is whole and
durable. What is there already is compared with what is to be written, from the start on: only that counts as written.
One process writes an object so at a time.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path
from typing import BinaryIO, Callable, Optional

from tidegate.checkpoint import files

PARTIAL = "partial"
SYNC_BYTES = 64 << 20
"""After so much more is written it is made durable: a power cut loses no more than that of it."""
OPEN_TRIES_MAX = 3
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def path_of(directory: Path, name: str) -> Path:
    """Return where an object is written before it has its name: beside the others of its job."""
    job = Path(name).parent.parent
    return directory / job / PARTIAL / hashlib.sha256(name.encode()).hexdigest()


def write(directory: Path, name: str, file: BinaryIO, on_written: Callable[[int], None]) -> bool:
    """Write the whole of `file` as the object `name`; `on_written` is told of each block before it is written.

    Returns False, with nothing done, where somebody else is writing it. On return its bytes are durable, its name is
    once its directory was synced. Raises OSError; what was written by then stays for the next try, except where the
    disk is full.
    """
    path = path_of(directory, name)
    descriptor = _locked(path)
    if descriptor is None:
        return False
    try:
        _fill(descriptor, file, on_written)
        os.fsync(descriptor)
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    except OSError as error:
        if error.errno in _FULL:
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    return True


def _locked(path: Path) -> Optional[int]:
    """Open a partial object and lock it; None where somebody else has it locked."""
    for _ in range(OPEN_TRIES_MAX):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
            # Whoever had it locked has just given it its name: to write to it now would change the object.
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    return None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there, held = os.stat(path, follow_symlinks=False), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)


def _fill(descriptor: int, file: BinaryIO, on_written: Callable[[int], None]) -> None:
    file.seek(0)
    done, unsynced = 0, 0
    is_same = True
    for block in files.blocks(file):
        if is_same and os.pread(descriptor, len(block), done) != block:
            is_same = False
            os.ftruncate(descriptor, done)
            os.lseek(descriptor, done, os.SEEK_SET)
        if not is_same:
            on_written(len(block))
            files.write_all(descriptor, memoryview(block))
            unsynced += len(block)
            if unsynced >= SYNC_BYTES:
                os.fsync(descriptor)
                unsynced = 0
        done += len(block)
    os.ftruncate(descriptor, done)


def forget(directory: Path, job: str, before_seconds: int) -> int:
    """Remove what was begun of a job (`<tenant>/<job>`) and not written to since; return how many bytes that were.

    What somebody is writing now stays.
    """
    freed = 0
    try:
        names = os.listdir(directory / job / PARTIAL)
    except FileNotFoundError:
        return 0
    for name in names:
        path = directory / job / PARTIAL / name
        try:
            found = os.stat(path, follow_symlinks=False)
            if found.st_mtime >= before_seconds or (descriptor := _locked(path)) is None:
                continue
        except FileNotFoundError:
            continue
        try:
            path.unlink(missing_ok=True)
            freed += found.st_size
        finally:
            os.close(descriptor)
    return freed
