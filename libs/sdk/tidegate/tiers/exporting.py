"""Writes the tensors of a layer as a safetensors file: a length, a JSON header, and the bytes of each tensor in turn.

The format: https://github.com/huggingface/safetensors#format. Values that are no tensors have no place in it.
"""

from __future__ import annotations

import ast
import json
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, NamedTuple

from tidegate.checkpoint import files, layer, places, reader
from tidegate.checkpoint.crew import SHARED
from tidegate.checkpoint.manifest import VALUES, Manifest
from tidegate.checkpoint.reader import Reader
from tidegate.checkpoint.root import LayerEntry, Root
from tidegate.checkpoint.shelf import Shelf
from tidegate.checkpoint.store import layer_manifests
from tidegate.errors import CorruptCheckpointError, UnknownLayerError, UnsupportedObjectError

ALIGNMENT = 8

_TORCH = {
    "float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1), "bool": ("BOOL", 1), "complex64": ("C64", 8),
    "int64": ("I64", 8), "int32": ("I32", 4), "int16": ("I16", 2), "int8": ("I8", 1),
    "uint64": ("U64", 8), "uint32": ("U32", 4), "uint16": ("U16", 2), "uint8": ("U8", 1),
}  # fmt: skip
_NUMPY = {
    "<f8": "float64", "<f4": "float32", "<f2": "float16", "|b1": "bool", "<c8": "complex64",
    "<i8": "int64", "<i4": "int32", "<i2": "int16", "|i1": "int8",
    "<u8": "uint64", "<u4": "uint32", "<u2": "uint16", "|u1": "uint8",
}  # fmt: skip


class Exported(NamedTuple):
    """What was written, and the names of what was left out because it is no tensor."""

    tensors: int
    size_bytes: int
    left_out: List[str]


class _Tensor(NamedTuple):
    name: str
    blob: int
    dtype: str
    item: int
    shape: List[int]
    stride: List[int]
    offset: int

    @property
    def size_bytes(self) -> int:
        size = self.item
        for dimension in self.shape:
            size *= dimension
        return size


def export(store: Path, root: Root, name: str, target: Path) -> Exported:
    """Write layer `name` of a checkpoint to `target`, every byte compared first; it appears whole or not at all.

    Raises UnknownLayerError for a layer that has no tensors to give, UnsupportedObjectError for one that has no place
    in the format, FileExistsError where `target` is there.
    """
    with places.opened(store) as held, places.in_use(held):
        (manifest,) = layer_manifests(held, _entry(root, name))
        tensors, left_out = _tensors(manifest)
        with reader.reading(held, Shelf().refresh(held), SHARED) as reading:
            directory = files.open_directory(target.parent)
            try:
                with files.Temporary(directory) as temporary:
                    with os.fdopen(os.dup(temporary.descriptor), "wb") as file:
                        size = _write(file, reading, manifest, tensors, name)
                    os.fsync(temporary.descriptor)
                    if not temporary.name_once(directory, target.name):
                        raise FileExistsError(f"{target} is there already: a name that is free is accepted")
                    os.fsync(directory)
            finally:
                os.close(directory)
    return Exported(len(tensors), size, left_out)


def _entry(root: Root, name: str) -> LayerEntry:
    entry = root.layer(name)
    if entry is None or entry.kind != VALUES:
        there = ", ".join(each.name for each in root.layers if each.kind == VALUES) or "none"
        why = "is not in it" if entry is None else f"was saved as {entry.kind}, not as tensors"
        raise UnknownLayerError(f"layer {name!r} of checkpoint {root.id[:12]} {why}: layers of values are {there}")
    return entry


def _tensors(manifest: Manifest) -> "tuple[List[_Tensor], List[str]]":
    found, left_out = [], []
    for leaf in layer.leaves(manifest.tree):
        ((tag, body),) = leaf.node.items()
        if tag == "y":
            left_out.append(leaf.path)
            continue
        try:
            found.append(_tensor(leaf.path, tag, body))
        except (KeyError, TypeError, ValueError, SyntaxError) as error:
            raise UnsupportedObjectError(
                f"{leaf.path} was refused: {str(body)[:80]} has no type in safetensors; accepted are "
                f"{', '.join(_TORCH)}"
            ) from error
    return found, left_out


def _tensor(path: str, tag: str, body: Dict[str, Any]) -> _Tensor:
    shape = [int(size) for size in body["shape"]]
    if tag == "x":
        dtype, item = _TORCH[body["dtype"]]
        return _Tensor(path, body["b"], dtype, item, shape, list(body["stride"]), int(body["offset"]))
    dtype, item = _TORCH[_NUMPY[ast.literal_eval(body["dtype"])]]
    return _Tensor(path, body["b"], dtype, item, shape, _contiguous(shape), 0)


def _contiguous(shape: List[int]) -> List[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return strides[::-1]


def _write(file: BinaryIO, reading: Reader, manifest: Manifest, tensors: List[_Tensor], name: str) -> int:
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [at, at + tensor.size_bytes],
        }
        at += tensor.size_bytes
    encoded = _padded(header)
    file.write(struct.pack("<Q", len(encoded)) + encoded)
    for tensor in tensors:
        file.write(_bytes_of(reading, manifest, tensor, name))
    return 8 + len(encoded) + at


def _padded(header: Dict[str, Any]) -> bytes:
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return encoded + b" " * (-len(encoded) % ALIGNMENT)


def _bytes_of(reading: Reader, manifest: Manifest, tensor: _Tensor, name: str) -> Any:
    """Return a tensor's bytes in C order."""
    if not 0 <= tensor.blob < len(manifest.blobs):
        raise CorruptCheckpointError(f"layer {name} refers to a blob that it lacks")
    blob = manifest.blobs[tensor.blob]
    data = memoryview(bytearray(blob.size))
    if blob.inline is not None:
        data[:] = blob.inline
    else:
        reading.read(reader.wants_of(f"layer {name}, {tensor.name}", manifest.hash_name, blob, data))
    start = tensor.offset * tensor.item
    if tensor.size_bytes == 0:
        return b""
    if _is_contiguous(tensor):
        if start + tensor.size_bytes > blob.size:
            raise CorruptCheckpointError(f"{tensor.name} lies outside of its bytes")
        return data[start : start + tensor.size_bytes]
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride))  # noqa: B905
    if (last + 1) * tensor.item > blob.size or min(tensor.stride) < 0:
        raise CorruptCheckpointError(f"{tensor.name} lies outside of its bytes")
    return _gathered(data, tensor)


def _is_contiguous(tensor: _Tensor) -> bool:
    wanted = _contiguous(tensor.shape)
    return all(size == 1 or have == want for size, have, want in zip(tensor.shape, tensor.stride, wanted))  # noqa: B905


def _gathered(data: memoryview, tensor: _Tensor) -> bytes:
    """Return the items of a strided tensor in C order."""
    import numpy  # noqa: PLC0415 - only transposed and sliced tensors need it

    strides = [step * tensor.item for step in tensor.stride]
    view = numpy.ndarray((*tensor.shape, tensor.item), numpy.uint8, data, tensor.offset * tensor.item, (*strides, 1))
    return view.tobytes()
