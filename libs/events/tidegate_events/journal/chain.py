"""The chain of digests through the frames of the journal: who knows the last one knows every frame before it.

    h_i = BLAKE3(h_{i-1} || sequence || length of the subject || subject || data)

It goes on from one generation, and from one archive file, to the next.
"""

from __future__ import annotations

from struct import Struct

from blake3 import blake3

from tidegate_events.journal.base import Raw

DIGEST_BYTES = 32
PREFIX = "b3:"

_LINK = Struct(">QI")


class ChainDigest:
    """The chain as far as it was read; begins with the digest before its first frame (empty: nothing was before)."""

    def __init__(self, previous: str = "") -> None:
        self._value = _as_bytes(previous) if previous else bytes(DIGEST_BYTES)

    def add(self, raw: Raw) -> None:
        """Chain the next frame."""
        subject = raw.subject.encode()
        self._value = blake3(b"".join((self._value, _LINK.pack(raw.seq, len(subject)), subject, raw.data))).digest()

    def text(self) -> str:
        """Return the digest of all frames so far."""
        return PREFIX + self._value.hex()


def _as_bytes(digest: str) -> bytes:
    try:
        value = bytes.fromhex(digest.removeprefix(PREFIX)) if digest.startswith(PREFIX) else b""
    except ValueError:
        value = b""
    if len(value) != DIGEST_BYTES:
        raise ValueError(f"{digest!r} is no digest: expected {PREFIX!r} and {2 * DIGEST_BYTES} hex digits")
    return value
