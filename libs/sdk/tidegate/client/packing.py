"""Pack a working directory so that the same content gives the same bytes on every machine.

The archive is a plain tar (compressors differ between versions, and would change the digest): entries sorted by
path, times and owners zero, only the executable bit of a mode kept. It never holds a link that leaves the directory.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import tempfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Callable, Iterator, List, Optional, Tuple, cast

from tidegate.client.errors import PackingError

EXCLUDED_NAMES = frozenset({".git", ".venv", "__pycache__"})
ARCHIVE_BYTES_MAX = 256 * 1024 * 1024
ENTRIES_MAX = 50_000
MEMORY_BYTES_MAX = 16 * 1024 * 1024
"""Archives above this size lie in a temporary file while they are sent."""
CHUNK_BYTES = 256 * 1024

SIZE_REMEDY = (
    "Keep data and results out of the working directory: declare large inputs under `inputs`, "
    "or give a directory that holds only the code."
)
LINK_REMEDY = "Accepted are relative links to something inside; declare data outside under `inputs`, or copy it in."


@dataclass
class Archive:
    """A packed directory: its SHA-256, its size, and the bytes themselves; close it when it was sent."""

    digest: str
    size_bytes: int
    entries: int
    file: IO[bytes]

    def chunks(self, on_sent: Optional[Callable[[int], None]] = None) -> Iterator[bytes]:
        """Yield the bytes from the beginning, every time it is called; tell `on_sent` how many were taken."""
        self.file.seek(0)
        sent = 0
        while chunk := self.file.read(CHUNK_BYTES):
            yield chunk
            sent += len(chunk)
            if on_sent is not None:
                on_sent(sent)

    def close(self) -> None:
        """Free the bytes."""
        self.file.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(root: Path, bytes_max: int = ARCHIVE_BYTES_MAX) -> Archive:
    """Pack the directory `root`.

    Raises PackingError for a special file, a link that leaves the directory, a name that is not UTF-8, or an archive
    of more than `bytes_max` bytes or ENTRIES_MAX entries.
    """
    if not root.is_dir():
        raise PackingError(f"The working directory {root} is not a directory.", "Give the path of a directory.")
    # The archive is handed to the caller, who closes it; on an error it is closed here.
    file = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES_MAX)  # noqa: SIM115
    sink = _DigestingSink(file, root, bytes_max)
    try:
        entries = 0
        with tarfile.open(fileobj=cast(IO[bytes], sink), mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
            for name, path in walk(root):
                entries += 1
                if entries > ENTRIES_MAX:
                    message = f"The working directory {root} holds more than {ENTRIES_MAX:,} files."
                    raise PackingError(message, SIZE_REMEDY)
                _add(tar, root, name, path)
    except BaseException:
        file.close()
        raise
    return Archive(sink.sha256.hexdigest(), sink.written, entries, file)


def walk(root: Path) -> List[Tuple[str, Path]]:
    """Return (name in the archive, path) of everything that is packed, sorted by name."""
    found: List[Tuple[str, Path]] = []
    waiting = [("", root)]
    while waiting:
        prefix, directory = waiting.pop()
        for entry in _listing(directory):
            if entry.name in EXCLUDED_NAMES:
                continue
            name = prefix + entry.name
            found.append((_checked_name(name, Path(entry.path)), Path(entry.path)))
            if entry.is_dir(follow_symlinks=False):
                waiting.append((name + "/", Path(entry.path)))
            if len(found) > ENTRIES_MAX:
                return found
    return sorted(found, key=lambda item: item[0])


def _listing(directory: Path) -> List[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError as error:
        raise PackingError(
            f"{directory} cannot be listed: {error.strerror}.", "Make it readable, or move it."
        ) from error


def _checked_name(name: str, path: Path) -> str:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise PackingError(f"{os.fsencode(path)!r} has a name that is not UTF-8.", "Rename the file.") from None
    return name


def _add(tar: tarfile.TarFile, root: Path, name: str, path: Path) -> None:
    info = tarfile.TarInfo(name)
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, _inner_link(root, path)
        tar.addfile(info)
    elif stat.S_ISDIR(mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    elif stat.S_ISREG(mode):
        info.mode = 0o755 if mode & stat.S_IXUSR else 0o644
        _add_regular(tar, info, path)
    else:
        accepted = "Accepted are files, directories and links; move it elsewhere."
        raise PackingError(f"{path} is a socket, pipe or device.", accepted)


def _inner_link(root: Path, path: Path) -> str:
    """Return the link's target, after checking that neither its text nor what it resolves to leaves `root`."""
    target = os.readlink(path)
    top = os.path.realpath(root)
    lexical = os.path.normpath(os.path.join(os.path.relpath(path.parent, root), target))
    resolved = os.path.realpath(path)
    leaves = os.path.isabs(target) or lexical == ".." or lexical.startswith("../")
    if leaves or os.path.commonpath([top, resolved]) != top:
        raise PackingError(f"{path} is a link that leaves the working directory: it points to {target}.", LINK_REMEDY)
    return target


def _add_regular(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> None:
    try:
        # A name swapped for a link after the check must not be followed out of the directory.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as source:
            info.size = os.fstat(descriptor).st_size
            if info.size <= MEMORY_BYTES_MAX:
                # Read at once, so that a file that is being appended to is still packed whole at one instant.
                content = source.read(MEMORY_BYTES_MAX)
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
            else:
                tar.addfile(info, source)
    except OSError as error:
        reason = error.strerror or "it changed while it was read"
        raise PackingError(f"{path} cannot be read: {reason}.", "Make it readable and leave it alone.") from error


class _DigestingSink:
    """Writes through to a file while hashing and counting, and stops at the bound."""

    def __init__(self, file: IO[bytes], root: Path, bytes_max: int) -> None:
        self.sha256 = hashlib.sha256()
        self.written = 0
        self._file = file
        self._root = root
        self._bytes_max = bytes_max

    def write(self, data: bytes) -> int:
        self.written += len(data)
        if self.written > self._bytes_max:
            message = f"The working directory {self._root} packs to more than {self._bytes_max:,} bytes."
            raise PackingError(message, SIZE_REMEDY)
        self.sha256.update(data)
        return self._file.write(data)
