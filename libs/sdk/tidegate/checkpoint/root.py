"""root.json: what a committed checkpoint consists of, and whether the bytes beside it are still those.

The id is the SHA-256 of the canonical JSON (sorted keys, no spaces, ASCII) of everything but the id itself. A root is
read from a directory that a job can write, so every field is checked and no link is followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Dict, Iterator, Optional, Tuple

from tidegate import protocol
from tidegate.errors import CorruptCheckpointError

ROOT_FILE = "root.json"
ROOT_BYTES_MAX = 16 << 20
"""Longest root.json: JSON takes some twenty times its size in memory, and agents read what jobs wrote."""
FORMAT = 1
DIRECTORY_NAME = re.compile(r"[0-9]{12}-[0-9]{1,9}-[0-9a-z]{8}\Z")
BLOCK_BYTES = 1 << 20
NUMBER_MAX = 2**53
"""Largest size, time or rank: every reader of the events that repeat it has a type that holds it."""
TEXT_CHARS_MAX = 256
PATH_CHARS_MAX = 1024
PATH_DEPTH_MAX = 66

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_NUMBERS = ("step", "attempt", "rank", "replica", "world_size")
_TEXTS = ("job", "component", "phase", "adopted")


@dataclass(frozen=True)
class FileEntry:
    """One file of a layer; `path` is relative to the checkpoint's directory, with slashes."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class LayerEntry:
    """One layer: kind "layer" is one file in our own format, "files" a tree written by the job."""

    name: str
    kind: str
    files: Tuple[FileEntry, ...]
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Stamp:
    """What a root records besides its layers."""

    job: str
    attempt: int
    rank: int
    component: str
    replica: int
    world_size: int
    seed: int
    phase: Optional[str] = None
    adopted: Optional[str] = None
    """For a checkpoint taken over from a declared directory: the name it had there."""


@dataclass(frozen=True)
class Root:
    """A committed checkpoint."""

    id: str
    step: int
    created_ns: int
    stamp: Stamp
    layers: Tuple[LayerEntry, ...]

    @property
    def bytes(self) -> int:
        """Return the size of all layers."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def age_key(self) -> Tuple[int, int, int]:
        """Return what orders checkpoints of one job: a later attempt is newer, even at an earlier step."""
        return (self.stamp.attempt, self.step, self.created_ns)

    def layer(self, name: str) -> Optional[LayerEntry]:
        """Return the layer of that name, or None."""
        return next((layer for layer in self.layers if layer.name == name), None)


def make_root(step: int, created_ns: int, stamp: Stamp, layers: Tuple[LayerEntry, ...]) -> Root:
    """Return the root with its id."""
    return Root(_id_of(_fields(step, created_ns, stamp, layers)), step, created_ns, stamp, layers)


def encode(root: Root) -> bytes:
    """Return the bytes of root.json."""
    document = _fields(root.step, root.created_ns, root.stamp, root.layers)
    return _canonical({**document, "id": root.id})


def tree_digest(files: Tuple[FileEntry, ...]) -> str:
    """Return the digest of a layer made of several files."""
    return hashlib.sha256(_canonical([_file(entry) for entry in files])).hexdigest()


def _fields(step: int, created_ns: int, stamp: Stamp, layers: Tuple[LayerEntry, ...]) -> Dict[str, Any]:
    entries = [
        {
            "name": layer.name,
            "kind": layer.kind,
            "files": [_file(entry) for entry in layer.files],
            "bytes": layer.bytes,
            "sha256": layer.sha256,
        }
        for layer in layers
    ]
    return {"format": FORMAT, "step": step, "created_ns": created_ns, "layers": entries, **vars(stamp)}


def _file(entry: FileEntry) -> Dict[str, Any]:
    return {"path": entry.path, "bytes": entry.bytes, "sha256": entry.sha256}


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _id_of(fields: Dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(fields)).hexdigest()


def read_root(directory: Path) -> Root:
    """Return the root of a committed checkpoint; CorruptCheckpointError when it is missing or not intact."""
    try:
        with open_inside(directory, ROOT_FILE) as file:
            data = file.read(ROOT_BYTES_MAX + 1)
    except OSError as error:
        raise CorruptCheckpointError(f"{directory.name} has no readable {ROOT_FILE}: {error}") from error
    if len(data) > ROOT_BYTES_MAX:
        raise CorruptCheckpointError(f"{directory.name}/{ROOT_FILE} is longer than {ROOT_BYTES_MAX} bytes")
    try:
        root = decode(data)
    except ValueError as error:
        raise CorruptCheckpointError(f"{directory.name}/{ROOT_FILE} is malformed: {error}") from error
    if not directory.name.startswith(f"{root.step:012d}-{root.stamp.attempt}-"):
        raise CorruptCheckpointError(f"{directory.name} is not the directory its {ROOT_FILE} was written for")
    return root


def decode(data: bytes) -> Root:
    """Return the root in `data`; ValueError when anything in it is not as written here, whatever the bytes are."""
    try:
        return _decode(data)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it has another shape than a root: {error!r}") from error


def _decode(data: bytes) -> Root:
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError(f"a root is a JSON object, not a {type(fields).__name__}")
    claimed = fields.pop("id")
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']!r} is not known; {FORMAT} is")
    if claimed != _id_of(fields):
        raise ValueError("its id is not the hash of its content")
    layers = tuple(_layer(entry) for entry in fields["layers"])
    if not layers or len({layer.name for layer in layers}) != len(layers):
        raise ValueError("a checkpoint has each of its layers once, and at least one")
    return Root(claimed, fields["step"], fields["created_ns"], _stamp(fields), layers)


def _stamp(fields: Dict[str, Any]) -> Stamp:
    for name in _NUMBERS:
        if not _is_number(fields[name], NUMBER_MAX):
            raise ValueError(f"{name} is not a whole number from 0 to {NUMBER_MAX}")
    # Times in nanoseconds and seeds take 64 bits.
    if not _is_number(fields["created_ns"], 2**63 - 1) or type(fields["seed"]) is not int:
        raise ValueError("created_ns or seed is not a whole number")
    for name in _TEXTS:
        value = fields[name]
        if not (value is None and name in ("phase", "adopted")) and not _is_text(value, TEXT_CHARS_MAX):
            raise ValueError(f"{name} is not a text of 1 to {TEXT_CHARS_MAX} printable characters")
    names = ("job", "attempt", "rank", "component", "replica", "world_size", "seed", "phase", "adopted")
    return Stamp(**{name: fields[name] for name in names})


def _is_number(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _is_text(value: Any, chars_max: int) -> bool:
    # What is printable has no NUL, no line break and no half of a surrogate pair, so it is a file name and an event.
    return type(value) is str and 0 < len(value) <= chars_max and value.isprintable()


def is_acceptable_path(path: Any) -> bool:
    """Return whether a file of a checkpoint may have this relative path: printable text, spelt in one way only."""
    if not _is_text(path, PATH_CHARS_MAX) or len(os.fsencode(path).split(b"/")) > PATH_DEPTH_MAX:
        return False
    return bool(PurePosixPath(path).as_posix() == path) and ".." not in PurePosixPath(path).parts


def _layer(fields: Dict[str, Any]) -> LayerEntry:
    files = tuple(FileEntry(entry["path"], entry["bytes"], entry["sha256"]) for entry in fields["files"])
    layer = LayerEntry(fields["name"], fields["kind"], files, fields["bytes"], fields["sha256"])
    if layer.name not in protocol.LAYERS or layer.kind not in ("layer", "files"):
        raise ValueError(f"layer {layer.name!r} of kind {layer.kind!r} is not known")
    for entry in files:
        _check_file(layer, entry)
    if not _is_number(layer.bytes, NUMBER_MAX) or layer.bytes != sum(entry.bytes for entry in files):
        raise ValueError(f"layer {layer.name} does not have the size of its files")
    one = len(files) == 1 and layer.sha256 == files[0].sha256
    if not (one if layer.kind == "layer" else layer.sha256 == tree_digest(files)):
        raise ValueError(f"layer {layer.name} does not have the digest of its files")
    return layer


def _check_file(layer: LayerEntry, entry: FileEntry) -> None:
    if not is_acceptable_path(entry.path):
        raise ValueError(f"file {str(entry.path)[:PATH_CHARS_MAX]!r} is named in a way that is not accepted")
    parts = PurePosixPath(entry.path).parts
    inside = parts[:1] == (layer.name,) and len(parts) > 1
    if not (inside if layer.kind == "files" else entry.path == f"{layer.name}.layer"):
        raise ValueError(f"file {entry.path!r} does not belong to layer {layer.name}")
    if not _is_number(entry.bytes, NUMBER_MAX) or not _DIGEST.match(entry.sha256):
        raise ValueError(f"file {entry.path!r} has no proper size and SHA-256")


def verify(directory: Path, root: Root) -> None:
    """Read every file of a checkpoint and compare it with the root; CorruptCheckpointError names what differs."""
    for layer in root.layers:
        for entry in layer.files:
            verify_file(directory, entry)


def verify_file(directory: Path, entry: FileEntry) -> None:
    """Read one file and compare size and hash with its entry."""
    try:
        with open_inside(directory, entry.path) as file:
            check_size(directory, entry, file)
            # One byte more than declared, and no further: a file may grow for as long as it is read.
            found = digest(file, entry.bytes + 1)
    except OSError as error:
        raise CorruptCheckpointError(f"{directory.name}/{entry.path} cannot be read: {error}") from error
    check_digest(directory, entry, found)


def check_size(directory: Path, entry: FileEntry, file: BinaryIO) -> None:
    """Raise CorruptCheckpointError when an open file does not have the size of its entry."""
    size = os.fstat(file.fileno()).st_size
    if size != entry.bytes:
        raise CorruptCheckpointError(f"{directory.name}/{entry.path} has {size} bytes, not {entry.bytes}")


def check_digest(directory: Path, entry: FileEntry, found: str) -> None:
    """Raise CorruptCheckpointError when a file's hash is not that of its entry."""
    if found != entry.sha256:
        raise CorruptCheckpointError(
            f"{directory.name}/{entry.path} has SHA-256 {found[:12]}..., not {entry.sha256[:12]}...: it changed on disk"
        )


def digest(file: BinaryIO, bytes_max: Optional[int] = None) -> str:
    """Return the SHA-256 of the rest of an open file, of its first `bytes_max` bytes where that is given."""
    hashing = hashlib.sha256()
    for block in blocks(file, bytes_max):
        hashing.update(block)
    return hashing.hexdigest()


def blocks(file: BinaryIO, bytes_max: Optional[int] = None) -> Iterator[bytes]:
    """Yield the rest of an open file, at most `bytes_max` bytes of it."""
    left = bytes_max
    while left is None or left > 0:
        block = file.read(BLOCK_BYTES if left is None else min(BLOCK_BYTES, left))
        if not block:
            return
        left = None if left is None else left - len(block)
        yield block


def open_inside(directory: Path, relative: str) -> BinaryIO:
    """Open a regular file below `directory` for reading; no link is followed on the way, nothing can block."""
    *parents, name = PurePosixPath(relative).parts
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for parent in parents:
            below = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
            os.close(held)
            held = below
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=held)
    finally:
        os.close(held)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{relative} is not a regular file")
    return os.fdopen(descriptor, "rb")
