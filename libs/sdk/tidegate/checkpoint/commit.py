"""The commit of a checkpoint: written under a temporary name, made durable, then named; or it never existed.

Order: every file is fsynced, then root.json, then the directories, then the rename, then the parent directory. Only
then may anyone be told. The writer holds a lock (flock) on its temporary directory; the kernel drops it when the
process dies, so a temporary directory that can be locked belongs to nobody and may be removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Iterator, List, Optional, Tuple, Type

from tidegate import protocol
from tidegate.checkpoint import root as roots
from tidegate.checkpoint.layer import Snapshot
from tidegate.errors import CheckpointError, UnknownLayerError, UnsupportedObjectError

TEMPORARY_PREFIX = ".tmp-"
_CREATE_TRIES_MAX = 10
_FILES_MAX = 100_000


class Temporary:
    """A checkpoint being written. Leaving the `with` block without a commit removes it.

    It is written in `working`, which is on the same file system; by default in `parent`. Whoever writes with more
    rights than the owner of `parent` has must name a directory of its own: in `parent` its names could be turned into
    links under its hands.
    """

    def __init__(self, parent: Path, step: int, working: Optional[Path] = None) -> None:
        self._parent = parent
        self._working = working or parent
        self._step = step
        self.path, self._lock = _create(self._working, step)

    def __enter__(self) -> "Temporary":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            self._release()

    def _release(self) -> None:
        os.close(self._lock)
        self._lock = -1

    def write_layer(self, snapshot: Snapshot) -> roots.LayerEntry:
        """Write one layer file and make its bytes durable."""
        name = f"{snapshot.name}.layer"
        hashing = hashlib.sha256()
        with open(self.path / name, "xb", buffering=0) as file:

            def sink(block: memoryview) -> None:
                hashing.update(block)
                _write_all(file.fileno(), block)

            snapshot.write(sink)
            _seal(file.fileno())
        entry = roots.FileEntry(name, snapshot.bytes, hashing.hexdigest())
        return roots.LayerEntry(snapshot.name, "layer", (entry,), entry.bytes, entry.sha256)

    def take_directories(self) -> Tuple[roots.LayerEntry, ...]:
        """Hash the layer trees that the job wrote into `path` and make them durable; empty ones are left out."""
        layers = []
        for name in sorted(entry.name for entry in os.scandir(self.path)):
            if name not in protocol.LAYERS or not stat.S_ISDIR(os.lstat(self.path / name).st_mode):
                raise UnknownLayerError(
                    f"{name!r} was refused in a checkpoint: files belong below the directories "
                    + ", ".join(protocol.LAYERS)
                )
            files = tuple(_take_tree(self.path, self.path / name))
            if files:
                size = sum(entry.bytes for entry in files)
                layers.append(roots.LayerEntry(name, "files", files, size, roots.tree_digest(files)))
            else:
                shutil.rmtree(self.path / name)
        return tuple(sorted(layers, key=lambda layer: protocol.LAYERS.index(layer.name)))

    def commit(self, stamp: roots.Stamp, layers: Tuple[roots.LayerEntry, ...]) -> Tuple[roots.Root, Path]:
        """Name the checkpoint: on return it is durable. Returns its root and its directory."""
        root = roots.make_root(self._step, time.time_ns(), stamp, layers)
        if len(roots.encode(root)) > roots.ROOT_BYTES_MAX:
            raise UnsupportedObjectError(
                f"a checkpoint whose {roots.ROOT_FILE} has more than {roots.ROOT_BYTES_MAX} bytes was refused: it "
                "names too many files; put them into fewer"
            )
        with open(self.path / roots.ROOT_FILE, "xb", buffering=0) as file:
            _write_all(file.fileno(), memoryview(roots.encode(root)))
            _seal(file.fileno())
        os.fsync(self._lock)
        unique = self.path.name[-8:]
        final = self._parent / f"{self._step:012d}-{stamp.attempt}-{unique}"
        if final.exists():
            raise CheckpointError(f"{final.name} exists already: a checkpoint is never overwritten")
        os.rename(self.path, final)
        self._release()
        sync_directory(self._parent)
        if self._working != self._parent:
            sync_directory(self._working)
        return root, final


def _create(parent: Path, step: int) -> Tuple[Path, int]:
    """Make a temporary directory and lock it, before a cleaner of another process can take it for an orphan."""
    for _ in range(_CREATE_TRIES_MAX):
        path = parent / f"{TEMPORARY_PREFIX}{step:012d}-{os.urandom(4).hex()}"
        os.mkdir(path, 0o755)
        lock = _lock(path)
        if lock is not None and _is_still(path, lock):
            return path, lock
        if lock is not None:
            os.close(lock)
    raise CheckpointError(f"no temporary directory could be kept in {parent}: something removes them at once")


def _lock(path: Path) -> Optional[int]:
    """Return a locked descriptor of a directory, or None where it is gone or locked by another."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (seen.st_dev, seen.st_ino) == (held.st_dev, held.st_ino)


def clean_temporary(parent: Path) -> List[str]:
    """Remove temporary directories whose writer is dead; return their names."""
    removed = []
    for entry in list(os.scandir(parent)):
        if not entry.name.startswith(TEMPORARY_PREFIX):
            continue
        lock = _lock(Path(entry.path))
        if lock is None:
            continue
        try:
            shutil.rmtree(entry.path, ignore_errors=True)
            removed.append(entry.name)
        finally:
            os.close(lock)
    return removed


def remove_committed(directory: Path) -> None:
    """Remove a committed checkpoint: first its name, so that a crash leaves an orphan and never half of one."""
    orphan = directory.parent / f"{TEMPORARY_PREFIX}{directory.name[:12]}-{os.urandom(4).hex()}"
    os.rename(directory, orphan)
    shutil.rmtree(orphan, ignore_errors=True)


def _take_tree(base: Path, directory: Path) -> Iterator[roots.FileEntry]:
    count = 0
    _drop_empty_directories(directory)
    for parent, directories, files in os.walk(directory):
        directories.sort()
        for name in directories:
            if (Path(parent) / name).is_symlink():
                raise UnsupportedObjectError(f"{Path(parent, name).relative_to(base)} was refused: it is a link")
        for name in sorted(files):
            count += 1
            if count > _FILES_MAX:
                raise UnsupportedObjectError(f"a layer of more than {_FILES_MAX} files was refused")
            yield _take_file(base, Path(parent) / name)
        sync_directory(Path(parent))


def _drop_empty_directories(top: Path) -> None:
    """Remove directories without files: no hash covers them, so a checkpoint that held them would not verify."""
    for parent, directories, _ in os.walk(top, topdown=False):
        for name in directories:
            with suppress(OSError):  # it holds something, or is a link, which is refused later
                os.rmdir(os.path.join(parent, name))


def _take_file(base: Path, path: Path) -> roots.FileEntry:
    relative = path.relative_to(base).as_posix()
    if not roots.is_acceptable_path(relative):
        raise UnsupportedObjectError(
            f"{relative!r} was refused: the name of a file in a checkpoint is printable text of at most "
            f"{roots.PATH_CHARS_MAX} characters, at most {roots.PATH_DEPTH_MAX} deep"
        )
    try:
        file = roots.open_inside(base, relative)
    except OSError as error:
        raise UnsupportedObjectError(
            f"{relative} was refused: a checkpoint holds regular files and directories only ({error})"
        ) from error
    with file:
        found = roots.digest(file)
        size = file.tell()
        _seal(file.fileno())
    return roots.FileEntry(relative, size, found)


def _seal(descriptor: int) -> None:
    # Read-only from here on: a job that opens a committed file for writing by mistake is told so.
    os.fchmod(descriptor, 0o444)
    os.fsync(descriptor)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
