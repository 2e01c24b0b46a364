"""One layer as one file, without pickle: a JSON header that holds the tree, then the raw bytes of its arrays.

    8 bytes    magic "TGLAYER1"
    8 bytes    length of the header, little-endian
    header     JSON {"format": 1, "tree": ..., "buffers": [{"kind": k, "offset": n, "bytes": n}, ...], "bytes": total}
    buffers    each at its offset from the start of the file, a multiple of 64; the gaps are zero

In the tree JSON's null, true, false, strings, numbers (integers of up to 64 bits, finite floats) and lists stand
for themselves. Everything else is an object with one key:

    {"d": [[key, value], ...]}   dict (keys str or int)       {"o": ...}  collections.OrderedDict
    {"t": [...]}                 tuple                         {"i": hex}  an integer beyond 64 bits
    {"f": 16 hex digits}         a float that is not finite    {"y": n}    bytes, buffer n
    {"n": ...}  numpy array, {"s": ...} numpy scalar, {"x": ...} torch tensor: see arrays.py and tensors.py

It must never run code found in a file.
"""

from __future__ import annotations

import json
import os
import struct
from collections import OrderedDict
from typing import Any, BinaryIO, Callable, ClassVar, Dict, List, Optional

from tidegate.checkpoint import arrays, tensors
from tidegate.errors import CorruptCheckpointError, UnsupportedObjectError

MAGIC = b"TGLAYER1"
ALIGNMENT = 64
HEADER_BYTES_MAX = 1 << 30
DEPTH_MAX = 200
BLOCK_BYTES = 1 << 20

_HEAD = struct.Struct("<8sQ")
_SMALL = 1 << 63


class Snapshot:
    """A layer copied in memory: what the background thread writes. Nothing in it aliases the caller's data."""

    def __init__(self, name: str, tree: Any, buffers: List[arrays.Buffer]) -> None:
        self.name = name
        self._buffers = buffers
        offsets, end = [], 0
        for buffer in buffers:
            offsets.append(end)
            end = _aligned(end + buffer.size)
        header = self._header(tree, offsets, 0)
        # The offsets stand in the header, whose own length moves them: settle its room first, then fill it in.
        start = _aligned(_HEAD.size + len(header) + 24 * (len(buffers) + 1))
        header = self._header(tree, [start + offset for offset in offsets], start + end)
        self._head = (_HEAD.pack(MAGIC, len(header)) + header).ljust(start, b"\0")
        self.bytes = start + end

    def _header(self, tree: Any, offsets: List[int], total: int) -> bytes:
        entries = [
            {"kind": buffer.kind, "offset": offsets[index], "bytes": buffer.size}
            for index, buffer in enumerate(self._buffers)
        ]
        document = {"format": 1, "tree": tree, "buffers": entries, "bytes": total}
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()

    def write(self, sink: Callable[[Any], None]) -> None:
        """Give the file's bytes to `sink`, in order and in blocks of at most BLOCK_BYTES."""
        _in_blocks(memoryview(self._head), sink)
        for buffer in self._buffers:
            _in_blocks(buffer.view, sink)
            sink(bytes(_aligned(buffer.size) - buffer.size))


def snapshot(name: str, value: Any) -> Snapshot:
    """Copy `value` for layer `name`; raises UnsupportedObjectError, which names the path of what is refused."""
    buffers: List[arrays.Buffer] = []
    storages = tensors.Storages(buffers)
    tree = _Encoder(buffers, storages).encode(value, name, 0)
    storages.copy()
    return Snapshot(name, tree, buffers)


class _Encoder:
    def __init__(self, buffers: List[arrays.Buffer], storages: tensors.Storages) -> None:
        self._buffers = buffers
        self._storages = storages

    def encode(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind in (list, tuple, dict, OrderedDict):
            return self._container(value, kind, path, depth + 1)
        if value is None or kind in (bool, str, int, float, bytes):
            return self._plain(value, kind, path)
        return self._array(value, path)

    def _plain(self, value: Any, kind: type, path: str) -> Any:
        if kind is str:
            return _text(value, path)
        if kind is int:
            return value if -_SMALL <= value < _SMALL else {"i": hex(value)}
        if kind is float:
            return value if value - value == 0 else {"f": struct.pack(">d", value).hex()}
        return {"y": self._add(value)} if kind is bytes else value

    def _add(self, data: bytes) -> int:
        self._buffers.append(arrays.Buffer(memoryview(data), data, "y"))
        return len(self._buffers) - 1

    def _container(self, value: Any, kind: type, path: str, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise UnsupportedObjectError(
                f"{path[:200]} was refused: it is nested more than {DEPTH_MAX} deep (does it contain itself?)"
            )
        if kind is list or kind is tuple:
            items = [self.encode(item, f"{path}[{index}]", depth) for index, item in enumerate(value)]
            return items if kind is list else {"t": items}
        pairs = []
        for key, item in value.items():
            if type(key) not in (str, int):
                raise UnsupportedObjectError(
                    f"a key of {path} was refused: {key!r} is a {type(key).__name__}; keys are str or int"
                )
            below = f"{path}.{key}" if type(key) is str else f"{path}[{key}]"
            pairs.append([self.encode(key, below, depth), self.encode(item, below, depth)])
        return {"d" if kind is dict else "o": pairs}

    def _array(self, value: Any, path: str) -> Any:
        if tensors.is_tensor(value):
            return {"x": self._storages.add(value, path)}
        if arrays.is_array(value):
            return {"n": arrays.encode(value, path, self._buffers)}
        if arrays.is_scalar(value):
            return {"s": arrays.encode_scalar(value, path)}
        raise UnsupportedObjectError(_refusal(value, path))


def _refusal(value: Any, path: str) -> str:
    kind = type(value)
    said = f"{path} was refused: a layer holds plain data, not a {kind.__module__}.{kind.__qualname__}"
    if hasattr(value, "state_dict"):
        return said + "; pass its .state_dict()"
    if isinstance(value, (dict, list, tuple, str, int, float)):
        return said + f"; convert it to a plain {_plain_base(value)}"
    return said + (
        "; accepted are dict (keys str or int), list, tuple, str, int, float, bool, None, bytes, numpy arrays and "
        "scalars, torch tensors"
    )


def _plain_base(value: Any) -> str:
    for base in (dict, list, tuple, str, int, float):
        if isinstance(value, base):
            return base.__name__
    raise AssertionError("called for plain data only")


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedObjectError(f"{path} was refused: its text has no UTF-8 form ({error.reason})") from error
    return value


class Stored:
    """A layer file read into memory. `value` is called after its hash was compared, never before."""

    def __init__(self, tree: Any, buffers: List[arrays.Buffer]) -> None:
        self._tree = tree
        self._buffers = buffers

    def value(self, map_location: Optional[Any] = None) -> Any:
        """Return the tree; tensors go to `map_location` (a device; CPU when None)."""
        try:
            return _Decoder(self._buffers, map_location).decode(self._tree)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            raise CorruptCheckpointError(f"a layer file's tree is malformed: {error!r}") from error


def read(file: BinaryIO, observe: Callable[[Any], object]) -> Stored:
    """Read a layer file, giving every byte to `observe`; arrays are read straight into their final memory."""
    head = _read_exactly(file, _HEAD.size, observe)
    magic, length = _HEAD.unpack(head)
    if magic != MAGIC or length > HEADER_BYTES_MAX:
        raise CorruptCheckpointError("this is not a layer file: its first bytes are not those of one")
    header = _parse(_read_exactly(file, length, observe), os.fstat(file.fileno()).st_size)
    buffers: List[arrays.Buffer] = []
    position = _HEAD.size + length
    for entry in header["buffers"]:
        _skip(file, entry["offset"] - position, observe)
        buffer = _ALLOCATE[entry["kind"]](entry["bytes"])
        _fill(file, buffer.view, observe)
        buffers.append(buffer)
        position = entry["offset"] + buffer.size
    _skip(file, header["bytes"] - position, observe)
    return Stored(header["tree"], buffers)


def _plain_buffer(size: int) -> arrays.Buffer:
    data = bytearray(size)
    return arrays.Buffer(memoryview(data), data, "y")


_ALLOCATE: Dict[str, Callable[[int], arrays.Buffer]] = {
    "y": _plain_buffer,
    "n": arrays.allocate,
    "x": tensors.allocate,
}


def _parse(data: bytes, file_bytes: int) -> Dict[str, Any]:
    try:
        header = json.loads(data)
        known = header["format"] == 1 and header["bytes"] == file_bytes and "tree" in header
        for entry in header["buffers"]:
            known = known and entry["kind"] in _ALLOCATE and 0 <= entry["bytes"] <= file_bytes
            known = known and 0 <= entry["offset"] <= file_bytes
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpointError(f"a layer file's header is malformed: {error!r}") from error
    if not known:
        raise CorruptCheckpointError("a layer file's header does not fit the file, or its format is not 1")
    return dict(header)


class _Decoder:
    def __init__(self, buffers: List[arrays.Buffer], map_location: Optional[Any]) -> None:
        self._buffers = buffers
        self._tensors = tensors.Loader(buffers, map_location)

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        ((tag, body),) = node.items()
        reader = self._READERS.get(tag)
        if reader is None:
            raise CorruptCheckpointError(f"a layer file holds an unknown kind of value, {tag!r}")
        return reader(self, body)

    def _bytes(self, body: Any) -> bytes:
        return bytes(self._buffers[body].view)

    _READERS: ClassVar[Dict[str, Callable[[Any, Any], Any]]] = {
        "d": lambda self, body: {self.decode(key): self.decode(value) for key, value in body},
        "o": lambda self, body: OrderedDict((self.decode(key), self.decode(value)) for key, value in body),
        "t": lambda self, body: tuple(self.decode(item) for item in body),
        "i": lambda self, body: int(body, 16),
        "f": lambda self, body: struct.unpack(">d", bytes.fromhex(body))[0],
        "y": _bytes,
        "n": lambda self, body: arrays.decode(body, self._buffers),
        "s": lambda self, body: arrays.decode_scalar(body),
        "x": lambda self, body: self._tensors.decode(body),
    }


def _aligned(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _in_blocks(view: memoryview, sink: Callable[[Any], None]) -> None:
    for start in range(0, len(view), BLOCK_BYTES):
        sink(view[start : start + BLOCK_BYTES])


def _read_exactly(file: BinaryIO, size: int, observe: Callable[[Any], object]) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise CorruptCheckpointError("a layer file is shorter than its header says")
    observe(data)
    return data


def _skip(file: BinaryIO, size: int, observe: Callable[[Any], object]) -> None:
    if size < 0:
        raise CorruptCheckpointError("a layer file's buffers overlap")
    while size:
        block = min(size, BLOCK_BYTES)
        _read_exactly(file, block, observe)
        size -= block


def _fill(file: BinaryIO, view: memoryview, observe: Callable[[Any], object]) -> None:
    filled = 0
    while filled < len(view):
        part = view[filled : filled + BLOCK_BYTES]
        got = file.readinto(part)  # type: ignore[attr-defined]
        if not got:
            raise CorruptCheckpointError("a layer file is shorter than its header says")
        observe(part[:got])
        filled += got
