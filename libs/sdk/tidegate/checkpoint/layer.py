"""One layer as a tree and the raw bytes of its arrays, without pickle.

In the tree JSON's null, true, false, strings, numbers (integers of up to 64 bits, finite floats) and lists stand
for themselves. Everything else is an object with one key:

    {"d": [[key, value], ...]}   dict (keys str or int)       {"o": ...}  collections.OrderedDict
    {"t": [...]}                 tuple                         {"i": hex}  an integer beyond 64 bits
    {"f": 16 hex digits}         a float that is not finite    {"y": n}    bytes, blob n
    {"n": ...}  numpy array, {"s": ...} numpy scalar, {"x": ...} torch tensor: see arrays.py and tensors.py
    {"h": {"of": array or tensor, "offset": [...], "shape": [...]}}  what one rank holds of a larger one: see shard.py

It must never run code found in a file.
"""

from __future__ import annotations

import ctypes
import struct
from collections import OrderedDict
from typing import Any, Callable, ClassVar, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from tidegate.checkpoint import arrays, dtensors, hashes, tensors
from tidegate.checkpoint.manifest import canonical
from tidegate.checkpoint.shard import Shard
from tidegate.checkpoint.shard import check as check_shard
from tidegate.errors import CorruptCheckpointError, UnsupportedObjectError

DEPTH_MAX = 200

_SMALL = 1 << 63


class Described(NamedTuple):
    """A layer's tree, and where the bytes that it refers to are to be copied from."""

    tree: Any
    sources: Tuple[arrays.Source, ...]


def describe(name: str, value: Any) -> Described:
    """Return the tree of layer `name`; raises UnsupportedObjectError, which names the path of what is refused."""
    sources: List[arrays.Source] = []
    storages = tensors.Storages(sources)
    tree = _Encoder(sources, storages).encode(value, name, 0)
    storages.finish()
    return Described(tree, tuple(sources))


class _Encoder:
    def __init__(self, sources: List[arrays.Source], storages: tensors.Storages) -> None:
        self._sources = sources
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
        address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0  # bytes never move
        self._sources.append(arrays.Source("y", len(data), 1, lambda target: _copy(data, target), address))
        return len(self._sources) - 1

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
        if dtensors.is_dtensor(value):
            value = dtensors.local(value, path)
        if type(value) is Shard:
            return self._shard(value, path)
        if tensors.is_tensor(value):
            return {"x": self._storages.add(value, path)}
        if arrays.is_array(value):
            return {"n": arrays.encode(value, path, self._sources)}
        if arrays.is_scalar(value):
            return {"s": arrays.encode_scalar(value, path)}
        raise UnsupportedObjectError(_refusal(value, path))

    def _shard(self, value: Shard, path: str) -> Any:
        if not (tensors.is_tensor(value.data) or arrays.is_array(value.data)):
            raise UnsupportedObjectError(f"{path} was refused: a shard is of a torch tensor or a numpy array")
        check_shard(value, path)
        of = self._array(value.data, path)
        return {"h": {"of": of, "offset": [int(n) for n in value.offset], "shape": [int(n) for n in value.shape]}}


def _copy(data: bytes, target: arrays.Target) -> None:
    ctypes.memmove(target.address, data, len(data))


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


def allocate(kind: str, size: int) -> arrays.Buffer:
    """Return memory for a blob of a tree, as whatever is made of it wants it."""
    return _ALLOCATE[kind](size)


def _plain_buffer(size: int) -> arrays.Buffer:
    data = bytearray(size)
    return arrays.Buffer(memoryview(data), data, "y")


_ALLOCATE: Dict[str, Callable[[int], arrays.Buffer]] = {
    "y": _plain_buffer,
    "n": arrays.allocate,
    "x": tensors.allocate,
}


def value(
    tree: Any,
    buffers: Mapping[int, arrays.Buffer],
    map_location: Optional[Any] = None,
    whole: Sequence[Any] = (),
) -> Any:
    """Return what a tree describes; tensors go to `map_location` (a device; CPU when None).

    `whole` is what stands in the place of its shards, in their order. It is called after the bytes in `buffers` were
    compared with their hashes, never before.
    """
    try:
        return _Decoder(buffers, map_location, whole).decode(tree)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
        raise CorruptCheckpointError(f"a layer's tree is malformed: {error!r}") from error


class Leaf(NamedTuple):
    """A value of a tree that has bytes of its own: its dotted path, its node, and its blob."""

    path: str
    node: Any
    blob: int


def leaves(tree: Any, path: str = "", depth: int = 0) -> Iterator[Leaf]:
    """Yield the arrays, tensors and runs of bytes of a tree; raises CorruptCheckpointError for what is none."""
    if depth > 2 * DEPTH_MAX:
        raise CorruptCheckpointError(f"a layer's tree is nested more than {DEPTH_MAX} deep")
    try:
        for below, node in _children(tree):
            joined = f"{path}.{below}" if path and below else path or below
            if isinstance(node, dict) and next(iter(node)) in ("y", "n", "x"):
                ((tag, body),) = node.items()
                yield Leaf(joined, node, body if tag == "y" else body["b"])
            else:
                yield from leaves(node, joined, depth + 1)
    except (KeyError, ValueError, TypeError, AttributeError, StopIteration) as error:
        raise CorruptCheckpointError(f"a layer's tree is malformed: {error!r}") from error


def _children(tree: Any) -> Iterator[Tuple[str, Any]]:
    if isinstance(tree, list):
        yield from ((str(index), item) for index, item in enumerate(tree))
    elif isinstance(tree, dict):
        ((tag, body),) = tree.items()
        if tag in ("d", "o"):
            yield from ((str(key), item) for key, item in body)
        elif tag == "t":
            yield "", body
        elif tag == "h":
            yield "", body["of"]
        elif tag in ("y", "n", "x"):
            yield "", tree


class Piece(NamedTuple):
    """A shard in a tree: its dotted path, the node of what it holds, and where that lies in the whole."""

    path: str
    of: Any
    offset: Tuple[int, ...]
    shape: Tuple[int, ...]


def pieces(tree: Any, path: str = "", depth: int = 0) -> Iterator[Piece]:
    """Yield the shards of a tree, in order; raises CorruptCheckpointError for what is none."""
    if depth > 2 * DEPTH_MAX:
        raise CorruptCheckpointError(f"a layer's tree is nested more than {DEPTH_MAX} deep")
    try:
        if isinstance(tree, dict) and "h" in tree:
            body = tree["h"]
            yield Piece(path, body["of"], tuple(body["offset"]), tuple(body["shape"]))
            return
        for below, node in _children(tree):
            if node is not tree:
                yield from pieces(node, f"{path}.{below}" if path and below else path or below, depth + 1)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptCheckpointError(f"a layer's tree is malformed: {error!r}") from error


def layout(tree: Any) -> str:
    """Return the hash of the names, types and shapes of a tree's arrays and tensors."""
    found = [
        [leaf.path, tag, body["dtype"], body["shape"]]
        for leaf in leaves(tree)
        for tag, body in leaf.node.items()
        if tag != "y"
    ]
    return hashes.sha256(canonical(sorted(found)))


class _Decoder:
    def __init__(
        self, buffers: Mapping[int, arrays.Buffer], map_location: Optional[Any], whole: Sequence[Any] = ()
    ) -> None:
        self._buffers = buffers
        self._whole = list(whole)
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
        "h": lambda self, body: self._whole.pop(0),
    }
