"""What a save has time for before a deadline: layers in the order of their worth, as far as the measured rate goes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Optional

from tidegate.errors import CheckpointError

ORDER = ("state", "model", "experience", "optimizer")
"""The state says where everything else stands and is small; an optimizer can be warmed up again."""
MARGIN_SECONDS_MAX = 2.0
MARGIN_FRACTION = 0.2
"""What is kept back of the time for manifests, the root, and saying so: a fifth of it, at most two seconds."""


class OutOfTimeError(CheckpointError):
    """The deadline came before the layer was stored."""


@dataclass(frozen=True)
class Budget:
    """How long a save may take. `ends_at` is on the monotonic clock, the margin already taken off."""

    ends_at: float
    bytes_per_second: Optional[float] = None

    def allows(self, size: int) -> bool:
        """Say whether so many bytes can be stored in the time that is left, as far as that is known."""
        left = self.ends_at - time.monotonic()
        return left > 0 and (self.bytes_per_second is None or size <= left * self.bytes_per_second)

    def check(self) -> None:
        """Raise OutOfTimeError when the time is over."""
        if time.monotonic() >= self.ends_at:
            raise OutOfTimeError("the deadline came before everything was stored")


def within(seconds: float, bytes_per_second: Optional[float] = None) -> Budget:
    """Return the budget of a save that begins now and has to be durable in so many seconds."""
    margin = min(MARGIN_SECONDS_MAX, seconds * MARGIN_FRACTION)
    return Budget(time.monotonic() + seconds - margin, bytes_per_second)
