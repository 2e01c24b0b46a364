"""The directories of a store, held open, and the lock that keeps collection away from who reads or writes.

packs/<id>.pack         chunks, see pack.py
manifests/<id>.json     layers, see manifest.py
roots/<name>.json       checkpoints, see root.py
lock                    shared by whoever saves or restores, exclusive for whoever removes
.tmp-*                  being written, or an orphan that the next opening removes
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from typing import Iterator, Optional

from tidegate.checkpoint import files
from tidegate.errors import CheckpointError, CorruptCheckpointError

LOCK_SECONDS_MAX = 60.0
LOCK_RETRY_SECONDS = 0.01

PACKS, MANIFESTS, ROOTS, LOCK = "packs", "manifests", "roots", "lock"


class Places:
    """Open directories of one store. `staging` is where files are written before they have their name.

    Whoever writes with more rights than the store's owner names a `working` directory that the owner cannot write, on
    the same file system: what the owner could open while it is written, it could change under its hash.
    """

    def __init__(self, base: int, staging: int) -> None:
        self.base = base
        self.staging = staging
        self.packs = self.manifests = self.roots = -1

    def close(self) -> None:
        """Close every descriptor."""
        for descriptor in (self.base, self.packs, self.manifests, self.roots):
            if descriptor >= 0:
                os.close(descriptor)
        if self.staging not in (self.base, -1):
            os.close(self.staging)
        self.base = self.staging = self.packs = self.manifests = self.roots = -1

    def sync_staging(self) -> None:
        """Make it durable that a temporary name is gone, where another directory than the store's had it."""
        if self.staging != self.base:
            os.fsync(self.staging)


@contextmanager
def opened(store: files.Place, *, create: bool = False, working: Optional[files.Place] = None) -> Iterator[Places]:
    """Open the directories of the store at `store`; `create` makes those that are missing.

    Raises FileNotFoundError where there is no store, CorruptCheckpointError where a name is no directory.
    """
    base = files.open_directory(store)
    places = Places(base, base)
    try:
        if working is not None:
            places.staging = files.open_directory(working)
        places.packs = below(base, PACKS, create)
        places.manifests = below(base, MANIFESTS, create)
        places.roots = below(base, ROOTS, create)
        yield places
    finally:
        places.close()


def below(base: int, name: str, create: bool) -> int:
    """Return a descriptor of a directory of the store; `create` makes it where it is missing."""
    try:
        return os.open(name, files.DIRECTORY_FLAGS, dir_fd=base)
    except FileNotFoundError:
        if not create:
            raise
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise CorruptCheckpointError(f"{name} of the checkpoint store is not a directory") from error
        raise
    try:
        os.mkdir(name, 0o755, dir_fd=base)
        os.fsync(base)
    except FileExistsError:
        pass  # another process of the job was faster
    return os.open(name, files.DIRECTORY_FLAGS, dir_fd=base)


@contextmanager
def in_use(places: Places) -> Iterator[None]:
    """Hold the store's shared lock: nothing that is named in it is removed meanwhile.

    Waits for who removes, LOCK_SECONDS_MAX at most: whoever wrote the store could hold its lock for ever.
    """
    with _lock_file(places) as descriptor:
        if descriptor is not None:
            _share(descriptor)
        yield


def _share(descriptor: int) -> None:
    give_up = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise CheckpointError(
                    f"the checkpoint store was not free within {LOCK_SECONDS_MAX:.0f} s: somebody removes from it"
                ) from None
            time.sleep(LOCK_RETRY_SECONDS)


@contextmanager
def alone(places: Places) -> Iterator[bool]:
    """Hold the store's exclusive lock if nobody uses it now; yield whether that is so."""
    with _lock_file(places) as descriptor:
        if descriptor is None:
            yield False
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


@contextmanager
def _lock_file(places: Places) -> Iterator[Optional[int]]:
    """Yield the open lock; None in a store that this process may only read and that nobody ever wrote a lock in.

    It is given back by name, not by being closed: a process that was forked meanwhile (a loader of data, for instance)
    has it open too, and would hold it for as long as it lives.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(LOCK, flags | os.O_CREAT, 0o644, dir_fd=places.base)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EROFS):
            yield None
            return
        raise
    process = os.getpid()
    try:
        yield descriptor
    finally:
        if process == os.getpid():  # a fork in this thread leaves the lock to whoever took it
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
