"""The digest of directory trees: BLAKE3 over every entry's path, mode, kind and content, in sorted order.

The content hash of each file is cached by (path, size, mtime, inode), so that only what changed is read again; and the
whole digest by the `fingerprint` of what the file system says of every entry, so that usually nothing else is looked
at. Python's byte code caches are left out: they are derived, and differ from one import to the next.
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
DIGESTS_MAX = 32
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

    def store(self, layers: Sequence[tuple[str, str]], used: dict[Key, str]) -> None:
        """Keep the hashes that were used of these layers for the next time, and those of other layers as they are."""
        roots = tuple(f"{source}/" for source, _ in layers)
        kept = {key: known for key, known in self._hashes.items() if not key[0].startswith(roots)} | used
        if kept != self._hashes:
            write_durably(self._path, msgspec.msgpack.encode(list(kept.items())), by=_agent())
            self._hashes = kept

    def get(self, key: Key) -> str | None:
        """Return the content hash, None where it is not known."""
        return self._hashes.get(key)


class DigestCache:
    """The digests of whole images by their layers and fingerprint, in a file; one that cannot be read is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, tuple[str, str]] = {}

    def load(self) -> None:
        """Read what an earlier run left."""
        try:
            self._known = msgspec.json.decode(self._path.read_bytes(), type=dict[str, tuple[str, str]])
        except (FileNotFoundError, msgspec.MsgspecError):
            self._known = {}

    def get(self, layers: Sequence[tuple[str, str]], seen: str) -> str | None:
        """Return the digest that the layers had with this fingerprint, None where it is not known."""
        fingerprint_then, known = self._known.get(_label(layers), ("", ""))
        return known if fingerprint_then == seen else None

    def put(self, layers: Sequence[tuple[str, str]], seen: str, known: str) -> None:
        """Keep the digest for the next start; of more than DIGESTS_MAX images the oldest is forgotten."""
        self._known.pop(_label(layers), None)
        self._known[_label(layers)] = (seen, known)
        kept = dict(list(self._known.items())[-DIGESTS_MAX:])
        write_durably(self._path, msgspec.json.encode(kept), by=_agent())


def _agent() -> str:
    """Tell this process from the other agents of a machine, with which it may share the cache."""
    return f".{os.getpid()}"


def _label(layers: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{source}\t{target}" for source, target in layers)


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


def fingerprint(layers: Sequence[tuple[str, str]]) -> str:
    """Return a hash over name, mode, size, change time and inode of every entry: equal only if nothing was changed.

    It is no digest: it differs between machines. But it costs a third of what comparing each file with a cache does,
    which counts for trees of a hundred thousand files. A directory that vanishes meanwhile raises FileNotFoundError.
    """
    whole = blake3()
    for source, target in layers:
        whole.update(f"layer\0{source}\0{target}\n".encode())
        todo = [source]
        while todo:
            directory = todo.pop()
            whole.update(f"{directory}\0".encode(errors="surrogateescape"))
            seen = []
            with os.scandir(directory) as found:
                for item in found:
                    at = item.stat(follow_symlinks=False)
                    if not item.is_dir(follow_symlinks=False):
                        # A link's text cannot change but with its inode.
                        seen.append(f"{item.name}\0{at.st_mode}\0{at.st_size}\0{at.st_ctime_ns}\0{at.st_ino}")
                    elif item.name not in IGNORED_DIRECTORIES:
                        seen.append(f"{item.name}\0{at.st_mode}")  # its times change with what is ignored in it
                        todo.append(item.path)
            seen.sort()
            whole.update("\n".join(seen).encode(errors="surrogateescape"))
    return whole.hexdigest()


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
