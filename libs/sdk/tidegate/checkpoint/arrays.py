"""numpy arrays and scalars in a layer; numpy is used only where the job has imported it itself."""

from __future__ import annotations

import ast
import ctypes
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from tidegate.checkpoint.direct import AROUND_BYTES_MIN, skip_to_page
from tidegate.checkpoint.pack import ALIGNMENT
from tidegate.errors import CorruptCheckpointError, UnsupportedObjectError, UsageError


class Buffer:
    """Raw bytes of a layer that was read: `view` over memory that `owner` keeps alive; `kind` as in the tree."""

    def __init__(self, view: memoryview, owner: Any, kind: str) -> None:
        self.view = view
        self.owner = owner
        self.kind = kind
        self.size = len(view)


class Target(NamedTuple):
    """Memory to copy into; `address` is where `view` begins."""

    view: memoryview
    address: int


class Source(NamedTuple):
    """Bytes of a layer that are still the caller's, until `copy` took them; `item` is the size of their numbers.

    `address` is where they lie one after the other in this process's memory; 0 where only `copy` knows how to get them.
    """

    kind: str
    size: int
    item: int
    copy: Callable[[Target], None]
    address: int = 0


def is_array(value: Any) -> bool:
    """Return whether `value` is a numpy array (a subclass counts: encode refuses it by name)."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_scalar(value: Any) -> bool:
    """Return whether `value` is a numpy scalar."""
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def encode(value: Any, path: str, sources: List[Source]) -> Dict[str, Any]:
    """Note an array, to be copied in C order, and return its place in the tree."""
    numpy: Any = sys.modules["numpy"]
    if type(value) is not numpy.ndarray:
        raise UnsupportedObjectError(
            f"{path} was refused: it is a {type(value).__module__}.{type(value).__qualname__}; "
            "a plain array is accepted (numpy.array(x))"
        )
    dtype = _describe(value.dtype, path)
    address = value.ctypes.data if value.flags.c_contiguous and value.nbytes else 0
    sources.append(Source("n", value.nbytes, _item(value.dtype), lambda target: _copy(value, target), address))
    return {"b": len(sources) - 1, "dtype": dtype, "shape": list(value.shape)}


def _item(dtype: Any) -> int:
    """Return the size of the numbers that an array is made of: what its byte planes are taken of."""
    if dtype.kind == "c":
        return int(dtype.itemsize) // 2
    return int(dtype.itemsize) if dtype.kind in "fiumM" else 1


def _copy(value: Any, target: Target) -> None:
    if value.nbytes == 0:
        return
    if value.flags.c_contiguous:
        ctypes.memmove(target.address, value.ctypes.data, value.nbytes)
        return
    numpy: Any = sys.modules["numpy"]
    numpy.frombuffer(target.view, numpy.uint8).view(value.dtype).reshape(value.shape)[...] = value


def encode_scalar(value: Any, path: str) -> Dict[str, Any]:
    """Return a scalar's place in the tree; its bytes stand there in hex."""
    return {"dtype": _describe(value.dtype, path), "hex": value.tobytes().hex()}


def _describe(dtype: Any, path: str) -> str:
    from numpy.lib import format as npy  # noqa: PLC0415

    if dtype.hasobject or dtype.itemsize == 0:
        raise UnsupportedObjectError(
            f"{path} was refused: a numpy value of dtype {dtype} holds Python objects or nothing at all; "
            "accepted are numbers, booleans, dates, fixed-length text and bytes, and structures of them"
        )
    description = npy.dtype_to_descr(dtype)
    if npy.descr_to_dtype(description) != dtype:
        raise UnsupportedObjectError(f"{path} was refused: dtype {dtype} is not one of numpy's own")
    return repr(description)


def allocate(size: int) -> Buffer:
    """Return an uninitialised buffer for an array of `size` bytes."""
    numpy = _numpy()
    if size < AROUND_BYTES_MIN:
        flat = numpy.empty(size, numpy.uint8)
    else:
        flat = numpy.empty(size + ALIGNMENT, numpy.uint8)
        skipped = skip_to_page(flat.ctypes.data)
        flat = flat[skipped : skipped + size]
    return Buffer(memoryview(flat), flat, "n")


def decode(body: Dict[str, Any], buffers: List[Buffer]) -> Any:
    """Return the array described by `body`, over the memory it was read into."""
    return buffers[body["b"]].owner.view(_dtype(body["dtype"])).reshape(body["shape"])


def empty(body: Dict[str, Any], shape: Sequence[int]) -> Any:
    """Return an array of the dtype described by `body`, for a shape without numbers."""
    return _numpy().empty(tuple(shape), _dtype(body["dtype"]))


def decode_scalar(body: Dict[str, Any]) -> Any:
    """Return the scalar described by `body`."""
    numpy = _numpy()
    return numpy.frombuffer(bytes.fromhex(body["hex"]), _dtype(body["dtype"]))[0]


def _dtype(text: str) -> Any:
    _numpy()
    from numpy.lib import format as npy  # noqa: PLC0415 - after the check that the job uses numpy

    dtype = npy.descr_to_dtype(ast.literal_eval(text))
    if dtype.hasobject:
        raise CorruptCheckpointError("a layer file names a dtype of Python objects: none is ever written")
    return dtype


def _numpy() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise UsageError("this layer holds numpy values: `import numpy` before loading it")
    return numpy
