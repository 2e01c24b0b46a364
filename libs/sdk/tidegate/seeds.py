"""The one derivation of random seeds: from the job's seed to each component, rank, replica and purpose.

    process seed = first 63 bits of SHA-256("tidegate-seed/1\\n<job seed>\\n<component>\\n<rank>\\n<replica>")
    purpose seed = first 63 bits of SHA-256("tidegate-seed/1/purpose\\n<process seed>\\n<purpose>\\n<index>")

Numbers are written in decimal, the text is UTF-8. 63 bits fit a signed 64-bit integer, which is the least that
`random`, numpy and torch take alike. The derivation never changes: golden values in the tests hold it still.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from tidegate.errors import UsageError

_DOMAIN = "tidegate-seed/1"


def derive(job_seed: int, component: str, rank: int, replica: int) -> int:
    """Return the seed of one process of a job, 0 <= seed < 2**63."""
    if "\n" in component:
        raise UsageError(f"component {component!r} was refused: a name holds no line break")
    return _digest(_DOMAIN, str(int(job_seed)), component, str(int(rank)), str(int(replica)))


def derive_purpose(process_seed: int, purpose: str, index: int = 0) -> int:
    """Return the seed for one use inside a process ("env", 3), 0 <= seed < 2**63."""
    if "\n" in purpose:
        raise UsageError(f"purpose {purpose!r} was refused: a name holds no line break")
    return _digest(_DOMAIN + "/purpose", str(int(process_seed)), purpose, str(int(index)))


def _digest(*parts: str) -> int:
    data = hashlib.sha256("\n".join(parts).encode()).digest()
    return int.from_bytes(data[:8], "big") >> 1


class Seeds:
    """The seeds of this process."""

    def __init__(self, process_seed: int) -> None:
        self.process = process_seed

    def of(self, purpose: str, index: int = 0) -> int:
        """Return the seed for a purpose, such as `of("env", i)` for the i-th environment."""
        return derive_purpose(self.process, purpose, index)

    def apply(self) -> None:
        """Seed `random`, and numpy's and torch's global generators where the job has imported them.

        numpy's global generator takes 32 bits: it gets the low ones of its purpose seed.
        """
        import random  # noqa: PLC0415 - not every job wants it loaded

        random.seed(self.of("random"))
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self.of("numpy") & 0xFFFFFFFF)
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(self.of("torch"))
