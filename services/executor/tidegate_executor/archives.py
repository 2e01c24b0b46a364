"""Unpacking a job's working directory from an archive that anybody may have made: bounded, and never outside.

Plain tar and tar compressed by gzip, bzip2 or xz are taken. Files and directories come first and links last, so no
entry can be written through a link; then every link is resolved on the real tree and must stay in it.
"""

from __future__ import annotations

import errno
import os
import tarfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

ENTRIES_MAX = 100_000
UNPACKED_BYTES_MAX = 2 * 1024**3
NAME_BYTES_MAX = 1024
DEPTH_MAX = 64
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
_BLOCK_BYTES = 1024 * 1024


class ArchiveRefusedError(Exception):
    """The archive holds what is not taken, or too much; the text says which entry and why."""


def unpack(archive: Path, target: Path) -> None:
    """Unpack into the empty directory `target`; raises ArchiveRefusedError, and then the target is to be thrown away.

    Modes are reduced to 0755 and 0644; owners and times are not kept. A disk that fails raises OSError: that is not
    the archive's fault.
    """
    try:
        _unpack(archive, target)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise
        raise ArchiveRefusedError(f"not an archive that can be unpacked: {error}") from error
    except RuntimeError as error:  # pathlib's word for links in a circle
        raise ArchiveRefusedError(f"links that cannot be followed: {error}") from error


def _unpack(archive: Path, target: Path) -> None:
    links: list[tuple[Path, tarfile.TarInfo]] = []
    hard: list[tuple[Path, tarfile.TarInfo]] = []
    room = UNPACKED_BYTES_MAX
    with tarfile.open(archive, mode="r|*", errorlevel=2) as tar:
        for count, entry in enumerate(tar, start=1):
            if count > ENTRIES_MAX:
                raise ArchiveRefusedError(f"more than {ENTRIES_MAX} entries")
            path = _place(target, entry)
            if entry.isdir():
                path.mkdir(parents=True, exist_ok=True, mode=0o755)
            elif entry.isreg():
                room = _write(tar, entry, path, room)
            elif entry.issym():
                links.append((path, entry))
            elif entry.islnk():
                hard.append((path, entry))
            else:
                raise ArchiveRefusedError(f"{entry.name!r} is a device, a pipe or of an unknown type")
    for path, entry in hard:
        room = _copy_linked(target, path, entry, room)
    _link(target, links)


def _place(target: Path, entry: tarfile.TarInfo) -> Path:
    name = PurePosixPath(entry.name)
    if len(entry.name.encode(errors="surrogateescape")) > NAME_BYTES_MAX or len(name.parts) > DEPTH_MAX:
        raise ArchiveRefusedError(f"{entry.name[:80]!r}... is too long or too deep")
    if name.is_absolute() or ".." in name.parts or "\0" in entry.name:
        raise ArchiveRefusedError(f"{entry.name!r} is not a relative path below the directory")
    return target / name


def _write(tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path, room: int) -> int:
    """Write a regular file; return how many bytes may still follow. Sparse files count at their full size."""
    if entry.size > room:
        raise ArchiveRefusedError(f"more than {UNPACKED_BYTES_MAX} bytes")
    source = tar.extractfile(entry)
    if source is None:
        raise ArchiveRefusedError(f"{entry.name!r} has no content")
    path.parent.mkdir(parents=True, exist_ok=True)
    with _create(path, entry) as file:
        while block := source.read(_BLOCK_BYTES):
            room -= len(block)
            if room < 0:
                raise ArchiveRefusedError(f"more than {UNPACKED_BYTES_MAX} bytes")
            file.write(block)
    return room


def _create(path: Path, entry: tarfile.TarInfo) -> BinaryIO:
    mode = 0o755 if entry.mode & 0o100 else 0o644
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except FileExistsError as error:
        raise ArchiveRefusedError(f"{entry.name!r} is there twice") from error
    return os.fdopen(descriptor, "wb")


def _copy_linked(target: Path, path: Path, entry: tarfile.TarInfo, room: int) -> int:
    """A hard link becomes a copy of the file it names, which must be a regular one of this archive."""
    name = PurePosixPath(entry.linkname)
    source = target / name
    if name.is_absolute() or ".." in name.parts or source.is_symlink() or not source.is_file():
        raise ArchiveRefusedError(f"{entry.name!r} is a link to {entry.linkname!r}, which is no file of the archive")
    room -= source.stat().st_size
    if room < 0:
        raise ArchiveRefusedError(f"more than {UNPACKED_BYTES_MAX} bytes")
    path.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reading, _create(path, entry) as file:
        os.fchmod(file.fileno(), source.stat().st_mode & 0o755)
        while block := reading.read(_BLOCK_BYTES):
            file.write(block)
    return room


def _link(target: Path, links: list[tuple[Path, tarfile.TarInfo]]) -> None:
    root = target.resolve()
    for path, entry in links:
        if PurePosixPath(entry.linkname).is_absolute():
            raise ArchiveRefusedError(f"{entry.name!r} is a link to the absolute path {entry.linkname!r}")
        if not path.parent.resolve().is_relative_to(root):
            raise ArchiveRefusedError(f"{entry.name!r} lies behind a link that leaves the directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(entry.linkname)
    for path, entry in links:
        if not path.resolve().is_relative_to(root):
            raise ArchiveRefusedError(f"{entry.name!r} is a link to {entry.linkname!r}, outside the directory")
