"""One layer's tar stream to a tree as overlay file systems stack it. What is hostile in it is named and refused.

Nothing is ever written through a link: each directory on the way is opened without following any. Owners and extended
attributes are not kept, nor bits that change the user: in a sandbox there is one user. What a layer removes of those
below it becomes what overlayfs reads as removed: a character device 0/0, or an opaque directory.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tidegate_executor.oci.blobs import ImageRefusedError

ENTRIES_MAX = 1_000_000
NAME_BYTES_MAX = 4096
DEPTH_MAX = 128
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
OPAQUE_ATTRIBUTES = ("user.overlay.opaque", "trusted.overlay.opaque")  # for overlays with and without privileges
TIME_SECONDS_MAX = 2**40
_BLOCK_BYTES = 1024 * 1024


def unpack(stream: BinaryIO, target: Path, given_up: Callable[[], bool]) -> None:
    """Unpack into the empty directory `target`. Blocks. Raises ImageRefusedError, or OSError for the disk's fault."""
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with tarfile.open(fileobj=stream, mode="r|", errorlevel=2, bufsize=_BLOCK_BYTES) as tar:
            for count, entry in enumerate(tar, start=1):
                tar.members = []  # type: ignore[attr-defined]  # else every entry of a large layer stays in memory
                if count > ENTRIES_MAX:
                    raise ImageRefusedError(f"a layer has more than {ENTRIES_MAX} entries")
                if given_up():
                    raise ImageRefusedError("it is no longer waited for")
                _Entry(root, tar, entry).write()
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ImageRefusedError(f"a layer is no tar archive: {error}") from error
    finally:
        os.close(root)


class _Entry:
    def __init__(self, root: int, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        self._root = root
        self._tar = tar
        self._entry = entry
        self._parts = checked_parts(entry.name)

    def write(self) -> None:
        entry = self._entry
        if not self._parts:
            if entry.isdir():
                os.chmod(f"/proc/self/fd/{self._root}", _mode(entry) | stat.S_IRWXU)
                return
            raise self._refused("is the image's root, and no directory")
        directory = self._descend(self._root, self._parts[:-1])
        try:
            self._write_at(directory, self._parts[-1])
        finally:
            os.close(directory)

    def _write_at(self, directory: int, name: str) -> None:
        entry = self._entry
        if name.startswith(WHITEOUT):
            self._remove_below(directory, name)
        elif entry.isdir():
            self._make_directory(directory, name)
        elif entry.isreg():
            self._make_file(directory, name)
        elif entry.issym():
            _clear(directory, name)
            os.symlink(entry.linkname, name, dir_fd=directory)
        elif entry.islnk():
            self._make_hard_link(directory, name)
        else:
            raise self._refused("is a device, a pipe or of an unknown type, which no image may hold")

    def _remove_below(self, directory: int, name: str) -> None:
        if name == OPAQUE:
            for attribute in OPAQUE_ATTRIBUTES:
                with suppress(PermissionError):  # the second one is root's
                    os.setxattr(f"/proc/self/fd/{directory}", attribute, b"y")
            return
        hidden = name.removeprefix(WHITEOUT)
        if hidden in ("", ".", "..") or hidden.startswith(WHITEOUT):
            raise self._refused("removes nothing that could be there")
        if not _exists(directory, hidden):  # what the layer itself brings is not what it removes
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=directory)

    def _make_directory(self, directory: int, name: str) -> None:
        if not _is_directory(directory, name):
            _clear(directory, name)
            os.mkdir(name, 0o755, dir_fd=directory)
        os.chmod(f"/proc/self/fd/{directory}/{name}", _mode(self._entry) | stat.S_IRWXU)

    def _make_file(self, directory: int, name: str) -> None:
        _clear(directory, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        source = self._tar.extractfile(self._entry)
        assert source is not None, "a regular entry has content"
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "wb") as writing:
            while block := source.read(_BLOCK_BYTES):
                writing.write(block)
            os.fchmod(writing.fileno(), _mode(self._entry))
            seconds = min(max(int(self._entry.mtime), 0), TIME_SECONDS_MAX)
            writing.flush()
            os.utime(writing.fileno(), (seconds, seconds))

    def _make_hard_link(self, directory: int, name: str) -> None:
        linked = checked_parts(self._entry.linkname)
        if not linked:
            raise self._refused("is a hard link to the image's root")
        source = self._descend(self._root, linked[:-1], make=False)
        try:
            status = os.stat(linked[-1], dir_fd=source, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise self._refused(f"is a hard link to {self._entry.linkname!r}, which is no file of its layer")
            if status.st_nlink > 1 and _same(directory, name, status):
                return
            _clear(directory, name)
            os.link(linked[-1], name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError as error:
            raise self._refused(f"is a hard link to {self._entry.linkname!r}, which is no file of its layer") from error
        finally:
            os.close(source)

    def _descend(self, root: int, parts: list[str], *, make: bool = True) -> int:
        """Return a descriptor of the directory, made where it is missing."""
        held = os.dup(root)
        for part in parts:
            try:
                if make and not _exists(held, part):
                    os.mkdir(part, 0o755, dir_fd=held)
                below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
            except (NotADirectoryError, FileNotFoundError, OSError) as error:
                raise self._refused(f"lies below {part!r}, which is no directory of its layer ({error})") from error
            finally:
                os.close(held)
            held = below
        return held

    def _refused(self, why: str) -> ImageRefusedError:
        return ImageRefusedError(f"entry {self._entry.name[:200]!r} {why}")


def checked_parts(name: str) -> list[str]:
    """Return the path's parts. Raises ImageRefusedError for one that is absolute, climbs, or is beyond all bounds."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise ImageRefusedError(f"entry {name[:200]!r} is no relative path below the image's root")
    if len(name.encode(errors="surrogateescape")) > NAME_BYTES_MAX or len(parts) > DEPTH_MAX:
        raise ImageRefusedError(f"entry {name[:80]!r}... is too long or too deep")
    return parts


def _mode(entry: tarfile.TarInfo) -> int:
    return entry.mode & (0o1777 if entry.isdir() else 0o777)


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_directory(directory: int, name: str) -> bool:
    return _exists(directory, name) and stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)


def _same(directory: int, name: str, status: os.stat_result) -> bool:
    return _exists(directory, name) and os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), status)


def _clear(directory: int, name: str) -> None:
    """Make place for what comes later in the same layer, and so counts."""
    if _is_directory(directory, name):
        _remove_tree(directory, name)
    else:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)


def _remove_tree(directory: int, name: str) -> None:
    for _, directories, files, opened in os.fwalk(name, topdown=False, dir_fd=directory, follow_symlinks=False):
        for each in files:
            os.unlink(each, dir_fd=opened)
        for each in directories:
            if stat.S_ISLNK(os.stat(each, dir_fd=opened, follow_symlinks=False).st_mode):
                os.unlink(each, dir_fd=opened)
            else:
                os.rmdir(each, dir_fd=opened)
    os.rmdir(name, dir_fd=directory)
