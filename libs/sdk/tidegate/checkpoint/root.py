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
from typing import Any, BinaryIO, Dict, Optional, Tuple

from tidegate import protocol
from tidegate.errors import CorruptCheckpointError

ROOT_FILE = "root.json"
ROOT_BYTES_MAX = 64 << 20
FORMAT = 1
DIRECTORY_NAME = re.compile(r"^[0-9]{12}-[0-9]{1,9}-[0-9a-z]{8}$")
BLOCK_BYTES = 1 << 20

_DIGEST = re.compile(r"^[0-9a-f]{64}$")


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
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCheckpointError(f"{directory.name}/{ROOT_FILE} is malformed: {error!r}") from error
    if not directory.name.startswith(f"{root.step:012d}-{root.stamp.attempt}-"):
        raise CorruptCheckpointError(f"{directory.name} is not the directory its {ROOT_FILE} was written for")
    return root


def decode(data: bytes) -> Root:
    """Return the root in `data`; ValueError, KeyError or TypeError when anything in it is not as written here."""
    fields = json.loads(data)
    claimed = fields.pop("id")
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']!r} is not known; {FORMAT} is")
    if claimed != _id_of(fields):
        raise ValueError("its id is not the hash of its content")
    layers = tuple(_layer(entry) for entry in fields["layers"])
    if not layers or len({layer.name for layer in layers}) != len(layers):
        raise ValueError("a checkpoint has each of its layers once, and at least one")
    names = ("job", "attempt", "rank", "component", "replica", "world_size", "seed", "phase", "adopted")
    stamp = Stamp(**{name: fields[name] for name in names})
    numbers = (fields["step"], fields["created_ns"], stamp.attempt, stamp.rank, stamp.replica)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError("a step, time, attempt or rank is not a whole number")
    return Root(claimed, fields["step"], fields["created_ns"], stamp, layers)


def _layer(fields: Dict[str, Any]) -> LayerEntry:
    files = tuple(FileEntry(entry["path"], entry["bytes"], entry["sha256"]) for entry in fields["files"])
    layer = LayerEntry(fields["name"], fields["kind"], files, fields["bytes"], fields["sha256"])
    if layer.name not in protocol.LAYERS or layer.kind not in ("layer", "files"):
        raise ValueError(f"layer {layer.name!r} of kind {layer.kind!r} is not known")
    for entry in files:
        _check_file(layer, entry)
    if layer.bytes != sum(entry.bytes for entry in files):
        raise ValueError(f"layer {layer.name} does not have the size of its files")
    one = len(files) == 1 and layer.sha256 == files[0].sha256
    if not (one if layer.kind == "layer" else layer.sha256 == tree_digest(files)):
        raise ValueError(f"layer {layer.name} does not have the digest of its files")
    return layer


def _check_file(layer: LayerEntry, entry: FileEntry) -> None:
    parts = PurePosixPath(entry.path).parts
    inside = parts[:1] == (layer.name,) and len(parts) > 1 and ".." not in parts
    if not (inside if layer.kind == "files" else entry.path == f"{layer.name}.layer"):
        raise ValueError(f"file {entry.path!r} does not belong to layer {layer.name}")
    if type(entry.bytes) is not int or entry.bytes < 0 or not _DIGEST.match(entry.sha256):
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
            found = digest(file)
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


def digest(file: BinaryIO) -> str:
    """Return the SHA-256 of the rest of an open file."""
    hashing = hashlib.sha256()
    while block := file.read(BLOCK_BYTES):
        hashing.update(block)
    return hashing.hexdigest()


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
