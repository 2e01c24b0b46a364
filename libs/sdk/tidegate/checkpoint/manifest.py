"""A layer's manifest: what it consists of, down to its chunks. Its id is the SHA-256 of its bytes.

    {"format": 2, "kind": "values", "hash": "blake3", "layout": hex, "tree": ..., "blobs": [...]}
    {"format": 2, "kind": "files", "hash": "blake3", "blobs": [...]}
    {"format": 2, "kind": "sharded", "parts": [manifest id of rank 0, of rank 1, ...]}

A blob is {"kind": k, "bytes": n, "item": n} and either "chunks" (ids in hex; every one but the last is of 4 MiB) or
"inline" (its bytes in base64, where they are few). Kinds "y", "n" and "x" belong to a tree, see layer.py; a file of a
tree of files has kind "f" and a "path". Only content stands here, so equal layers have equal ids: where their chunks
lie, and what a layer came from, is in the root. A job writes manifests, so a reader checks every field.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Dict, Optional, Tuple

from tidegate.checkpoint import codec, files, hashes
from tidegate.checkpoint.pack import CHUNK_BYTES
from tidegate.errors import CorruptCheckpointError

FORMAT = 2
MANIFEST_BYTES_MAX = 256 << 20
"""Longest manifest that is read: that of a layer of some ten terabytes."""
INLINE_BYTES_MAX = 1024
"""A blob up to this size stands in the manifest itself: a record of its own would take a block of 4 KiB."""
NUMBER_MAX = 2**53
"""Largest size, time or rank: every reader of the events that repeat it has a type that holds it."""
PARTS_MAX = 65_536
PATH_CHARS_MAX = 1024
PATH_DEPTH_MAX = 66
SUFFIX = ".json"
VALUES, FILES, SHARDED = "values", "files", "sharded"
KINDS = (VALUES, FILES, SHARDED)

DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_BLOB_KINDS = {VALUES: ("y", "n", "x"), FILES: ("f",)}


@dataclass(frozen=True)
class BlobEntry:
    """A run of bytes of a layer: chunks, or the bytes themselves where `inline` is not None."""

    kind: str
    size: int
    item: int
    chunks: Tuple[bytes, ...] = ()
    inline: Optional[bytes] = None
    path: str = ""


@dataclass(frozen=True)
class Manifest:
    """What one layer consists of; `layout` is the hash of its tensors' names, types and shapes."""

    kind: str
    hash_name: str = ""
    blobs: Tuple[BlobEntry, ...] = ()
    tree: Any = None
    layout: str = ""
    parts: Tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Return the size of what it holds, before anything was compressed or found to be there already."""
        size = sum(blob.size for blob in self.blobs)
        return size + len(canonical(self.tree)) if self.kind == VALUES else size


def canonical(document: Any) -> bytes:
    """Return the one spelling of a JSON document that its hash is taken of."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def encode(manifest: Manifest) -> Tuple[str, bytes]:
    """Return a manifest's id and bytes."""
    document: Dict[str, Any] = {"format": FORMAT, "kind": manifest.kind}
    if manifest.kind == SHARDED:
        document["parts"] = list(manifest.parts)
    else:
        document["hash"] = manifest.hash_name
        document["blobs"] = [_blob_fields(blob) for blob in manifest.blobs]
    if manifest.kind == VALUES:
        document["layout"] = manifest.layout
        document["tree"] = manifest.tree
    data = canonical(document)
    return hashes.sha256(data), data


def _blob_fields(blob: BlobEntry) -> Dict[str, Any]:
    fields: Dict[str, Any] = {"kind": blob.kind, "bytes": blob.size, "item": blob.item}
    if blob.path:
        fields["path"] = blob.path
    if blob.inline is None:
        fields["chunks"] = [chunk.hex() for chunk in blob.chunks]
    else:
        fields["inline"] = base64.b64encode(blob.inline).decode()
    return fields


def read(manifests: int, manifest_id: str) -> Manifest:
    """Return the manifest of that id; CorruptCheckpointError where it is missing or not whole."""
    if not DIGEST.match(manifest_id):
        raise CorruptCheckpointError(f"{manifest_id[:80]!r} is no manifest's id")
    try:
        data = files.read_bounded(manifests, manifest_id + SUFFIX, MANIFEST_BYTES_MAX)
    except OSError as error:
        raise CorruptCheckpointError(f"manifest {manifest_id[:12]} cannot be read: {error.strerror}") from error
    if hashes.sha256(data) != manifest_id:
        raise CorruptCheckpointError(f"manifest {manifest_id[:12]} is damaged: its SHA-256 is another")
    try:
        return decode(data)
    except ValueError as error:
        raise CorruptCheckpointError(f"manifest {manifest_id[:12]} is malformed: {error}") from error


def decode(data: bytes) -> Manifest:
    """Return the manifest in `data`; ValueError when anything in it is not as written here, whatever the bytes are."""
    try:
        return _decode(json.loads(data))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it has another shape than a manifest: {error!r}") from error


def _decode(document: Any) -> Manifest:
    if document["format"] != FORMAT or document["kind"] not in KINDS:
        raise ValueError(f"format {document['format']!r}, kind {document['kind']!r} is not known; format {FORMAT} is")
    kind: str = document["kind"]
    if kind == SHARDED:
        return Manifest(kind, parts=_parts(document["parts"]))
    hash_name = document["hash"]
    if hash_name not in (hashes.BLAKE3, hashes.BLAKE2B):
        raise ValueError(f"hash {str(hash_name)[:20]!r} is not known")
    blobs = tuple(_blob(fields, kind) for fields in document["blobs"])
    if kind == FILES:
        if len({blob.path for blob in blobs}) != len(blobs):
            raise ValueError("a file is named twice")
        return Manifest(kind, hash_name, blobs)
    if not (type(document["layout"]) is str and DIGEST.match(document["layout"])):
        raise ValueError("its layout is no hash")
    return Manifest(kind, hash_name, blobs, document["tree"], document["layout"])


def _parts(given: Any) -> Tuple[str, ...]:
    parts = tuple(given)
    if not 0 < len(parts) <= PARTS_MAX or not all(type(part) is str and DIGEST.match(part) for part in parts):
        raise ValueError("its parts are not ids of manifests")
    return parts


def _blob(fields: Dict[str, Any], kind: str) -> BlobEntry:
    size, item, path = fields["bytes"], fields["item"], fields.get("path", "")
    if fields["kind"] not in _BLOB_KINDS[kind]:
        raise ValueError(f"a blob of kind {str(fields['kind'])[:20]!r} is no part of a layer of {kind}")
    if not is_number(size, NUMBER_MAX) or not is_number(item, codec.ITEM_BYTES_MAX):
        raise ValueError("a blob has no proper size")
    if (kind == FILES or path) and not (kind == FILES and is_acceptable_path(path)):
        raise ValueError(f"file {str(path)[:PATH_CHARS_MAX]!r} is named in a way that is not accepted")
    if "inline" in fields:
        inline = _inline(fields["inline"])
        if len(inline) != size or size > INLINE_BYTES_MAX:
            raise ValueError("an inline blob has another size than it says")
        return BlobEntry(fields["kind"], size, item, (), inline, path)
    chunks = tuple(_chunk(chunk) for chunk in fields["chunks"])
    if len(chunks) != -(-size // CHUNK_BYTES):
        raise ValueError(f"a blob of {size} bytes has {len(chunks)} chunks")
    return BlobEntry(fields["kind"], size, item, chunks, None, path)


def _inline(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"an inline blob is no base64: {error}") from error


def _chunk(text: Any) -> bytes:
    if type(text) is not str or not DIGEST.match(text):
        raise ValueError(f"{str(text)[:80]!r} is no chunk's id")
    return bytes.fromhex(text)


def is_number(value: Any, most: int) -> bool:
    """Return whether `value` is a whole number from 0 to `most`."""
    return type(value) is int and 0 <= value <= most


def is_text(value: Any, chars_max: int) -> bool:
    """Return whether `value` is printable text: no NUL, no line break, no half of a surrogate pair."""
    return type(value) is str and 0 < len(value) <= chars_max and value.isprintable()


def is_acceptable_path(path: Any) -> bool:
    """Return whether a file of a checkpoint may have this relative path: printable text, spelt in one way only."""
    if not is_text(path, PATH_CHARS_MAX) or len(os.fsencode(path).split(b"/")) > PATH_DEPTH_MAX:
        return False
    parts = PurePosixPath(path).parts
    return bool(PurePosixPath(path).as_posix() == path) and ".." not in parts and parts[0] != "/" and path != "."
