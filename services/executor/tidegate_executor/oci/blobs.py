"""Where the parts of an image lie: in a directory, or in an archive, read where it lies. Names may be hostile."""

from __future__ import annotations

import os
import posixpath
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

MEMBERS_MAX = 20_000
LINKS_MAX = 8
JSON_BYTES_MAX = 4 * 1024**2


class ImageRefusedError(Exception):
    """The image is not what it should be, or holds what is not taken; the text says what and where."""


class Blobs(Protocol):
    """Named parts, read one after the other or several at once."""

    def has(self, name: str) -> bool: ...

    def open(self, name: str) -> BinaryIO:
        """Return a part to read. Raises ImageRefusedError where there is none."""
        ...


class Directory:
    """An OCI layout as a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, name: str) -> bool:
        return (self._root / name).is_file()

    def open(self, name: str) -> BinaryIO:
        path = self._root / _checked(name)
        try:
            return os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")
        except OSError as error:
            raise ImageRefusedError(f"{path} cannot be read: {error.strerror}") from error


class Archive:
    """A tar file that holds an OCI layout or what `docker save` writes; not compressed, so that parts can be found."""

    def __init__(self, tar: tarfile.TarFile, where: str) -> None:
        self._tar = tar
        self._where = where
        self._members: dict[str, tarfile.TarInfo] = {}
        for count, member in enumerate(tar, start=1):
            if count > MEMBERS_MAX:
                raise ImageRefusedError(f"{where} holds more than {MEMBERS_MAX} files, and no image has so many layers")
            self._members[posixpath.normpath(member.name)] = member

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> BinaryIO:
        at = posixpath.normpath(_checked(name))
        for _ in range(LINKS_MAX):
            member = self._members.get(at)
            if member is None:
                break
            if member.isreg():
                content = self._tar.extractfile(member)
                assert content is not None, "a regular member has content"
                return content  # type: ignore[return-value]  # a BufferedReader, typed as IO[bytes]
            if not member.issym():
                break
            at = _checked(posixpath.normpath(posixpath.join(posixpath.dirname(at), member.linkname)))
        raise ImageRefusedError(f"{self._where} holds no file {name!r}, which its manifest names")


@contextmanager
def opened(place: Path) -> Iterator[Blobs]:
    """Open a directory or an archive. Raises ImageRefusedError."""
    if place.is_dir():
        yield Directory(place)
        return
    try:
        with tarfile.open(place, mode="r:") as tar:
            yield Archive(tar, str(place))
    except (tarfile.TarError, EOFError) as error:
        raise ImageRefusedError(
            f"{place} is no archive of an image: {error}; a tar file that is not compressed is"
        ) from (error)
    except OSError as error:
        raise ImageRefusedError(f"{place} cannot be read: {error}") from error


def read_all(blobs: Blobs, name: str) -> bytes:
    """Return a small part. Raises ImageRefusedError."""
    with blobs.open(name) as reading:
        data = reading.read(JSON_BYTES_MAX + 1)
    if len(data) > JSON_BYTES_MAX:
        raise ImageRefusedError(f"{name} has more than {JSON_BYTES_MAX} bytes, which a description never has")
    return data


def _checked(name: str) -> str:
    if name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise ImageRefusedError(f"the image names its part {name!r}, which leaves the place where the image lies")
    return name
