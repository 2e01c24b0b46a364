"""The hash that names chunks: BLAKE3 where the interpreter has it, else BLAKE2b of the standard library.

Packs and manifests say which one was used. Their own names are SHA-256, which every interpreter has.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, Optional

from tidegate.errors import UsageError

BLAKE3, BLAKE2B = "blake3", "blake2b"
DIGEST_BYTES = 32

Hash = Callable[[Any], bytes]

_blake3: Optional[Any]
try:
    from blake3 import blake3 as _blake3
except ImportError:
    _blake3 = None


def _of_blake2b(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _of_blake3(data: Any) -> bytes:
    assert _blake3 is not None
    digest: bytes = _blake3(data).digest()
    return digest


_KNOWN: Dict[str, Hash] = {BLAKE2B: _of_blake2b}
if _blake3 is not None:
    _KNOWN[BLAKE3] = _of_blake3

BEST = BLAKE3 if BLAKE3 in _KNOWN else BLAKE2B


def named(name: str) -> Hash:
    """Return the hash of that name. Raises UsageError where this interpreter lacks it, ValueError for no hash."""
    if name not in (BLAKE3, BLAKE2B):
        raise ValueError(f"hash {name!r} is not known; {BLAKE3} and {BLAKE2B} are")
    if name not in _KNOWN:
        raise UsageError(
            f"this checkpoint's chunks are named by {name}, which this interpreter lacks: install the package {name}, "
            "or restore it where the agent or the command line runs"
        )
    return _KNOWN[name]


def sha256(data: Any) -> str:
    """Return what names a pack, a manifest or a root."""
    return hashlib.sha256(data).hexdigest()
