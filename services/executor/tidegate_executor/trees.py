"""The digest of directory trees: BLAKE3 over every entry's path, mode, kind and content, in sorted order.

The content hash of each file is cached by (path, size, mtime, inode), so that only what changed is read again. Python's
byte code caches are left out: they are derived, and differ from one import to the next.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from blake3 import blake3

from tidegate_executor.spool.segments import write_durably

IGNORED_DIRECTORIES = frozenset({"__pycache__"})
WORKERS_MAX = 8
BLOCK_BYTES = 1024 * 1024
_FILES_PER_TASK = 512

Key = tuple[str, int, int, int]  # path, size in bytes, modification time in ns, inode


class Entry(msgspec.Struct, frozen=True):
    """One entry of a tree; `link` is a symbolic link's text."""

    path: str
    mode: int
    kind: str
    source: str
    size: int = 0
    mtime_ns: int = 0
    inode: int = 0
    link: str = ""

    @property
    def key(self) -> Key:
        """Return what the cache knows a file's content by."""
        return (self.source, self.size, self.mtime_ns, self.inode)


class HashCache:
    """Content hashes in a file. A file that cannot be read back is an empty cache: it only costs time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hashes: dict[Key, str] = {}

    def load(self) -> None:
        """Read what an earlier run left."""
        try:
            rows = msgspec.msgpack.decode(self._path.read_bytes(), type=list[tuple[Key, str]])
        except (FileNotFoundError, msgspec.MsgspecError):
            rows = []
        self._hashes = dict(rows)

    def store(self, used: dict[Key, str]) -> None:
        """Keep the hashes that were used, for the next start."""
        if used != self._hashes:
            write_durably(self._path, msgspec.msgpack.encode(list(used.items())))
            self._hashes = dict(used)

    def get(self, key: Key) -> str | None:
        """Return the content hash, None where it is not known."""
        return self._hashes.get(key)


def digest(layers: Sequence[tuple[str, str]], cache: HashCache, used: dict[Key, str]) -> str:
    """Return `b3:<hex>` over (source directory, target) layers, in their order. Blocks: run it in a thread.

    `used` collects the hashes of every file seen. An entry that vanishes meanwhile raises FileNotFoundError.
    """
    whole = blake3()
    for source, target in layers:
        entries = sorted(walk(Path(source)), key=lambda entry: entry.path)
        hashes = _contents([entry for entry in entries if entry.kind == "file"], cache)
        used.update(hashes)
        whole.update(f"layer\0{target}\0{len(entries)}\n".encode())
        for entry in entries:
            content = hashes[entry.key] if entry.kind == "file" else entry.link
            line = f"{entry.path}\0{entry.mode:o}\0{entry.kind}\0{content}\n"
            whole.update(line.encode(errors="surrogateescape"))
    return f"b3:{whole.hexdigest()}"


def walk(root: Path) -> Iterator[Entry]:
    """Yield every entry below `root`, links not followed, special files by their kind only."""
    todo = [(str(root), "")]
    while todo:
        directory, prefix = todo.pop()
        with os.scandir(directory) as found:
            for item in found:
                path = prefix + item.name
                status = item.stat(follow_symlinks=False)
                mode = stat.S_IMODE(status.st_mode)
                if item.is_symlink():
                    yield Entry(path, mode, "link", item.path, link=os.readlink(item.path))
                elif item.is_dir(follow_symlinks=False):
                    if item.name not in IGNORED_DIRECTORIES:
                        yield Entry(path, mode, "dir", item.path)
                        todo.append((item.path, path + "/"))
                elif item.is_file(follow_symlinks=False):
                    yield Entry(path, mode, "file", item.path, status.st_size, status.st_mtime_ns, status.st_ino)
                else:
                    yield Entry(path, mode, "special", item.path)


def _contents(files: Sequence[Entry], cache: HashCache) -> dict[Key, str]:
    hashes = {entry.key: known for entry in files if (known := cache.get(entry.key)) is not None}
    unknown = [entry for entry in files if entry.key not in hashes]
    parts = [unknown[start : start + _FILES_PER_TASK] for start in range(0, len(unknown), _FILES_PER_TASK)]
    workers = min(WORKERS_MAX, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers, thread_name_prefix="tidegate-hash") as pool:
        for part in pool.map(_hash_files, parts):
            hashes.update(part)
    return hashes


def _hash_files(entries: Sequence[Entry]) -> list[tuple[Key, str]]:
    return [(entry.key, _hash_file(entry.source)) for entry in entries]


def _hash_file(path: str) -> str:
    # Plain descriptors: a Python file object costs more than the whole of a small file.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        hasher = blake3()
        while block := os.read(descriptor, BLOCK_BYTES):
            hasher.update(block)
        return hasher.hexdigest()
    finally:
        os.close(descriptor)
