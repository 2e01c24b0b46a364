"""Images in a directory that nodes share: put there by an operator once, copied from there by the nodes that need them.

An image is one directory, named as it is, with its record and its layers. Like all that is measured of an image, its
digest leaves out Python's byte code caches, so they are not copied either: what is run is what the digest says.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from tidegate_executor import images, trees
from tidegate_executor.images import Image
from tidegate_executor.sandbox.base import Layer
from tidegate_executor.spool.segments import sync_directory, write_durably

RECORD = "image.json"
LAYERS = "layers"
TEMPORARY = ".tmp-"
IMAGES_MAX = 1000
"""Of a store with more, those beyond are not found by their digest."""

STEP_BYTES = 8 * 1024 * 1024
STEP_ENTRIES = 256
_BLOCK_BYTES = 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")

log = structlog.get_logger()


class StoreError(Exception):
    """The image cannot be put there, or had from there; the text says why."""


class DigestError(StoreError):
    """The files are not those of the digest."""


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of an image: layer `n` lies in `layers/n`, and is seen at the n-th of `targets`."""

    name: str
    digest: str
    size_bytes: int
    targets: tuple[str, ...]
    path: tuple[str, ...]

    def at(self, directory: Path, name: str) -> Image:
        """Return the image whose files lie in the directory."""
        layers = tuple(
            Layer(source=str(directory / LAYERS / str(number)), target=target)
            for number, target in enumerate(self.targets)
        )
        return Image(name=name, digest=self.digest, layers=layers, path=self.path)


def read(directory: Path) -> Stored | None:
    """Return the record there, None where there is none. Raises StoreError for one that cannot be used."""
    try:
        return msgspec.json.decode((directory / RECORD).read_bytes(), type=Stored)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{directory / RECORD} cannot be read: {error}") from error


def find(store: Path, named: str) -> tuple[Path, Stored] | None:
    """Return the image of that name, or of that digest. Blocks. Raises StoreError."""
    if _NAME.match(named):
        stored = read(store / named)
        return (store / named, stored) if stored is not None else None
    try:
        names = sorted(path.name for path in store.iterdir() if _NAME.match(path.name))
    except OSError as error:
        raise StoreError(f"the image store {store} cannot be read: {error}") from error
    for name in names[:IMAGES_MAX]:
        try:
            stored = read(store / name)
        except StoreError as error:  # it may be another image's, and hides none of those that sort after it
            log.warning("stored_image_skipped", image=name, why=str(error))
            continue
        if stored is not None and stored.digest == named:
            return store / name, stored
    return None


def publish(image: Image, store: Path, cache: Path) -> Stored:
    """Put an image of this node into the store, whole or not at all. Blocks. Raises StoreError."""
    if not _NAME.match(image.name):
        raise StoreError(f"image {image.name!r}: names of the form {_NAME.pattern} can be stored")
    place = store / image.name
    if (there := read(place)) is not None:
        if there.digest != image.digest:
            raise StoreError(
                f"{place} holds {there.digest}, not {image.digest}; another name, or an empty place, is taken"
            )
        return there
    staging = store / f"{TEMPORARY}{image.name}-{os.getpid()}"
    try:
        staging.mkdir(parents=True, mode=0o755)
        size_bytes = sum(copy([layer.source for layer in image.layers], staging))
        stored = Stored(
            name=image.name,
            digest=image.digest,
            size_bytes=size_bytes,
            targets=tuple(layer.target for layer in image.layers),
            path=image.path,
        )
        complete(staging, stored, cache)
        staging.rename(place)
        sync_directory(store)
    except OSError as error:
        raise StoreError(f"image {image.name} cannot be stored at {place}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return stored


def check(directory: Path, stored: Stored, cache: Path) -> None:
    """Compare the files there with the record's digest. Blocks. Raises DigestError or OSError."""
    image = stored.at(directory, stored.name)
    found = images.measured_digest([(layer.source, layer.target) for layer in image.layers], cache)
    if found != stored.digest:
        raise DigestError(f"image {stored.name} was copied as {found}, and should be {stored.digest}")


def complete(directory: Path, stored: Stored, cache: Path) -> None:
    """Check what was copied against its digest, and write its record. Blocks. Raises StoreError or OSError."""
    check(directory, stored, cache)
    write_durably(directory / RECORD, msgspec.json.encode(stored))


def copy(sources: Sequence[str], directory: Path, given_up: threading.Event | None = None) -> Iterator[int]:
    """Copy layers, and yield after each part how many bytes it had: the caller may wait, or stop. Blocks.

    Whoever has given up on a part that hangs says so: it ends before it writes on where files are removed.
    """
    (directory / LAYERS).mkdir(mode=0o755)
    entries = size = 0
    for number, source in enumerate(sources):
        for more in _copy_tree(source, str(directory / LAYERS / str(number))):
            if given_up is not None and given_up.is_set():
                raise StoreError(f"{source} is no longer waited for")
            entries, size = entries + 1, size + more
            if entries >= STEP_ENTRIES or size >= STEP_BYTES:
                yield size
                entries = size = 0
    yield size


def _copy_tree(source: str, target: str) -> Iterator[int]:
    """Copy what counts for a digest: names, modes, links and content. Yield the bytes of each entry, or block."""
    made = [(source, target)]
    os.mkdir(target, 0o755)
    for directory, copied in made:
        with os.scandir(directory) as found:
            items = sorted(found, key=lambda item: item.name)
        for item in items:
            to = os.path.join(copied, item.name)
            if item.is_symlink():
                os.symlink(os.readlink(item.path), to)
            elif item.is_dir(follow_symlinks=False):
                if item.name in trees.IGNORED_DIRECTORIES:
                    continue
                os.mkdir(to, 0o755)
                made.append((item.path, to))
            elif item.is_file(follow_symlinks=False):
                yield from _copy_file(item.path, to)
            else:
                raise StoreError(
                    f"{item.path} is a device, a pipe or a socket, which an image to be copied cannot hold"
                )
            yield 0
    for directory, copied in reversed(made):  # last: one that may not be written to is filled by then
        os.chmod(copied, stat.S_IMODE(os.stat(directory).st_mode))


def _copy_file(source: str, target: str) -> Iterator[int]:
    with open(source, "rb") as reading, open(target, "xb") as writing:
        mode = stat.S_IMODE(os.fstat(reading.fileno()).st_mode)
        if mode & (stat.S_ISUID | stat.S_ISGID):
            # A copy belongs to whoever copies: what ran as some user would run as root.
            raise StoreError(
                f"{source} has mode {mode:o}, and an image to be copied cannot hold programs that change the user or "
                f"group; files without these bits (chmod ug-s), and images of each node's own settings, are accepted"
            )
        while block := reading.read(_BLOCK_BYTES):
            writing.write(block)
            yield len(block)
        os.fchmod(writing.fileno(), mode)
