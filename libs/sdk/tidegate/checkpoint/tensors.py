"""torch tensors in a layer: bytes of their storages, so that what shared memory shares it again after a load.

torch is used only where the job has imported it itself. Refused by name: sparse, quantised, nested and meta tensors,
and subclasses other than Parameter.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from tidegate.checkpoint.arrays import Buffer, Source, Target
from tidegate.checkpoint.direct import AROUND_BYTES_MIN, skip_to_page, use_large_pages
from tidegate.checkpoint.pack import ALIGNMENT
from tidegate.errors import UnsupportedObjectError, UsageError

_SLACK = 2
"""A lone view that spans more than this many times its own bytes is stored compactly, without its strides."""
_ALIGNMENT = 16
"""Bytes; the largest item of any dtype, so an offset in a stored range stays a whole number of items."""


def is_tensor(value: Any) -> bool:
    """Return whether `value` is a torch tensor."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class Storages:
    """Collects the tensors of a layer by storage, so that each storage's used range is copied once."""

    def __init__(self, sources: List[Source]) -> None:
        self._sources = sources
        self._groups: Dict[Any, Tuple[int, List[Tuple[Any, Dict[str, Any]]]]] = {}

    def add(self, value: Any, path: str) -> Dict[str, Any]:
        """Return the tensor's place in the tree; it is complete only after `finish`."""
        tensor = _plain(value, path)
        storage = tensor.untyped_storage()
        key: Any = (str(tensor.device), storage.data_ptr(), storage.nbytes())
        if tensor.numel() == 0:
            key = len(self._sources)
        if key not in self._groups:
            self._sources.append(_NOTHING)
            self._groups[key] = (len(self._sources) - 1, [])
        index, members = self._groups[key]
        body = {
            "b": index,
            "dtype": str(tensor.dtype).rpartition(".")[2],
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "device": str(tensor.device),
        }
        torch: Any = sys.modules["torch"]
        if isinstance(value, torch.nn.Parameter):
            body["parameter"] = True
        if value.requires_grad and value.is_leaf:
            body["grad"] = True
        members.append((tensor, body))
        return body

    def finish(self) -> None:
        """Say which bytes of every storage are to be copied."""
        for index, members in self._groups.values():
            self._sources[index] = _source(members)
        self._groups.clear()


_NOTHING = Source("x", 0, 1, lambda target: None)


def _plain(value: Any, path: str) -> Any:
    torch: Any = sys.modules["torch"]
    kind = type(value)
    reason = ""
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        reason = f"a {kind.__module__}.{kind.__qualname__}; a plain tensor is accepted"
    elif value.is_nested:
        reason = "a nested tensor; save its .unbind() as a list"
    elif value.layout is not torch.strided:
        reason = f"a sparse tensor ({value.layout}); save its .to_dense(), or its indices and values"
    elif value.is_quantized:
        reason = "a quantised tensor; save its .int_repr() with its scale and zero point"
    elif value.device.type == "meta":
        reason = "a meta tensor, which has no data; materialise it first"
    if reason:
        raise UnsupportedObjectError(f"{path} was refused: it is {reason}")
    return value.detach().resolve_conj().resolve_neg()


def _source(members: List[Tuple[Any, Dict[str, Any]]]) -> Source:
    spans = [_span(tensor) for tensor, _ in members]
    low = min(span[0] for span in spans) // _ALIGNMENT * _ALIGNMENT
    high = max(span[1] for span in spans)
    first, body = members[0]
    needed = first.numel() * first.element_size()
    if len(members) == 1 and (needed == 0 or high - low > _SLACK * needed + _ALIGNMENT):
        compact = first.contiguous()
        body["stride"], body["offset"] = list(compact.stride()), 0
        low = compact.storage_offset() * compact.element_size()
        return _source_of(compact, low, needed)
    for index, (tensor, description) in enumerate(members):
        description["offset"] = (spans[index][0] - low) // tensor.element_size()
    return _source_of(first, low, high - low)


def _span(tensor: Any) -> Tuple[int, int]:
    """Return the first and one past the last byte of its storage that the tensor uses (strides are never negative)."""
    start = tensor.storage_offset()
    last = start
    for dimension, size in enumerate(tensor.shape):
        last += (size - 1) * tensor.stride(dimension)
    item = tensor.element_size()
    return start * item, (last + 1) * item if tensor.numel() else start * item


def _source_of(tensor: Any, low: int, size: int) -> Source:
    item = tensor.element_size() // 2 if tensor.is_complex() else tensor.element_size()
    address = tensor.untyped_storage().data_ptr() + low if tensor.device.type == "cpu" and size else 0
    return Source("x", size, item, lambda target: _copy(tensor, low, size, target), address)


def _copy(tensor: Any, low: int, size: int, target: Target) -> None:
    if size == 0:
        return
    torch: Any = sys.modules["torch"]
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    raw = raw.set_(tensor.untyped_storage(), low, (size,), (1,))
    if raw.device.type == "cpu":
        ctypes.memmove(target.address, raw.data_ptr(), size)
    else:
        torch.frombuffer(target.view, dtype=torch.uint8).copy_(raw)


def _buffer(raw: Any) -> Buffer:
    """Return a view over a uint8 CPU tensor without numpy, which torch does without in some installations."""
    size = raw.numel()
    memory = (ctypes.c_ubyte * size).from_address(raw.data_ptr()) if size else b""
    return Buffer(memoryview(memory).cast("B"), raw, "x")


def allocate(size: int) -> Buffer:
    """Return an uninitialised buffer for a storage of `size` bytes."""
    torch = _torch()
    if size < AROUND_BYTES_MIN:
        return _buffer(torch.empty(size, dtype=torch.uint8))
    raw = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    skipped = skip_to_page(raw.data_ptr())
    use_large_pages(raw.data_ptr(), raw.numel())
    return _buffer(raw[skipped : skipped + size])


def empty(body: Dict[str, Any], shape: Sequence[int]) -> Any:
    """Return a tensor of the dtype described by `body`, for a shape without numbers."""
    return _torch().empty(tuple(shape), dtype=getattr(_torch(), body["dtype"]))


class Loader:
    """Makes tensors over the buffers of a layer; tensors of one storage share it, on the asked device too."""

    def __init__(self, buffers: Mapping[int, Buffer], map_location: Optional[Any]) -> None:
        self._buffers = buffers
        self._device = "cpu" if map_location is None else map_location
        self._bases: Dict[int, Any] = {}

    def decode(self, body: Dict[str, Any]) -> Any:
        """Return the tensor described by `body`."""
        torch = _torch()
        index = body["b"]
        if index not in self._bases:
            self._bases[index] = self._buffers[index].owner.to(self._device)
        base = self._bases[index]
        dtype = getattr(torch, body["dtype"])
        tensor = torch.empty(0, dtype=dtype, device=base.device)
        offset = body["offset"] + base.storage_offset() // tensor.element_size()
        tensor = tensor.set_(base.untyped_storage(), offset, tuple(body["shape"]), tuple(body["stride"]))
        if body.get("parameter"):
            return torch.nn.Parameter(tensor, requires_grad=bool(body.get("grad")))
        return tensor.requires_grad_() if body.get("grad") else tensor


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise UsageError("this layer holds torch tensors: `import torch` before loading it")
    return torch
