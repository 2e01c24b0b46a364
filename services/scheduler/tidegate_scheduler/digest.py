"""An incremental digest of the scheduler's state: equal states have equal digests, whatever path led there.

Each entity (a job, a node, a writer, the header) is hashed by itself, and the digest is the sum of these hashes modulo
2**256 (a multiset hash, as in Bellare and Micciancio, "A new paradigm for collision-free hashing", 1997). Changing one
entity costs one hash, not one for each entity there is. It proves equality between honest replays; it is no
authentication against somebody who chooses the entities.
"""

from __future__ import annotations

import msgspec
from blake3 import blake3

_MODULUS = 1 << 256
_encoder = msgspec.json.Encoder()  # it has no largest integer: a job's result may hold any


class StateDigest:
    """The sum of the hashes of the entities that are present."""

    def __init__(self) -> None:
        self._sum = 0
        self._by_key: dict[str, int] = {}

    def put(self, key: str, entity: object) -> None:
        """Set or replace the entity under `key`."""
        value = int.from_bytes(blake3(key.encode() + b"\0" + _encoder.encode(entity)).digest(), "big")
        self._sum = (self._sum - self._by_key.get(key, 0) + value) % _MODULUS
        self._by_key[key] = value

    def drop(self, key: str) -> None:
        """Remove the entity under `key`, if it is there."""
        self._sum = (self._sum - self._by_key.pop(key, 0)) % _MODULUS

    def text(self) -> str:
        """Return the digest as it stands in a DecisionPass."""
        return f"b3:{self._sum:064x}"
